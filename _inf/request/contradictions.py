"""Which values of one prompt's keywords contradict one another."""

from __future__ import annotations

from _inf.errors import ConfigError
from _inf.request.keywords import FILTERS, NEUTRAL
from _inf.types import GRAMMARS, ModelInfo, SamplingParams


def refuse_contradictions(params: SamplingParams, model: ModelInfo) -> None:
    """Raise `ConfigError` for the first two that cannot both be followed."""
    _check_grammar(params)
    if params.min_tokens > params.max_tokens:
        raise ConfigError.of(
            "min_tokens", f"{params.min_tokens} is above max_tokens, {params.max_tokens}."
        )
    if params.sampling_mask:
        _check_sampling_mask(params)
    if (named := params.logprob_token_ids) and params.logprobs not in (0, len(named)):
        raise ConfigError.of(
            "logprobs",
            f"{params.logprobs} is not the number of logprob_token_ids, whose log probs are "
            "returned instead; leave it out.",
        )
    if params.thinking_token_budget is not None:
        _check_budget(params, model)
    if params.allowed_token_ids is not None:
        _check_allowed(params, set(params.allowed_token_ids), model)


def _check_grammar(params: SamplingParams) -> None:
    """Refuse two grammars, and beams that would have to follow one."""
    grammars = [name for name in GRAMMARS if getattr(params, name) is not None]
    if len(grammars) == 2:
        raise ConfigError.of(
            "regex", "an answer can follow one grammar only, and json_schema is set too."
        )
    if grammars and params.num_beams > 1:
        raise ConfigError.of("num_beams", f"beams follow no grammar; leave {grammars[0]} out.")


def _check_sampling_mask(params: SamplingParams) -> None:
    """Refuse a mask of what is not sampled, and one of the whole vocabulary."""
    if params.greedy:
        raise ConfigError.of("sampling_mask", "a greedy answer is not sampled; give a temperature.")
    if all(getattr(params, name) == NEUTRAL[name] for name in FILTERS):
        raise ConfigError.of(
            "sampling_mask",
            "without top_k, top_p or min_p every token is left, and the log probs "
            "over them are `logprobs`; set a filter, or leave sampling_mask out.",
        )
    for name in ("logprobs", "logprob_token_ids"):
        if getattr(params, name):
            raise ConfigError.of("sampling_mask", f"{name} is set too; leave one of the two out.")


def _check_budget(params: SamplingParams, model: ModelInfo) -> None:
    """Refuse a budget of thoughts that have no marks, or that a grammar rules out."""
    if params.constrained:
        raise ConfigError.of(
            "thinking_token_budget", "a grammar makes the answer, without a thought; leave it out."
        )
    if model.tokenizer is not None and model.thought_marks is None:
        raise ConfigError.of(
            "thinking_token_budget",
            "the marks of a thought are not known; set reasoning_parser in the config.",
        )


def _check_allowed(params: SamplingParams, left: set[int], model: ModelInfo) -> None:
    """Refuse a row that could not begin with any of the allowed tokens."""
    ends = {*params.stop_token_ids, *model.eos_token_ids} if params.min_tokens else set()
    for name, excluded in {
        "bad_words": {ids[0] for ids in params.bad_word_ids if len(ids) == 1},
        "min_tokens": ends,
    }.items():
        left = left - excluded
        if not left:
            raise ConfigError.of(name, "it leaves none of the allowed_token_ids to begin with.")
