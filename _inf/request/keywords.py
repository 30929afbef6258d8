"""The keywords of `generate`: their documentation, their types, and a row for each in `KEYWORDS`,
of which checks, signatures, options, and the keys of requests and batch lines are made."""

from __future__ import annotations

import dataclasses
import inspect
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from _inf.config.schema import MAX_SAMPLES
from _inf.errors import at_fault
from _inf.request import values
from _inf.request.grammar import json_schema_text, regex_text
from _inf.request.seeds import MAX_SEED
from _inf.tools.definition import as_tools
from _inf.types import SamplingParams, Side, TurnOptions

Method = TypeVar("Method", bound=Callable[..., Any])

# One value, or a list with one per prompt.
Floats: TypeAlias = "float | Sequence[float | None] | None"
Ints: TypeAlias = "int | Sequence[int | None] | None"
Flags: TypeAlias = "bool | Sequence[bool | None] | None"
Kwargs: TypeAlias = "Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None"


class GenerateParams(TypedDict, total=False):
    """Keywords, where None means what the config says. One value, or a list with one per prompt
    (`stop`, `stop_token_ids`: a list of lists):
        temperature: 0 is greedy.
        top_p: In (0, 1].
        top_k: -1: all tokens.
        min_p: In [0, 1].
        do_sample: Sample, or decode greedily. False is the default of the embedded config. A
            temperature above 0, a filter or a seed turns sampling on; together with
            `do_sample=False` in one call they are refused. With temperature 0, filters and seeds
            change nothing.
        max_tokens: The most tokens to generate. They count per row, over all its turns.
        min_tokens: The fewest tokens to generate. No EOS, stop id or stop string comes before (as
            Transformers).
        stop: A string that ends the answer. Or several: it ends before the first one found.
        stop_token_ids: Ids that end an answer, besides the model's own EOS ids.
        ignore_eos: Continue after EOS. `stop` and `stop_token_ids` still count.
        presence_penalty, frequency_penalty: In [-2, 2], over generated tokens (as OpenAI).
        repetition_penalty: Above 0; 1 is none. Over prompt and generated tokens (as Transformers).
        logit_bias: Added to logits: {"TOKEN ID": NUMBER}. Before all else; in [-100, 100].
        seed: Gives the same answer each time. The same tokens, in any batch (float32 on a CPU);
            with one seed for all, prompt i has (seed + i * 0x9E3779B97F4A7C15) % 2**63.
        json_schema: What the answer must match, as JSON. A dict, or JSON text (docs/grammars.md).
        regex: What the answer must match. The whole answer does (docs/grammars.md).
        tools_kwargs: verl's, such as `{"calculator": {"create_kwargs": {}}}`. The prompt has only
            the tools that it names; without it, all of the call.
        interaction_kwargs: verl's, such as `{"name": "gsm8k", "ground_truth": "7"}`.
        max_tokens_per_turn: Like max_tokens, per turn.
        agent_loop: verl's agent loop that answers. A name, a class, or `{"_target_": ...}`
            (docs/agent_loops.md). Its requests have max_tokens each.
        agent_kwargs: Columns of the row, for the agent loop's run(). As verl gives them.
        environment_factory: Makes an environment for each row, whose methods are its tools. As in
            TRL; a dict of them is chosen from by the column `environment` (docs/environments.md).
        environment_kwargs: Columns of the row, for the environment's reset(). Beside `prompt`.
        adapter: The name of the LoRA adapter that answers. One of `engine.adapters`
            (docs/adapters.md).
    One value for the whole call:
        n: Samples per prompt. With a warning if they are greedy and so all the same.
        num_beams: Beam search, on rollout.name hf. Above 1 the `n` rows of a prompt are the best of
            so many beams; without sampling keywords, grammars, streams and tools
            (docs/backends.md).
        tools: Schemas, verl tools or Python functions. verl tools and functions are run inside the
            rollout, and a call of a schema ends the row (docs/tools.md). [] means none.
        chat_template_kwargs: For the chat template. Such as `{"enable_thinking": False}`.
        truncate_prompt: left or right: where a too long prompt is cut. That is one above
            `prompt_length`.
        skip_special_tokens: Leave special tokens out of the text. False keeps them, and the stop
            token.
        logprobs: How many of the likeliest tokens to return per position (`top_logprobs`).
        prompt_logprobs: True: also score the prompt's tokens; an int: also return so many of the
            likeliest ones per position (`top_prompt_logprobs`).
        sampling_mask: Also return the tokens that top_k, top_p and min_p left, and log probs over
            them (docs/training.md).
        return_routed_experts: Also return which experts of a MoE model each token used
            (docs/parity.md).
        timeout: Seconds for the answer. After them the call is aborted in the engine.
        progress: A bar. By default on a terminal or in a notebook, if the call takes long.
    """

    temperature: Floats
    top_p: Floats
    top_k: Ints
    min_p: Floats
    do_sample: Flags
    max_tokens: Ints
    min_tokens: Ints
    stop: str | Sequence[str] | Sequence[Sequence[str] | None] | None
    stop_token_ids: Sequence[int] | Sequence[Sequence[int] | None] | None
    ignore_eos: Flags
    presence_penalty: Floats
    frequency_penalty: Floats
    repetition_penalty: Floats
    logit_bias: Mapping[Any, float] | Sequence[Mapping[Any, float] | None] | None
    seed: Ints
    json_schema: Mapping[str, Any] | str | Sequence[Mapping[str, Any] | str | None] | None
    regex: str | Sequence[str | None] | None
    tools_kwargs: Kwargs
    interaction_kwargs: Kwargs
    max_tokens_per_turn: Ints
    agent_loop: str | type | Mapping[str, Any] | Sequence[Any] | None
    agent_kwargs: Kwargs
    environment_factory: Callable[[], Any] | Mapping[str, Any] | Sequence[Any] | None
    environment_kwargs: Kwargs
    adapter: str | Sequence[str | None] | None
    n: int | None
    num_beams: int | None
    tools: Sequence[Any] | None
    chat_template_kwargs: dict[str, Any] | None
    truncate_prompt: Literal["left", "right"] | None
    skip_special_tokens: bool | None
    logprobs: int | None
    prompt_logprobs: bool | int | None
    sampling_mask: bool | None
    return_routed_experts: bool | None
    timeout: float | None
    progress: bool | None


