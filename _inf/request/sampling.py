"""Turns a call's keywords into the sampling parameters of each request.

In: the keywords of `generate` (`GenerateParams`), which override the config. Out: a `Sampling`,
complete and checked: values that SGLang would accept and then ignore or die of are refused here.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, cast

from _inf.config import Rollout
from _inf.config.schema import MOST_SAMPLES
from _inf.errors import ConfigError, did_you_mean, shown
from _inf.request.grammar import json_schema_text, regex_text
from _inf.request.keywords import LISTS, PER_CALL, GenerateParams
from _inf.request.seeds import MOST_SEED, derived_seed, prompt_seed
from _inf.request.values import (
    MOST_INT32,
    count,
    flag,
    flag_or_count,
    logit_bias,
    mapping,
    number,
    stop_ids,
    stop_strings,
    template_kwargs,
    top_k,
)
from _inf.tools.definition import as_tools
from _inf.types import Limits, ModelInfo, SamplingParams, Side, Tool, TurnOptions

# Below it SGLang samples greedily (`sampling_params.py`), with log probs at temperature 1.
GREEDY_BELOW = 1e-6
# verl's keyword arguments for each tool of a row.
TOOL_KWARGS = ("create_kwargs", "execute_kwargs", "calc_reward_kwargs", "release_kwargs")
# Used where no model is known: any token id is accepted, and none ends an answer.
ANY_MODEL = ModelInfo(None, frozenset(), Limits(0, 0, MOST_INT32))
# Parameters that exclude tokens, with the value that excludes none.
FILTERS: dict[str, float] = {"top_p": 1.0, "top_k": -1, "min_p": 0.0}
ASK_TO_SAMPLE = ("temperature", "seed", *FILTERS)
# Parameters that a report of a call leaves out at their defaults.
SHOWN_IF_USED = (
    "repetition_penalty",
    "logprobs",
    "prompt_logprobs",
    "num_beams",
    "sampling_mask",
    "return_routed_experts",
)
# A field of SGLang's `ServerArgs`.
CAPTURE_EXPERTS = "enable_return_routed_experts"


@dataclasses.dataclass(frozen=True)
class Sampling:
    """A call's resolved keywords: `params` per prompt, the other fields for the whole call."""

    n: int
    params: list[SamplingParams]
    skip_special_tokens: bool
    chat_template_kwargs: dict[str, Any]
    timeout: float | None
    progress: bool | None
    tools: list[Tool] | None = None  # None: the config's
    turns: list[TurnOptions] = dataclasses.field(default_factory=list)
    truncate_prompt: Side | None = None  # None: the config's

    @property
    def logprobs(self) -> int:
        """How many of the likeliest tokens every row reports; 0: none."""
        return max((params.logprobs for params in self.params), default=0)

    @property
    def prompt_logprobs(self) -> bool:
        """Whether the prompts' tokens are scored."""
        return self.asks("prompt_logprobs")

    def asks(self, name: str) -> bool:
        """Whether a keyword that is off by default is on."""
        return any(getattr(params, name) for params in self.params)

    @property
    def same_samples(self) -> str:
        """Why a prompt's `n` rows would all be the same; empty if they differ."""
        likeliest = [
            (params.greedy or params.top_k == 1) and params.num_beams == 1 for params in self.params
        ]
        if self.n == 1 or True not in likeliest:
            return ""
        return (
            f"n: the {self.n} samples of prompt {likeliest.index(True)} are all the same, because "
            "it is answered greedily; give a temperature above 0, or n=1."
        )

    def rows(self) -> list[SamplingParams]:
        """Return each row's parameters, prompt-major; each sample gets its own seed, or beam."""
        return [_of_sample(params, sample) for params in self.params for sample in range(self.n)]


def _of_sample(params: SamplingParams, sample: int) -> SamplingParams:
    if params.num_beams > 1:
        return dataclasses.replace(params, beam=sample)
    if params.seed is None:
        return params
    return dataclasses.replace(params, seed=derived_seed(params.seed, sample))


def greedy_unless_asked(params: dict[str, Any]) -> None:
    """Make a measurement greedy unless its keywords ask for sampling."""
    if not {"do_sample", *ASK_TO_SAMPLE} & params.keys():
        params["temperature"] = 0.0


def check_params(params: Mapping[str, Any], config: Rollout) -> None:
    """Refuse keywords that are wrong for every engine, without starting one.

    Raises as `resolve` does; without a vocabulary, any token id is accepted.
    """
    resolve(params, config, 0, ANY_MODEL)


