"""Finds out, when the engine connects, which server it is and which features it has."""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import re
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from _inf.backends.model_info import with_thought_marks
from _inf.backends.openai import SCORES, SGLANG_SERVER_MODE, TEXT_MODE, TOKEN_MODE, VLLM_MODE
from _inf.backends.openai.backend import (
    IS_PAUSED,
    OpenAIBackend,
    PausingServer,
    ScoringServer,
    UpdatedServer,
    VllmServer,
)
from _inf.backends.openai.client import Server
from _inf.backends.openai.failures import AccessRefused
from _inf.backends.openai.sglang_server import GenerateForm, WeightsFolder, weight_version
from _inf.backends.openai.text import TextForm
from _inf.backends.openai.tokens import ServerLogprobs, TokenForm
from _inf.config import Config
from _inf.errors import ConfigError, InferenceError, PromptError, RequestFailure, shown
from _inf.parts.budget import Budget
from _inf.types import ModelInfo, Request, SamplingParams, ThoughtMarks

Form: TypeAlias = TextForm | TokenForm | GenerateForm

VLLM = 0, 32  # the version whose fields `VLLM_MODE` has; an older one drops unknown fields silently
PROBE = "The quick brown fox jumps over"
HOT = 2.0  # a temperature at which log probs differ from those at 1
SAME = 1e-4  # of two log probs
LIKELIEST = 20  # as many as vLLM lists
ROUNDING = 1e-2  # of a sum of probabilities, computed in bfloat16


@dataclasses.dataclass(frozen=True)
class Found:
    """kind: the class of its backend. form: of its requests and answers. supports: names of
    `features.FEATURES`, abilities aside. weights: how an `UpdatedServer` is given new ones."""

    kind: type[OpenAIBackend]
    form: Form
    supports: frozenset[str]
    weights: WeightsFolder | None = None


async def find(server: Server, config: Config, model: ModelInfo) -> Found:
    """Ask for the list of models, which finds a server that is not there and a wrong key, and says
    which server it is if the config does not. One of token ids is asked for a token, to compare its
    tokenizer with the one here."""
    models = await _or_none(server.control("/models"))  # a server of texts may lack the route
    if model.tokenizer is None:
        return Found(OpenAIBackend, TextForm(str(config.model_path)), TEXT_MODE.supports)
    ids, kind = list(model.tokenizer(PROBE)["input_ids"]), config.server_kind
    try:
        kind = kind or models["data"][0]["owned_by"]
        found, read = await FINDERS[str(kind)](server, config, model, ids)
    except InferenceError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise ConfigError.of(
            "tokenizer_path",
            f"{server.access.base_url} does not return token ids as vLLM, SGLang or inf serve do; "
            f"leave tokenizer_path out to send it text. Its /models says owned_by {shown(kind)}; "
            "if that is wrong, set the key server_kind.",
        ) from None
    if read not in (ids, len(ids)):
        raise ConfigError.of(
            "tokenizer_path",
            f"the server reads {PROBE!r} as the tokens {read}, this tokenizer as {ids}; name the "
            "tokenizer of the server's model.",
        )
    if kind == "vllm" and await _is_old(server):
        return Found(ScoringServer, found.form, TOKEN_MODE.supports | SCORES)
    return found


async def _or_none(asked: Any) -> Any:
    """What the server answers; None if it refuses."""
    try:
        return await asked
    except AccessRefused:
        raise
    except (ConfigError, PromptError, RequestFailure):
        return None


async def _is_old(server: Server) -> bool:
    about = await _or_none(server.control(f"{server.root}/version"))
    said = re.findall(r"\d+", str(about and about["version"]))
    return tuple(map(int, said[:2])) < VLLM