@dataclasses.dataclass(frozen=True)
class Keyword:
    """A keyword besides its type and its documentation, whose first sentence is the option's help.

    check: takes the name, a value and, with of_tokens, the vocabulary's size; returns plain Python
    types or raises `ConfigError`. kind: the type in a request's body (unless not in_body), and of
    the option, which has the last of a union; None: in neither. default: the option's, as the help
    shows it; None: no option. feature: what a backend must support. filters: whether it excludes
    tokens from being sampled. one_turn: refused beside tools and interactions. not_streamed: why a
    stream refuses it.
    """

    check: Callable[..., Any]
    kind: Any = None
    default: str | None = None
    feature: str = ""
    of_tokens: bool = False
    filters: bool = False
    in_body: bool = True
    one_turn: bool = False
    not_streamed: str = ""


MORE = "more_sampling"  # the feature of parameters that OpenAI's API lacks
Json: TypeAlias = dict[str, Any]
_fraction = partial(values.number, most=1.0)
_penalty = partial(values.number, least=-2.0, most=2.0)
_seed = partial(values.count, least=0, most=MAX_SEED - 1)
_seconds = partial(values.number, above=0.0, most=threading.TIMEOUT_MAX)
_extra = partial(
    Keyword, values.flag, one_turn=True, not_streamed="stream() does not give it; use generate()"
)