def effective_params(params: Mapping[str, Any], rollout: Rollout) -> dict[str, Any]:
    """Return the value of each sampling keyword of `generate`: `params`, else the config's."""
    resolved = vars(resolve(params, rollout, 1, ANY_MODEL).params[0])
    if most := resolved["top_prompt_logprobs"]:
        resolved = resolved | {"prompt_logprobs": most}
    return {
        name: value
        for name in GenerateParams.__annotations__
        if (value := resolved.get(name)) not in ([], {}, None)
        and not (name in SHOWN_IF_USED and value == getattr(SamplingParams, name))
    }


def resolve(params: Mapping[str, Any], config: Rollout, prompts: int, model: ModelInfo) -> Sampling:
    """Check the keywords of a call with that many `prompts` and fill them up from `config`.

    The model's EOS ids end an answer unless `ignore_eos`; they are sent as stop ids, because an
    engine itself reads only `config.json` or `generation_config.json`, not both.
    """
    for name in params:
        if name not in GenerateParams.__annotations__:
            hint = did_you_mean(name, GenerateParams.__annotations__)
            raise ConfigError(f"{name}: generate() has no such parameter{hint or '.'}")
    given = {name: value for name, value in params.items() if value is not None}
    shared = {name: value for name, value in given.items() if name not in PER_CALL}
    listed = {name: value for name, value in shared.items() if _is_per_prompt(name, value)}
    for name, values in listed.items():
        if len(values) != prompts:
            raise ConfigError(
                f"{name}: a list of {len(values)} values for {prompts} prompts; "
                "give one value for all, or one per prompt."
            )
        del shared[name]
    same = not listed or not prompts  # checked once, also for an empty batch
    resolved = []
    for index in range(1 if same else prompts):
        own = {name: values[index] for name, values in listed.items() if not same}
        own = {**shared, **{name: value for name, value in own.items() if value is not None}}
        try:
            resolved.append((_params(given, own, config, model), _turn_options(own)))
        except ConfigError as failure:
            raise ConfigError(str(failure) if same else f"{failure} (prompt {index})") from None
    all_params = [each for each, _ in resolved] * (prompts if same else 1)
    if "seed" in shared:
        all_params = [
            dataclasses.replace(each, seed=prompt_seed(each.seed or 0, index))
            for index, each in enumerate(all_params)
        ]
    return Sampling(
        n=_samples(given, config, resolved[0][0].num_beams),
        params=all_params,
        skip_special_tokens=flag(given, "skip_special_tokens", True),
        chat_template_kwargs=template_kwargs(given),
        timeout=number(given, "timeout", None, above=0.0, most=threading.TIMEOUT_MAX),
        progress=flag(given, "progress", None),
        tools=as_tools(given["tools"]) if "tools" in given else None,
        turns=[turns for _, turns in resolved] * (max(1, prompts) if same else 1),
        truncate_prompt=_truncate_side(given),
    )


def _samples(given: Mapping[str, Any], config: Rollout, num_beams: int) -> int:
    n = count(given, "n", config.n, most=MOST_SAMPLES)
    if 1 < num_beams < n:
        raise ConfigError(
            f"num_beams: {num_beams} beams are fewer than the n={n} rows of a prompt."
        )
    return n


def _turn_options(given: Mapping[str, Any]) -> TurnOptions:
    tools = mapping(given, "tools_kwargs")
    for tool in tools:
        for key in mapping(tools, tool, "tools_kwargs."):
            if key not in TOOL_KWARGS:
                hint = did_you_mean(key, TOOL_KWARGS)
                raise ConfigError(
                    f"tools_kwargs.{tool}: {shown(key)} is none of {', '.join(TOOL_KWARGS)}"
                    f"{hint or '.'}"
                )
    return TurnOptions(
        max_tokens_per_turn=count(given, "max_tokens_per_turn", None),
        tools_kwargs=tools,
        interaction_kwargs=mapping(given, "interaction_kwargs"),
    )


def _is_per_prompt(name: str, value: object) -> bool:
    if not isinstance(value, list | tuple) or (name in LISTS and not value):
        return False
    return name not in LISTS or all(
        each is None or isinstance(each, list | tuple) for each in value
    )


