"""What a server was found to have, by a few small requests when the engine connects to it."""

from __future__ import annotations

import dataclasses
import ipaddress
import math
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from _inf.backends.model_info import with_thought_marks
from _inf.backends.openai import SCORES, SGLANG_SERVER_MODE, TEXT_MODE, TOKEN_MODE
from _inf.backends.openai.adapters import LOAD
from _inf.backends.openai.client import Server
from _inf.backends.openai.failures import AccessRefused
from _inf.backends.openai.sglang_server import GenerateForm, WeightsFolder, weight_version
from _inf.backends.openai.text import TextForm
from _inf.backends.openai.tokens import ServerLogprobs, TokenForm
from _inf.config import Config
from _inf.errors import ConfigError, PromptError, RequestFailure, shown, strip_punctuation
from _inf.request.repetition import REPETITION
from _inf.types import ModelInfo, Request, RequestOutput, SamplingParams, ThoughtMarks

Form: TypeAlias = TextForm | TokenForm | GenerateForm
T = TypeVar("T")

IS_PAUSED = "/is_paused"  # vLLM's, and of `inf serve`
PROBE = "The quick brown fox jumps over"
HOT = 2.0  # a temperature at which log probs differ from those at 1
SAME = 1e-4  # of two log probs
REFUSALS = (ConfigError, PromptError, RequestFailure)
UNKNOWN_FORM = (AttributeError, IndexError, KeyError, TypeError, ValueError)
SCORED = SamplingParams(
    max_tokens=1, temperature=0, logprobs=2, prompt_logprobs=True, top_prompt_logprobs=2
)
DIGITS = SamplingParams(max_tokens=1, temperature=0, regex="7{3}")
REPEATED = SamplingParams(
    max_tokens=3,
    temperature=0,
    ignore_eos=True,
    logit_bias={1: 100.0},  # so it comes again and again
    repetition_detection={"max_pattern_size": 1, "min_pattern_size": 1, "min_count": 2},
)
ROUNDING = 1e-2  # of a sum of probabilities, computed in bfloat16


@dataclasses.dataclass(frozen=True)
class Findings:
    """form: of its requests and answers. supports: names of `base.FEATURES`. weights: how it is
    given new ones; None: it is not. tokens: how it reads the probe, or in how many tokens; None: it
    does not say."""

    form: Form
    supports: frozenset[str]
    weights: WeightsFolder | None = None
    tokens: Any = None


class NotLogprobs(ConfigError):
    """What the server gives as log probs cannot be any."""


async def find(server: Server, config: Config, model: ModelInfo) -> Findings:
    """Send one to ten small requests; raises `ConfigError` if no form fits to the tokenizer.

    Without a tokenizer the list of models is asked for, which finds a server that is not there and
    a wrong key before the first call. With one the first route that answers with token ids is used;
    where its answer tells how the server tokenizes a text, that is compared with the tokenizer.
    """
    if model.tokenizer is None:
        await _or_none(server.look("/models"))  # a server may lack the route
        return Findings(TextForm(str(config.model_path)), TEXT_MODE.supports)
    ids = list(model.tokenizer(PROBE)["input_ids"])
    reasons = []
    for look in (_find_completions, _find_generate):
        try:
            found = await look(server, config, model, ids)
        except (AccessRefused, NotLogprobs):
            raise
        except REFUSALS as refusal:
            reasons.append(strip_punctuation(refusal))
        except UNKNOWN_FORM:
            reasons.append("it answers in an unknown form")
        else:
            if found.tokens not in (None, ids, len(ids)):
                raise ConfigError.of(
                    "tokenizer_path",
                    f"the server reads {PROBE!r} as the tokens {found.tokens}, this "
                    f"tokenizer as {ids}; name the tokenizer of the server's model.",
                )
            return found
    raise ConfigError.of(
        "tokenizer_path",
        f"{server.access.base_url} does not take and give token ids "
        f"({'; '.join(reasons)}); leave tokenizer_path out to send it text.",
    )


