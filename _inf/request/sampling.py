"""Turns a call's keywords, which override the config, into the sampling parameters of each row."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from _inf.config import RolloutConfig
from _inf.config.other_names import hint
from _inf.errors import ConfigError
from _inf.parts.found import PARTS
from _inf.parts.part import Part
from _inf.parts.typed import GenerateParams
from _inf.request.keywords import FILTERS, KEYWORDS, PER_PROMPT
from _inf.request.seeds import prompt_seed, sample_seed
from _inf.request.template import CONTINUED
from _inf.request.turn_keywords import TURN_KEYWORDS
from _inf.turns import TurnOptions
from _inf.types import ModelInfo, SamplingParams, Side, Tool, as_list

# Below it SGLang samples greedily (`sampling_params.py`), with log probs at temperature 1.
GREEDY_BELOW = 1e-6
ASK_TO_SAMPLE = ("temperature", *FILTERS, "seed")
NOTHING: Mapping[str, object] = MappingProxyType({})
PART_OF = {keyword: part for part in PARTS for keyword in part.keywords}


@dataclasses.dataclass(frozen=True)
class Sampling:
    """A call's resolved keywords: `params` and `values` per prompt, the other fields for the whole
    call. values: all that were given, checked; those of a call without prompts too."""

    n: int
    params: list[SamplingParams]
    values: Sequence[Mapping[str, Any]] = ()
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    chat_template: str | None = None  # None: the model's
    chat_template_kwargs: dict[str, object] = dataclasses.field(default_factory=dict)
    continue_final_message: bool = False
    timeout: float | None = None
    progress: bool | None = None
    tools: list[Tool] | None = None  # None: the config's
    truncate_prompt: Side | None = None  # None: the config's

    @functools.cached_property
    def asked(self) -> frozenset[str]:
        """The keywords with another value than the one that changes nothing, for any prompt."""
        given = (item for each in self.values for item in each.items())
        return frozenset(name for name, value in given if KEYWORDS[name].asks(value))

    @functools.cached_property
    def turns(self) -> list[TurnOptions]:
        """How each prompt's rows take their turns."""
        return [TurnOptions(**_fields_of(TurnOptions, each)) for each in self.values]

    def has_turns(self, tools: Sequence[Tool]) -> bool:
        """Whether a prompt has a keyword of rows with turns, or the model sees tools. tools: the
        config's."""
        ours = tools if self.tools is None else self.tools
        return bool(ours) or not self.asked.isdisjoint(TURN_KEYWORDS)

    @property
    def same_samples(self) -> str:
        """Why a prompt's `n` rows would all be the same; empty if they differ."""
        if self.n == 1:
            return ""
        likeliest = [
            (params.greedy or params.top_k == 1) and not any(part.greedy for part in params.parts)
            for params in self.params
        ]
        if True not in likeliest:
            return ""
        return (
            f"n: the {self.n} samples of prompt {likeliest.index(True)} are all the same, because "
            "it is answered greedily; give a temperature above 0, or n=1."
        )

    @property
    def template_kwargs(self) -> dict[str, object]:
        """What `apply_chat_template` gets besides messages and tools."""
        kwargs = dict(self.chat_template_kwargs)
        if self.chat_template is not None:
            kwargs["chat_template"] = self.chat_template
        if self.continue_final_message:
            kwargs |= {CONTINUED: True, "add_generation_prompt": False}
        return kwargs

    @property
    def text_options(self) -> dict[str, bool]:
        """How the text of an answer is made of its ids."""
        return {
            "skip_special_tokens": self.skip_special_tokens,
            "include_stop": self.include_stop_str_in_output,
        }

    @functools.cached_property
    def rows(self) -> list[SamplingParams]:
        """Each row's parameters, prompt-major. The first sample of a prompt has its seed."""
        if self.n == 1:
            return self.params
        return [_of_sample(params, sample) for params in self.params for sample in range(self.n)]


def _of_sample(params: SamplingParams, sample: int) -> SamplingParams:
    parts = tuple(part.of_sample(sample) for part in params.parts)
    return dataclasses.replace(params, seed=sample_seed(params.seed, sample), parts=parts)


def with_sampling_params(
    call: str, sampling_params: object, params: GenerateParams
) -> GenerateParams:
    """Return `params` with the fields of `sampling_params`; `call` is named in errors."""
    if sampling_params is None:
        return params
    from _inf.request.sampling_params import joined

    return joined(call, sampling_params, params)


def resolve(
    params: Mapping[str, object],
    config: RolloutConfig,
    prompts: Sequence[int],
    model: ModelInfo,
    without_tools: Mapping[str, object] = NOTHING,
) -> Sampling:
    """Check the keywords of a call and fill them up from `config`. prompts: their numbers.
    without_tools: keywords that the config gives to calls without `tools`.

    The model's EOS ids end an answer unless `ignore_eos`; they are sent as stop ids, because an
    engine itself reads only `config.json` or `generation_config.json`, not both.
    """
    given, listed = given_values(params, len(prompts))
    shared: dict[str, Any] = {} if "tools" in given else dict(without_tools)
    for name, value in given.items():
        shared[name] = KEYWORDS[name].checked(name, value, model.limits.vocabulary)
    if listed and prompts:
        values, all_params = _of_prompts(listed, shared, config, prompts, model)
    else:  # all prompts have the same, which is checked once
        values = [shared] * max(1, len(prompts))
        all_params = [_params(shared, config, model)] * len(prompts)
    if "seed" in shared:
        all_params = [
            dataclasses.replace(params, seed=prompt_seed(shared["seed"], index))
            for index, params in zip(prompts, all_params, strict=True)
        ]
    of_call = {"n": config.n, **_fields_of(Sampling, shared)}
    return Sampling(params=all_params, values=values, **of_call)