PER_PROMPT: Mapping[str, Keyword] = {
    "temperature": Keyword(
        partial(values.number, least=0.0), float, "rollout.temperature; 0 when greedy"
    ),
    "top_p": Keyword(partial(_fraction, above=0.0), float, "rollout.top_p", filters=True),
    "top_k": Keyword(values.top_k, int, "rollout.top_k", MORE, filters=True),
    "min_p": Keyword(partial(_fraction, least=0.0), float, "0", MORE, filters=True),
    "do_sample": Keyword(values.flag, bool, "rollout.do_sample"),
    "max_tokens": Keyword(values.count, int, "rollout.response_length"),
    "min_tokens": Keyword(partial(values.count, least=0), int, "0", MORE),
    "stop": Keyword(values.stop_strings, str | list[str], ""),
    "stop_token_ids": Keyword(
        values.stop_ids, list[int], "the model's EOS", "token_ids", of_tokens=True
    ),
    "ignore_eos": Keyword(values.flag, bool, "rollout.ignore_eos", MORE),
    "presence_penalty": Keyword(_penalty, float, "0"),
    "frequency_penalty": Keyword(_penalty, float, "0"),
    "repetition_penalty": Keyword(
        partial(values.number, least=1e-6), float, "1", "repetition_penalty"
    ),
    "logit_bias": Keyword(values.logit_bias, dict[str, float], "", "logit_bias", of_tokens=True),
    "seed": Keyword(_seed, int, "", "seed"),
    "json_schema": Keyword(
        lambda _, value: json_schema_text(value), Json | str, "", "json_schema", one_turn=True
    ),
    "regex": Keyword(lambda _, value: regex_text(value), str, "", "regex", one_turn=True),
    "tools_kwargs": Keyword(values.tools_kwargs),
    "interaction_kwargs": Keyword(
        values.mapping, feature="turn", not_streamed="stream() has one turn; use generate()"
    ),
    "max_tokens_per_turn": Keyword(
        values.count, not_streamed="stream() has one turn; use max_tokens"
    ),
    "agent_loop": Keyword(
        values.agent_loop,
        feature="agent_loop",
        not_streamed="stream() runs no agent loop; use generate(), or pass tools=[]",
    ),
    "agent_kwargs": Keyword(
        values.agent_kwargs,
        feature="agent_loop",
        not_streamed="stream() runs no agent loop; use generate()",
    ),
    "environment_factory": Keyword(
        values.factories, feature="turn", not_streamed="stream() has one turn; use generate()"
    ),
    "environment_kwargs": Keyword(
        values.mapping, feature="turn", not_streamed="stream() has one turn; use generate()"
    ),
    "adapter": Keyword(values.text, feature="adapters"),
}
PER_CALL: Mapping[str, Keyword] = {
    "n": Keyword(partial(values.count, most=MAX_SAMPLES), int),
    "num_beams": Keyword(
        values.count,
        int,
        "1: none",
        "beams",
        of_tokens=True,
        in_body=False,
        one_turn=True,
        not_streamed="a beam is known at its end only; use generate()",
    ),
    "tools": Keyword(lambda _, value: as_tools(value), list[Json], feature="turn"),
    "chat_template_kwargs": Keyword(values.template_kwargs, Json, "", "token_ids"),
    "truncate_prompt": Keyword(values.side, Side, "", "token_ids"),
    "skip_special_tokens": Keyword(values.flag, bool, "yes", "token_ids"),
    "logprobs": Keyword(
        partial(values.count, least=0), feature="top_logprobs", of_tokens=True, one_turn=True
    ),
    "prompt_logprobs": Keyword(
        values.flag_or_count,
        feature="prompt_logprobs",
        of_tokens=True,
        one_turn=True,
        not_streamed="stream() does not give them; use generate()",
    ),
    "sampling_mask": _extra(feature="sampling_mask"),
    "return_routed_experts": _extra(feature="routed_experts"),
    "timeout": Keyword(_seconds, float, "", in_body=False),
    "progress": Keyword(values.flag),
}
KEYWORDS: Mapping[str, Keyword] = {**PER_PROMPT, **PER_CALL}
# The values that change nothing.
NEUTRAL: Mapping[str, Any] = {
    **vars(SamplingParams(max_tokens=1)),
    **vars(TurnOptions()),
    **{"stop": [], "stop_token_ids": [], "tools": []},
    **{"chat_template_kwargs": {}, "skip_special_tokens": True},
}


def checked(name: str, value: object, vocabulary: int = values.MAX_INT32) -> Any:
    """Return a keyword's value in plain Python types, or raise `ConfigError`."""
    keyword = KEYWORDS[name]
    more = {"vocabulary": vocabulary} if keyword.of_tokens else {}
    with at_fault(key=name):
        return keyword.check(name, value, **more)


def first_sentences() -> dict[str, str]:
    """The first sentence on each keyword in the docstring of `GenerateParams`."""
    text = inspect.cleandoc(GenerateParams.__doc__ or "")
    entries = re.findall(r"^ {4}(\w[\w, ]*): (.+?\.)\s", text + "\n", re.MULTILINE | re.DOTALL)
    return {name: " ".join(help.split()) for names, help in entries for name in names.split(", ")}


def names_keywords(method: Method) -> Method:
    """Add `GenerateParams`, which type checkers read, to the signature and the docstring, which
    help(), Jupyter and IPython read."""
    signature = inspect.signature(method)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    named = [inspect.Parameter(name, keyword_only, default=None) for name in KEYWORDS]
    keywords = inspect.cleandoc(GenerateParams.__doc__ or "")
    method.__doc__ = f"{inspect.cleandoc(method.__doc__ or '')}\n\n{keywords}"
    vars(method)["__signature__"] = signature.replace(parameters=[*own, *named])
    return method
