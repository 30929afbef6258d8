"""From a call's keywords to the sampling parameters of each request.

In: the keywords of `generate` (`GenerateParams`), over the config's values. Out: a `Sampling`,
complete and checked: what SGLang lets pass and then dies of or ignores is refused here, by name.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from _inf.config import Rollout
from _inf.config.schema import MOST_SAMPLES
from _inf.errors import ConfigError, did_you_mean, shown
from _inf.request.grammar import json_schema_text, regex_text
from _inf.request.values import (
    MOST_INT32,
    count,
    flag,
    logit_bias,
    number,
    stop_ids,
    stop_strings,
    template_kwargs,
    top_k,
)
from _inf.tools.definition import as_tools
from _inf.types import Tool, TurnOptions

MOST_SEED = 2**63
# From one prompt's seed to the next one's, where one seed was given for all: an odd number (2**64
# over the golden ratio), so that no two prompts and no two near seeds meet.
SEED_STEP = 0x9E3779B97F4A7C15
# SGLang takes a lower temperature for greedy (`sampling_params.py`), with log probs at 1.
GREEDY_BELOW = 1e-6

Method = TypeVar("Method", bound=Callable[..., Any])

# One value, or a list with one a prompt.
Floats: TypeAlias = "float | Sequence[float | None] | None"
Ints: TypeAlias = "int | Sequence[int | None] | None"
Flags: TypeAlias = "bool | Sequence[bool | None] | None"


class GenerateParams(TypedDict, total=False):
    """The keywords of `generate`; `None` means what the config says."""

    temperature: Floats
    top_p: Floats
    top_k: Ints
    min_p: Floats
    max_tokens: Ints
    min_tokens: Ints
    do_sample: Flags
    n: int | None
    stop: str | Sequence[str] | Sequence[Sequence[str] | None] | None
    stop_token_ids: Sequence[int] | Sequence[Sequence[int] | None] | None
    seed: Ints
    presence_penalty: Floats
    frequency_penalty: Floats
    repetition_penalty: Floats
    ignore_eos: Flags
    logit_bias: Mapping[Any, float] | Sequence[Mapping[Any, float] | None] | None
    json_schema: Mapping[str, Any] | str | Sequence[Mapping[str, Any] | str | None] | None
    regex: str | Sequence[str | None] | None
    tools: Sequence[Any] | None
    tools_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
    interaction_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
    max_tokens_per_turn: Ints
    chat_template_kwargs: dict[str, Any] | None
    truncate_prompt: Literal["left", "right"] | None
    skip_special_tokens: bool | None
    logprobs: int | None
    prompt_logprobs: bool | None
    timeout: float | None
    progress: bool | None


def names_keywords(method: Method) -> Method:
    """Put the names of `GenerateParams`, which type checkers read, into the signature too, which
    help(), Jupyter and IPython read."""
    signature = inspect.signature(method)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    keyword = functools.partial(
        inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY, default=None
    )
    named = [keyword(name) for name in GenerateParams.__annotations__]
    vars(method)["__signature__"] = signature.replace(parameters=[*own, *named])
    return method


# One value for the whole call; every other parameter also takes a list, one element a prompt.
PER_CALL = (
    "n",
    "tools",
    "chat_template_kwargs",
    "truncate_prompt",
    "skip_special_tokens",
    "logprobs",
    "prompt_logprobs",
    "timeout",
    "progress",
)
# verl's, for each tool of a row.
TOOL_KWARGS = ("create_kwargs", "execute_kwargs", "calc_reward_kwargs", "release_kwargs")
# A list is already one prompt's value: one a prompt is a list of lists.
LISTS = ("stop", "stop_token_ids")
# What leaves tokens out, and the value that leaves out none.
FILTERS = {"top_p": 1.0, "top_k": -1, "min_p": 0.0}
ASK_TO_SAMPLE = ("temperature", "seed", *FILTERS)


@dataclasses.dataclass(frozen=True)
class Sampling:
    """A call's parameters, resolved. `requests` are each prompt's, under SGLang's names."""

    n: int
    requests: list[dict[str, Any]]
    skip_special_tokens: bool
    chat_template_kwargs: dict[str, Any]
    prompt_logprobs: bool
    timeout: float | None
    progress: bool | None
    tools: list[Tool] | None = None  # None: the config's
    turns: list[TurnOptions] = dataclasses.field(default_factory=list)
    truncate_prompt: Literal["left", "right"] | None = None  # None: the config's

    @property
    def greedy(self) -> bool:
        """Whether every prompt takes the likeliest token always."""
        return all(request["temperature"] == 0 for request in self.requests)

    @property
    def top_logprobs(self) -> bool:
        """Whether the likeliest tokens of each place are asked for."""
        return any("top_logprobs_num" in request for request in self.requests)

    @property
    def same_samples(self) -> str:
        """Why a prompt's `n` rows would all be the same; empty where they differ."""
        likeliest = [r["temperature"] == 0 or r["top_k"] == 1 for r in self.requests]
        if self.n == 1 or True not in likeliest:
            return ""
        return (
            f"n: the {self.n} samples of prompt {likeliest.index(True)} are all the same, because "
            "it is answered greedily; give a temperature above 0, or n=1."
        )

    @property
    def max_tokens(self) -> list[int]:
        """Tokens to generate at most, a prompt."""
        return [request["max_new_tokens"] for request in self.requests]

    def samples(self) -> Iterator[dict[str, Any]]:
        """Each row's request, prompt-major; a seed gives each of a prompt's `n` samples its own."""
        for request in self.requests:
            for sample in range(self.n):
                seed = request.get("custom_params", {}).get("seed")
                if seed is None:
                    yield dict(request)
                else:
                    custom = {**request["custom_params"], "seed": derived_seed(seed, sample)}
                    yield {**request, "custom_params": custom}