def _of_prompts(
    listed: Mapping[str, Sequence[object]],
    shared: Mapping[str, object],
    config: RolloutConfig,
    prompts: Sequence[int],
    model: ModelInfo,
) -> tuple[list[dict[str, Any]], list[SamplingParams]]:
    """All values and the parameters of each prompt, where some are listed."""
    all_values, all_params = [], []
    for place, index in enumerate(prompts):
        values = dict(shared)
        try:
            for name, of_prompts in listed.items():
                if (value := of_prompts[place]) is not None:
                    values[name] = KEYWORDS[name].checked(name, value, model.limits.vocabulary)
            all_params.append(_params(values, config, model))
        except ConfigError as failure:
            why = f"{failure} (prompt {index})"
            raise ConfigError(why, key=failure.key, index=index) from None
        all_values.append(values)
    return all_values, all_params


def _fields_of(kind: type, values: Mapping[str, object]) -> dict[str, Any]:
    return {f.name: values[f.name] for f in dataclasses.fields(kind) if f.name in values}


def given_values(
    params: Mapping[str, object], prompts: int
) -> tuple[dict[str, object], dict[str, Sequence[object]]]:
    """The keywords that have one value, and the lists of those with one per prompt; with lists in
    place of arrays."""
    given: dict[str, object] = {}
    listed: dict[str, Sequence[object]] = {}
    for name, value in params.items():
        if name not in KEYWORDS:
            raise ConfigError.of(name, f"unknown keyword{hint(name, KEYWORDS) or '.'}")
        values = as_list(value)
        if isinstance(values, list | tuple):
            of_lists = name in PER_PROMPT and PER_PROMPT[name].is_list
            value = [as_list(each) for each in values] if of_lists else values
            if name in PER_PROMPT and (not of_lists or _has_lists(value)):
                listed[name] = value
                continue
        if value is not None:
            given[name] = value
    for name, of_prompts in listed.items():
        if len(of_prompts) != prompts:
            raise ConfigError.of(
                name,
                f"a list of {len(of_prompts)} values for {prompts} prompts; "
                "give one value for all, or one per prompt.",
            )
    return given, listed


def _has_lists(values: Sequence[object]) -> bool:
    return bool(values) and all(isinstance(each, list | tuple | None) for each in values)


def _params(given: Mapping[str, Any], config: RolloutConfig, model: ModelInfo) -> SamplingParams:
    ignore_eos = given.get("ignore_eos", config.ignore_eos)
    stop_ids = {*given.get("stop_token_ids", ()), *(() if ignore_eos else model.eos_token_ids)}
    parts = parts_of(given, model)
    values = {
        "max_tokens": config.response_length,
        "top_p": config.top_p,
        "top_k": config.top_k,
        **_fields_of(SamplingParams, given),
        "temperature": _temperature(given, config, parts),
        "ignore_eos": ignore_eos,
        "stop_token_ids": sorted(stop_ids),
    }
    params = SamplingParams(**values, parts=parts)
    if params.min_tokens > params.max_tokens:
        raise ConfigError.of(
            "min_tokens", f"{params.min_tokens} is above max_tokens, {params.max_tokens}."
        )
    for part in parts:
        part.check_samples(given.get("n", config.n))
    check_contradictions(parts, params, model)
    return params


def check_contradictions(parts: Sequence[Part], params: SamplingParams, model: ModelInfo) -> None:
    """Refuse what these parts cannot be combined with."""
    for part in parts:
        for key, why in part.contradictions(params, model):
            raise ConfigError.of(key, why)


def parts_of(given: Mapping[str, object], model: ModelInfo) -> tuple[Part, ...]:
    """What a row's checked keywords ask of the parts."""
    kinds = dict.fromkeys(PART_OF[name] for name in given if name in PART_OF)
    found = [part for kind in kinds if (part := kind.asked(given, model)) is not None]
    return in_order(found)


def in_order(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts of a row as they change it one after the other."""
    return tuple(sorted(parts, key=lambda part: (part.order, type(part).__module__)))


def _temperature(given: Mapping[str, Any], config: RolloutConfig, parts: Sequence[Part]) -> float:
    """Return the temperature; 0 is greedy with any filter, since none excludes the likeliest token.

    A call's sampling keywords override `do_sample: false` of the config. In one call with
    `do_sample=False` or a part that does not sample they are an error, except a temperature of 0,
    which means the same.
    """
    temperature: float = given.get("temperature", config.temperature)
    temperature = 0.0 if temperature < GREEDY_BELOW else temperature
    greedy = next((part for part in parts if part.greedy), None)
    sample = given.get("do_sample", config.do_sample)
    if (sample and not greedy) or ("temperature" in given and temperature == 0):
        return temperature
    asked = {
        name: given[name]
        for name in ASK_TO_SAMPLE
        if name in given and KEYWORDS[name].asks(given[name])
    }
    if greedy and given.get("do_sample"):
        asked["do_sample"] = True
    if ("do_sample" in given or greedy) and asked:
        name, value = next(iter(asked.items()))
        key = next(iter(greedy.keywords)) if greedy else "do_sample"
        means = greedy.greedy if greedy else "False means greedy"
        raise ConfigError.of(
            key, f"{means}, but {name}={value} is set too; leave one of the two out."
        )
    return temperature if asked else 0.0