async def _vllm(
    server: Server, config: Config, model: ModelInfo, ids: list[int]
) -> tuple[Found, Any]:
    """Compare two answers, to know which log probs vLLM or `inf serve` gives."""
    name = str(config.model_path)
    one = {"model": name, "max_tokens": 1, "logprobs": LIKELIEST, "return_token_ids": True}
    answer = await server.ask("/completions", {**one, "prompt": PROBE, "temperature": 0})
    hot = {**one, "prompt": ids, "temperature": HOT, "top_k": 1}  # the same token
    choices = answer["choices"][0], (await server.ask("/completions", hot))["choices"][0]
    cold, heated = (row["logprobs"]["token_logprobs"][0] for row in choices)
    likeliest = choices[0]["logprobs"]["top_logprobs"][0]
    _check_logprobs(likeliest, cold, model.limits.vocabulary)
    form = TokenForm(name, _server_logprobs(cold, heated))
    supports = VLLM_MODE.supports
    if not await _ends_thoughts(server, form, with_thought_marks(model, config).thought_marks):
        supports -= {"thinking_token_budget"}
    pauses = await _or_none(server.control(server.root + IS_PAUSED)) is not None
    read = answer.get("prompt_token_ids") or choices[0]["prompt_token_ids"]
    return Found(PausingServer if pauses else VllmServer, form, supports), read


def _server_logprobs(cold: float, heated: float) -> ServerLogprobs:
    """Which log probs the server gives. cold, heated: of one token at temperature 0, and at `HOT`
    with `top_k` 1, which leaves no other token. A token that is certain already tells nothing: then
    only log probs that are the same by every definition count as ours."""
    if cold > -SAME:
        return ServerLogprobs(tempered=False, filtered=True)
    if heated > -SAME:
        return ServerLogprobs(tempered=True, filtered=True)
    return ServerLogprobs(tempered=abs(cold - heated) > SAME, filtered=False)


def _check_logprobs(likeliest: dict[str, float], best: float, vocabulary: int) -> None:
    """Raise if the likeliest tokens' numbers cannot be log(softmax(logits)) of so many tokens."""
    total = math.fsum(math.exp(min(value, 1.0)) for value in likeliest.values())
    if total > 1 + ROUNDING or best < -math.log(vocabulary) - 1:
        raise ConfigError.of(
            "base_url",
            f"the server's log probs do not come from a softmax ({shown(likeliest)}); start vLLM "
            "with --logprobs-mode raw_logprobs or processed_logprobs.",
        )


async def _ends_thoughts(server: Server, form: TokenForm, marks: ThoughtMarks | None) -> bool:
    """Whether the server forces the end of a thought, by the marks that the config names. vLLM
    (0.32.0) counts wrong after a start mark of several tokens."""
    if marks is None or len(marks.start) != 1:
        return False
    ended = SamplingParams(
        max_tokens=len(marks.end),
        temperature=0,
        ignore_eos=True,
        parts=(Budget(0, marks),),
    )
    request = Request(marks.start, ended)
    answer = await _or_none(server.ask(*form.sent(request)))
    return answer is not None and form.answer(request)(answer).token_ids == marks.end


async def _sglang(
    server: Server, config: Config, model: ModelInfo, ids: list[int]
) -> tuple[Found, Any]:
    path = f"{server.root}/generate"
    one = {"text": PROBE, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    read = (await server.ask(path, one))["meta_info"]["prompt_tokens"]
    weights = await _weights_folder(server, config)
    kind = UpdatedServer if weights else OpenAIBackend
    return Found(kind, GenerateForm(path), SGLANG_SERVER_MODE.supports, weights), read


async def _weights_folder(server: Server, config: Config) -> WeightsFolder | None:
    """Ask SGLang's server for its model; None if it does not say, or is on another machine."""
    if not on_this_machine(server.root):
        return None
    about = await _or_none(server.control(f"{server.root}/model_info"))
    if not isinstance(about, dict) or "model_path" not in about:
        return None
    path = str(about["model_path"])
    folder = path if Path(path).is_dir() else str(config.tokenizer_path)
    return WeightsFolder(folder, config.trust_remote_code, weight_version(about))


def on_this_machine(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


FINDERS = {"vllm": _vllm, "inf": _vllm, "sglang": _sglang}