def derived_seed(seed: int, sample: int) -> int:
    """Sample 0's is the seed itself, so that a row's own seed, alone, gives that row again."""
    if sample == 0:
        return seed
    digest = hashlib.blake2b(f"{seed} {sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % MOST_SEED


def prompt_seed(seed: int, index: int) -> int:
    """Of one seed for many prompts, the prompt's at `index`; the first one's is the seed itself."""
    return (seed + index * SEED_STEP) % MOST_SEED


def check_params(params: Mapping[str, Any], config: Rollout) -> None:
    """Refuse keywords of a call that no engine would take: what can be known without one.

    Raises what `resolve` does; the vocabulary is not known, and any token id passes.
    """
    resolve(params, config, 0, (), MOST_INT32)


def resolve(
    params: Mapping[str, Any],
    config: Rollout,
    prompts: int,
    eos_token_ids: Collection[int],
    vocabulary: int,
) -> Sampling:
    """Check the keywords of a call with that many `prompts` and fill them up from `config`.

    `eos_token_ids` end an answer unless `ignore_eos`; they are sent as stop ids, because the engine
    itself knows only those of `config.json` or of `generation_config.json`, not of both.
    """
    for name in params:
        if name not in GenerateParams.__annotations__:
            hint = did_you_mean(name, GenerateParams.__annotations__)
            raise ConfigError(f"{name}: generate() has no such parameter{hint or '.'}")
    given = {name: value for name, value in params.items() if value is not None}
    requests = _requests(given, config, prompts, sorted(eos_token_ids), vocabulary)
    if prompt_logprobs := flag(given, "prompt_logprobs", False):
        requests = [{**request, "logprob_start_len": 0} for request in requests]
    if likeliest := count(given, "logprobs", 0, least=0, below=vocabulary + 1):
        requests = [{**request, "top_logprobs_num": likeliest} for request in requests]
    return Sampling(
        n=count(given, "n", config.n, below=MOST_SAMPLES + 1),
        requests=requests,
        skip_special_tokens=flag(given, "skip_special_tokens", True),
        chat_template_kwargs=template_kwargs(given.get("chat_template_kwargs", {})),
        prompt_logprobs=prompt_logprobs,
        timeout=_timeout(given),
        progress=flag(given, "progress", False) if "progress" in given else None,
        tools=as_tools(given["tools"]) if "tools" in given else None,
        turns=_turns(given, prompts),
        truncate_prompt=_truncate_side(given),
    )


def _turns(given: Mapping[str, Any], prompts: int) -> list[TurnOptions]:
    names = [field.name for field in dataclasses.fields(TurnOptions)]
    own: list[dict[str, Any]] = [{} for _ in range(max(1, prompts))]
    for name in names:
        value: Any = given.get(name)
        values: Any = value if _is_per_prompt(name, value) else [value] * len(own)
        if values is value and len(values) != prompts:
            raise ConfigError(f"{name}: a list of {len(values)} values for {prompts} prompts.")
        for index, each in enumerate(values):
            if each is not None:
                own[index][name] = _turn_value(name, each)
    return [TurnOptions(**each) for each in own]


def _turn_value(name: str, value: Any) -> Any:
    if name == "max_tokens_per_turn":
        return count({name: value}, name, 1)
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{name}: {shown(value)} is not a mapping of names to values.")
    for tool, kwargs in value.items() if name == "tools_kwargs" else ():
        if not isinstance(kwargs, Mapping):
            raise ConfigError(f"{name}.{tool}: {shown(kwargs)} is not a mapping.")
        for key in kwargs:
            if key not in TOOL_KWARGS:
                hint = did_you_mean(shown(key), TOOL_KWARGS)
                raise ConfigError(
                    f"{name}.{tool}: {shown(key)} is none of {', '.join(TOOL_KWARGS)}{hint or '.'}"
                )
    return dict(value)


def _requests(
    given: Mapping[str, Any], config: Rollout, prompts: int, eos: list[int], vocabulary: int
) -> list[dict[str, Any]]:
    apart = (*PER_CALL, *(field.name for field in dataclasses.fields(TurnOptions)))
    shared = {name: value for name, value in given.items() if name not in apart}
    listed = {name: value for name, value in shared.items() if _is_per_prompt(name, value)}
    for name, values in listed.items():
        if len(values) != prompts:
            raise ConfigError(
                f"{name}: a list of {len(values)} values for {prompts} prompts; "
                "give one value for all, or one each."
            )
        del shared[name]
    if not listed or not prompts:  # an empty batch hides no wrong value
        return _own_seeds([_request(shared, config, eos, vocabulary)] * prompts, shared)
    requests = []
    for index in range(prompts):
        own = {name: values[index] for name, values in listed.items() if values[index] is not None}
        try:
            requests.append(_request({**shared, **own}, config, eos, vocabulary))
        except ConfigError as failure:
            raise ConfigError(f"{failure} (prompt {index})") from None
    return _own_seeds(requests, shared)


def _own_seeds(requests: list[dict[str, Any]], shared: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each prompt its own seed, where one was given for all of them."""
    if "seed" not in shared:
        return requests
    return [
        {**each, "custom_params": {**custom, "seed": prompt_seed(custom["seed"], index)}}
        for index, each in enumerate(requests)
        for custom in [each["custom_params"]]
    ]


def _is_per_prompt(name: str, value: Any) -> bool:
    if not isinstance(value, list | tuple) or (name in LISTS and not value):
        return False
    return name not in LISTS or all(
        each is None or isinstance(each, list | tuple) for each in value
    )


def _request(
    given: Mapping[str, Any], config: Rollout, eos: list[int], vocabulary: int
) -> dict[str, Any]:
    """One prompt's parameters under SGLang's names."""
    ignore_eos = flag(given, "ignore_eos", config.ignore_eos)
    own_ids = stop_ids(given.get("stop_token_ids", []), vocabulary)
    request: dict[str, Any] = {
        "top_p": number(given, "top_p", config.top_p, above=0.0, most=1.0),
        "top_k": top_k(given, config.top_k),
        "min_p": number(given, "min_p", 0.0, least=0.0, most=1.0),
        "presence_penalty": number(given, "presence_penalty", 0.0, least=-2.0, most=2.0),
        "frequency_penalty": number(given, "frequency_penalty", 0.0, least=-2.0, most=2.0),
        "max_new_tokens": count(given, "max_tokens", config.response_length),
        "min_new_tokens": count(given, "min_tokens", 0, least=0),
        "ignore_eos": ignore_eos,
        "stop_token_ids": own_ids if ignore_eos else sorted({*own_ids, *eos}),
        "stop": stop_strings(given.get("stop", [])),
        **_grammar(given),
    }
    if request["min_new_tokens"] > request["max_new_tokens"]:
        raise ConfigError(
            f"min_tokens: {request['min_new_tokens']} is above max_tokens, "
            f"{request['max_new_tokens']}."
        )
    asked = {n: request[n] for n in FILTERS if n in given and request[n] != FILTERS[n]}
    custom = _custom_params(given)
    if "seed" in custom:
        asked["seed"] = custom["seed"]
    request["temperature"] = _temperature(given, config, asked)
    if biases := logit_bias(given.get("logit_bias", {}), vocabulary):
        request["logit_bias"] = biases
    return {**request, "custom_params": custom} if custom else request


def _custom_params(given: Mapping[str, Any]) -> dict[str, Any]:
    """What SGLang itself does not serve (`_inf.backends.verl.child.scheduler`)."""
    custom: dict[str, Any] = {}
    penalty = number(given, "repetition_penalty", 1.0, least=1e-6)
    if penalty != 1.0:
        custom["repetition_penalty"] = penalty
    if "seed" in given:
        custom["seed"] = count(given, "seed", 0, least=0, below=MOST_SEED)
    return custom


def _timeout(given: Mapping[str, Any]) -> float | None:
    if "timeout" not in given:
        return None
    return number(given, "timeout", 0.0, above=0.0, most=threading.TIMEOUT_MAX)


def _grammar(given: Mapping[str, Any]) -> dict[str, str]:
    if "json_schema" in given and "regex" in given:
        raise ConfigError("regex: an answer follows one grammar, and there is a json_schema too.")
    if "json_schema" in given:
        return {"json_schema": json_schema_text(given["json_schema"])}
    if "regex" in given:
        return {"regex": regex_text(given["regex"])}
    return {}


def _temperature(given: Mapping[str, Any], config: Rollout, asked: Mapping[str, Any]) -> float:
    """0 is greedy, whatever else is `asked`: no filter leaves the likeliest token out.

    What a call asks for wins over the config's `do_sample: false`, and not over the call's own, but
    for a temperature of 0, which agrees with it.
    """
    temperature = number(given, "temperature", config.temperature, least=0.0)
    if temperature < GREEDY_BELOW:
        temperature = 0.0
    said = "temperature" in given
    if flag(given, "do_sample", config.do_sample) or (said and temperature == 0):
        return temperature
    if said:
        asked = {"temperature": temperature, **asked}
    if "do_sample" in given and asked:
        name, value = next(iter(asked.items()))
        raise ConfigError(
            f"do_sample: False means greedy, but {name}={value} was asked for too; drop one of the "
            "two."
        )
    return temperature if asked else 0.0


def _truncate_side(given: Mapping[str, Any]) -> Literal["left", "right"] | None:
    value = given.get("truncate_prompt")
    if value is None:
        return None
    if isinstance(value, str) and value in ("left", "right"):
        return "left" if value == "left" else "right"
    raise ConfigError(f"truncate_prompt: {shown(value)} is neither 'left' nor 'right'.")