async def _find_completions(
    server: Server, config: Config, model: ModelInfo, ids: list[int]
) -> Findings:
    """Look for vLLM's /completions, and for what not every server of its form has."""
    name = str(config.model_path)
    one = {"model": name, "max_tokens": 1, "logprobs": 0, "return_token_ids": True}
    answer = await server.ask("/completions", {**one, "prompt": PROBE, "temperature": 0})
    if not (choice := answer["choices"][0]).get("token_ids"):
        raise ConfigError("/completions returns no token_ids")
    hot = {**one, "prompt": ids, "temperature": HOT, "top_k": 1}  # the same token
    second = (await server.ask("/completions", hot))["choices"][0]
    cold, heated = (row["logprobs"]["token_logprobs"][0] for row in (choice, second))
    token = choice["token_ids"][0]
    _check_logprobs([{token: cold}, {token: heated}])
    tokens = answer.get("prompt_token_ids") or choice.get("prompt_token_ids")
    form = TokenForm(name, _server_logprobs(cold, heated))

    supports = TOKEN_MODE.supports
    if row := await _or_none(_answered(server, form, ids, SCORED)):
        tables = [*row.top_prompt_logprobs, *(row.top_logprobs or ())]
        _check_logprobs([table for table in tables if table], model.limits.vocabulary)
        supports |= SCORES
    row = await _or_none(_answered(server, form, ids, DIGITS))
    if row and set(model.tokenizer.decode(row.token_ids)) == {"7"}:
        supports |= {"regex"}
    other = 0 if token else 1  # than it answers by itself
    only = SamplingParams(max_tokens=1, temperature=0, allowed_token_ids=[other])
    if (row := await _or_none(_answered(server, form, ids, only))) and row.token_ids == [other]:
        supports |= {"token_masks"}
    named = SamplingParams(max_tokens=1, temperature=0, logprob_token_ids=[other])
    row = await _or_none(_answered(server, form, ids, named))
    if row and row.top_logprobs and other in row.top_logprobs[0]:
        supports |= {"logprob_token_ids"}
    row = await _or_none(_answered(server, form, ids, REPEATED))
    if row and row.finish_reason == REPETITION:
        supports |= {"repetition_detection"}
    if await _ends_thoughts(server, form, with_thought_marks(model, config).thought_marks):
        supports |= {"thinking_token_budget"}
    if await _takes_adapters(server):
        supports |= {"adapters"}
    asked = server.control(server.access.base_url.removesuffix("/v1") + IS_PAUSED)
    if isinstance(state := await _or_none(asked), dict) and "is_paused" in state:
        supports |= {"pause"}
    return Findings(form, supports, tokens=tokens)


async def _answered(
    server: Server, form: TokenForm, ids: list[int], params: SamplingParams
) -> RequestOutput:
    request = Request(ids, params)
    return form.answer(request)(await server.ask(*form.sent(request)))


async def _or_none(asked: Awaitable[T]) -> T | None:
    """What the server answers; None if it refuses, or answers in another form."""
    try:
        return await asked
    except AccessRefused:
        raise
    except (*REFUSALS, *UNKNOWN_FORM):
        return None


def _server_logprobs(cold: float, heated: float) -> ServerLogprobs:
    """Which log probs the server gives. cold, heated: of one token at temperature 0, and at `HOT`
    with `top_k` 1, which leaves no other token. A token that is certain already tells nothing: then
    only log probs that are the same by every definition count as ours."""
    if cold > -SAME:
        return ServerLogprobs(tempered=False, filtered=True)
    if heated > -SAME:
        return ServerLogprobs(tempered=True, filtered=True)
    return ServerLogprobs(tempered=abs(cold - heated) > SAME, filtered=False)


def _check_logprobs(tables: list[dict[int, float]], vocabulary: int | None = None) -> None:
    """Raise if the likeliest tokens' numbers cannot be log(softmax(logits)) of so many tokens."""
    for table in tables:
        total = math.fsum(math.exp(min(value, 1.0)) for value in table.values())
        too_small = vocabulary is not None and max(table.values()) < -math.log(vocabulary) - 1
        if total > 1 + ROUNDING or too_small:
            raise NotLogprobs.of(
                "base_url",
                f"the server's log probs do not come from a softmax ({shown(table)}); start vLLM "
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
        thinking_token_budget=0,
        thought_marks=marks,
    )
    row = await _or_none(_answered(server, form, marks.start, ended))
    return row is not None and row.token_ids == marks.end


async def _takes_adapters(server: Server) -> bool:
    """Whether the server has the routes of adapters, which refuse one without a name."""
    try:
        await server.post_text(LOAD, {"lora_name": "", "lora_path": ""})
    except AccessRefused:
        raise
    except PromptError:  # a 400
        return True
    except ConfigError as refusal:  # a 400 about a field, or a 404
        return refusal.key is not None
    except RequestFailure:
        return False
    return True


async def _find_generate(
    server: Server, config: Config, model: ModelInfo, ids: list[int]
) -> Findings:
    """Look for the route /generate of SGLang's server."""
    root = server.access.base_url.removesuffix("/v1")
    one = {"text": PROBE, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    answer = await server.ask(f"{root}/generate", one)
    if not answer.get("output_ids"):
        raise ConfigError("/generate returns no output_ids")
    weights = await _weights_folder(server, root, config)
    supports = SGLANG_SERVER_MODE.supports - (set() if weights else {"update_weights"})
    tokens = (answer.get("meta_info") or {}).get("prompt_tokens")
    return Findings(GenerateForm(f"{root}/generate"), supports, weights, tokens)


async def _weights_folder(server: Server, root: str, config: Config) -> WeightsFolder | None:
    """Ask SGLang's server for its model; None if it is another one's or on another machine."""
    if not _on_this_machine(root):
        return None
    about = await _or_none(server.look(f"{root}/model_info"))
    if not isinstance(about, dict) or "model_path" not in about:
        return None
    path = str(about["model_path"])
    folder = path if Path(path).is_dir() else str(config.tokenizer_path)
    return WeightsFolder(root, folder, config.trust_remote_code, weight_version(about))


def _on_this_machine(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