def _params(
    call: Mapping[str, Any], given: Mapping[str, Any], config: Rollout, model: ModelInfo
) -> SamplingParams:
    """Return one prompt's parameters. `call`: the keywords of the whole call."""
    vocabulary = model.limits.vocabulary
    ignore_eos = flag(given, "ignore_eos", config.ignore_eos)
    own_ids = stop_ids(given, vocabulary)
    if "json_schema" in given and "regex" in given:
        raise ConfigError(
            "regex: an answer can follow one grammar only, and json_schema is set too."
        )
    num_beams = count(call, "num_beams", 1, most=vocabulary)
    of_prompt = flag_or_count(call, "prompt_logprobs", most=vocabulary)
    for name in ("json_schema", "regex"):
        if num_beams > 1 and name in given:
            raise ConfigError(f"num_beams: beams follow no grammar; leave {name} out.")
    params = SamplingParams(
        max_tokens=count(given, "max_tokens", config.response_length),
        min_tokens=count(given, "min_tokens", 0, least=0),
        top_p=number(given, "top_p", config.top_p, above=0.0, most=1.0),
        top_k=top_k(given, config.top_k),
        min_p=number(given, "min_p", 0.0, least=0.0, most=1.0),
        presence_penalty=number(given, "presence_penalty", 0.0, least=-2.0, most=2.0),
        frequency_penalty=number(given, "frequency_penalty", 0.0, least=-2.0, most=2.0),
        repetition_penalty=number(given, "repetition_penalty", 1.0, least=1e-6),
        logit_bias=logit_bias(given, vocabulary),
        ignore_eos=ignore_eos,
        stop_token_ids=own_ids if ignore_eos else sorted({*own_ids, *model.eos_token_ids}),
        stop=stop_strings(given),
        seed=count(given, "seed", None, least=0, most=MOST_SEED - 1),
        json_schema=json_schema_text(given["json_schema"]) if "json_schema" in given else None,
        regex=regex_text(given["regex"]) if "regex" in given else None,
        logprobs=count(call, "logprobs", 0, least=0, most=vocabulary),
        prompt_logprobs=of_prompt is not False,
        top_prompt_logprobs=0 if isinstance(of_prompt, bool) else of_prompt,
        sampling_mask=flag(call, "sampling_mask", False),
        return_routed_experts=flag(call, "return_routed_experts", False),
        num_beams=num_beams,
    )
    if params.min_tokens > params.max_tokens:
        raise ConfigError(
            f"min_tokens: {params.min_tokens} is above max_tokens, {params.max_tokens}."
        )
    params = dataclasses.replace(params, temperature=_temperature(given, config, params))
    _check_sampling_mask(params)
    server = config.engine_kwargs.get("sglang") or {}
    if params.return_routed_experts and not server.get(CAPTURE_EXPERTS):
        raise ConfigError(
            f"return_routed_experts: rollout.engine_kwargs.sglang.{CAPTURE_EXPERTS} must be true "
            "when the engine starts, and the model must have experts."
        )
    return params


def _check_sampling_mask(params: SamplingParams) -> None:
    """Refuse a mask of what is not sampled, and one of the whole vocabulary."""
    if not params.sampling_mask:
        return
    if params.greedy:
        raise ConfigError("sampling_mask: a greedy answer is not sampled; give a temperature.")
    if all(getattr(params, name) == neutral for name, neutral in FILTERS.items()):
        raise ConfigError(
            "sampling_mask: without top_k, top_p or min_p every token is left, and the log probs "
            "over them are `logprobs`; set a filter, or leave sampling_mask out."
        )
    if params.logprobs:
        raise ConfigError("sampling_mask: logprobs is set too; leave one of the two out.")


def _temperature(given: Mapping[str, Any], config: Rollout, params: SamplingParams) -> float:
    """Return the temperature; 0 is greedy with any filter, since none excludes the likeliest token.

    A call's sampling keywords override `do_sample: false` of the config. In one call with
    `do_sample=False` or `num_beams` they are an error, except a temperature of 0, which means the
    same.
    """
    temperature = number(given, "temperature", config.temperature, least=0.0)
    if temperature < GREEDY_BELOW:
        temperature = 0.0
    named, beams = "temperature" in given, params.num_beams > 1
    sample = flag(given, "do_sample", config.do_sample)
    if (sample and not beams) or (named and temperature == 0):
        return temperature
    asked = {"temperature": temperature} if named else {}
    for name, neutral in FILTERS.items():
        if name in given and (value := getattr(params, name)) != neutral:
            asked[name] = value
    if params.seed is not None:
        asked["seed"] = params.seed
    if beams and sample and "do_sample" in given:
        asked["do_sample"] = True
    if ("do_sample" in given or beams) and asked:
        name, value = next(iter(asked.items()))
        means = "num_beams: beams are not sampled" if beams else "do_sample: False means greedy"
        raise ConfigError(f"{means}, but {name}={value} is set too; leave one of the two out.")
    return temperature if asked else 0.0


def _truncate_side(given: Mapping[str, Any]) -> Side | None:
    value = given.get("truncate_prompt")
    if value is None or (isinstance(value, str) and value in ("left", "right")):
        return cast("Side | None", value)
    raise ConfigError(f"truncate_prompt: {shown(value)} is neither 'left' nor 'right'.")
