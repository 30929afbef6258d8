"""Turns the numbers of a check into findings (what differs, and its likely cause) by simple rules.
docs/parity.md says what each rule can and cannot tell, and has the measurements for the bounds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from _inf.apps.check.differences import Pairs, distances, temperature_between

FLOAT32 = {"logprobs_diff_max": 1e-3}
HALF = {"token_mult_prob_error": 1.02}
ROUNDING = 0.08  # mean differences up to here were seen from half precision alone
ITSELF = ("prefill_decode/", "prefix_reuse/", "alone_in_batch/")
IN_HALF = (
    "precision: the rollout differs from itself by as much as half precision can explain; float32 "
    "shows whether there is more"
)
# Groups of numbers, by the beginning of their names.
MEANINGS = {
    "prefill_decode/": "the rollout scores its own tokens differently: its prefill and its decode "
    "compute different numbers (attention backend, KV cache)",
    "alone_in_batch/": "a row's log probs depend on the other rows of its batch (kernels "
    "that change with the batch, or padding)",
    "prefix_reuse/": "stale or wrong prefix cache: rows that start from cached prefixes differ "
    "from the same rows computed from their beginning; if the weights were updated, the cache was "
    "not emptied",
    "update_weights/": "an update with the model folder's weights changes the log probs: the "
    "engine served other weights, or loads them differently",
    **{
        f"images/{kind}/": f"answers to prompts with images ({how}) differ from one pass of "
        "Transformers: look at the positions after an image, then at its encoder"
        for kind, how in (
            ("alone", "alone"),
            ("in_batch", "in a batch with text"),
            ("streamed", "streamed"),
        )
    },
    "multi_turn/": "only conversations of several turns differ: look at the ids, masks "
    "and positions of conversations",
}
# Numbers that must be 0.
ZERO = {
    "prompts/text_differs": "template: the reference's chat template renders the same messages to "
    "another text; it may leave out an earlier <think>...</think>",
    "prompts/ids_differ": "tokenizer: the reference tokenizes the same text to other ids",
    "images/ids_differ": "images: the model's processor makes other ids of the same messages",
    "images/inputs_differ": "images: the model's processor makes other inputs of the same images",
    "images/positions_differ": "images: the engine gets other positions of the same ids",
    "update_weights/cached_tokens": "stale prefix cache: after an update, prompts reuse cached "
    "results of the old weights",
}


# What a difference between rollout and reference points to.
STALE = "stale or wrong prefix cache: without cached prefixes the rollout agrees with the reference"
POSITIONS = (
    "positions or attention: tokens right after a sequence's first token, which attends only to "
    "itself, have equal log probs, and later tokens do not; look at the rotary embedding "
    "(scaling, theta), the attention mask and window, then at the weights of queries and keys"
)
PRECISION = (
    "precision: small differences of both signs, such as rounding to half precision causes; one "
    "of the two computes in another dtype, or half precision is too coarse for the model"
)
WITHOUT_ENGINE = "no simple cause: compare with a reference engine, which sees whole sequences"
WEIGHTS = (
    "weights or the model's code: the sequences differ from their first token on, and neither a "
    "temperature nor rounding explains it"
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A number of `metrics` that exceeds its bound. meaning: what differs, and the likely cause."""

    metric: str
    value: float
    allowed: float
    meaning: str


def bounds(dtype: str, threshold: float | None) -> dict[str, float]:
    """Return the allowed values, by the last part of a metric's name. threshold: the caller's bound
    of the largest difference, in place of ours."""
    if threshold is not None:
        return {"logprobs_diff_max": threshold}
    return dict(FLOAT32 if dtype == "float32" else HALF)


def findings(
    metrics: Mapping[str, float],
    allowed: Mapping[str, float],
    pairs: Pairs,
    whole: Pairs | None,
    dtype: str,
) -> list[Finding]:
    """Return all findings. pairs: the sampled tokens; whole: all tokens of the sequences, computed
    by the rollout without its prefix cache, if the reference could compute them too; dtype: the
    rollout's."""
    past = {group: _past(metrics, allowed, group) for group in ("", *MEANINGS)}
    if past["prefix_reuse/"]:
        past["prefill_decode/"] = ""  # both start from cached prefixes, of different lengths
    if past[""]:
        past["multi_turn/"] = ""  # what is off in the first turn is off in the second one too
    found = [Finding(name, metrics[name], 0, ZERO[name]) for name in ZERO if metrics.get(name)]
    for group, meaning in MEANINGS.items():
        if not past[group]:
            continue
        small = metrics.get(f"{group}logprobs_diff_mean", math.inf) <= ROUNDING
        if small and group in ITSELF and dtype != "float32":
            meaning = IN_HALF
        name = group + past[group]
        found.append(Finding(name, metrics[name], allowed[past[group]], meaning))
    if metrics.get("alone_in_batch/same_tokens", 1) == 0:  # and so no log probs to compare
        found.append(Finding("alone_in_batch/same_tokens", 0, 1, MEANINGS["alone_in_batch/"]))
    if name := past[""]:
        cause = _cause(pairs, whole)
        if past["prefix_reuse/"] and whole is not None:
            uncached = distances(whole.rollout, whole.reference)
            cause = cause if _past(uncached, allowed, "") else STALE
        found.insert(0, Finding(name, metrics[name], allowed[name], cause))
    return found


def _past(metrics: Mapping[str, float], allowed: Mapping[str, float], group: str) -> str:
    """Return the name of a group's first metric that is past its bound, without the group; or
    ""."""
    for name, most in allowed.items():
        if group + name in metrics and not metrics[group + name] <= most:  # NaN is past it
            return name
    return ""


def _cause(pairs: Pairs, whole: Pairs | None) -> str:
    scale = temperature_between(pairs)
    if scale is not None and abs(scale - 1) > 0.05:
        return (
            f"temperature: the reference's log probs are the rollout's at {scale:.2f} times its "
            "temperature"
        )
    if whole is not None and _only_after_the_first(whole):
        return POSITIONS
    if like_rounding(pairs):
        return PRECISION
    return WITHOUT_ENGINE if whole is None else WEIGHTS


def like_rounding(pairs: Pairs) -> bool:
    """Whether half precision explains the differences: they are no larger than it made them in
    docs/parity.md, and their mean no larger than chance makes it."""
    apart = pairs.difference
    chance = 4 * apart.std() / np.sqrt(len(apart))
    return bool(np.abs(apart).mean() <= ROUNDING and abs(apart.mean()) <= chance)


def _only_after_the_first(whole: Pairs) -> bool:
    """Whether the token after the first one has a hundredth of the other tokens' difference."""
    apart = np.abs(whole.difference)
    first, later = apart[whole.position == 1], apart[whole.position > 1]
    return bool(len(first) and len(later) and first.max() < 0.01 * later.mean())
