"""Compares the two sides of records with each other, and each with a model's own scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from _inf.apps.check.differences import LARGEST, RATIOS, Floats, Pairs, distances
from _inf.apps.check.findings import Finding, bounds, like_rounding
from _inf.apps.check.records.answers import Answer, described, pairs_of
from _inf.apps.check.records.reading import Records
from _inf.apps.check.records.relation import ENOUGH, Relation, relation, shift_between
from _inf.apps.check.records.report import RecordsReport
from _inf.apps.check.records.sides import EQUAL, OTHER, Side
from _inf.apps.check.token_rows import as_prompt
from _inf.errors import ConfigError

if TYPE_CHECKING:
    from inf import InferenceEngine

QUANTILES, OF_SEQUENCES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99), (0.05, 0.5, 0.95)
# A drift: the last quarter of the steps has so many times the difference of the first, and it is
# at least so large (nats).
GROWN, LEAST_DRIFT = 2, 1e-3
MODEL = "the model"
AS_MODEL = "of all tokens at temperature 1, as the model scores them"
INSTEAD_OF_A_FILTER = (
    "a temperature far below the other's, weights that were trained on these very tokens, or, "
    "without a mask, zeros for tokens that were not sampled"
)
SMALL = (
    "small differences of both signs: rounding to half precision makes such ones, and so do "
    "weights that are a few updates apart"
)
UNEXPLAINED = (
    "unexplained: the differences are larger than rounding's, and their figures tell no shift, "
    "temperature or filter; look for other weights (old ones, an adapter that one side lacks), "
    "other ids, penalties, or one of those three that the figures do not tell"
)


def check_records(
    records: Records,
    *,
    engine: InferenceEngine | None = None,
    batch: int = 16,
    threshold: float | None = None,
) -> RecordsReport:
    """Compare the two log probs of each token.

    engine: scores `batch` of the records again, evenly chosen, at temperature 1 and without
        filters, and each side is compared with that.
    threshold: as for `check`.

    Raises `ConfigError` for records that cannot be compared or scored.
    """
    answers, both, found = described(records)
    shift = shift_between(
        [each.known(each.a) for each in answers], [each.known(each.b) for each in answers]
    )
    pairs, steps = pairs_of(answers, shift)
    between = _between(pairs, both)
    found += [*_of_shift(shift, records.names), *_of_relation(between, *records.names)]
    metrics, allowed = _metrics(pairs), bounds("", threshold)
    if not found:
        found += _of_numbers(pairs, metrics, allowed)
    by_step = _by_step(pairs, steps)
    found += _of_drift(by_step)
    return RecordsReport(
        passed=not found,
        findings=found,
        sides=both,
        metrics=metrics,
        allowed=allowed,
        by_step=by_step,
        tokens=len(pairs),
        rows=len(set(pairs.row.tolist())),
        by_model={} if engine is None else _against(engine, answers, records.names, batch),
        notes=_notes(records, between),
        path=str(records.path),
    )


def _between(pairs: Pairs, both: tuple[Side, Side]) -> Relation:
    if len(pairs) < ENOUGH or any(side.values in (OTHER, EQUAL) for side in both):
        return Relation()
    return relation(pairs)


def _metrics(pairs: Pairs) -> dict[str, float]:
    """Return the numbers of the whole. The ratio is B's probability divided by A's."""
    log_ratio = pairs.difference.clip(-LARGEST, LARGEST)
    ratio = np.exp(log_ratio)
    of_rows = np.bincount(pairs.row, log_ratio)[np.unique(pairs.row)]
    return {
        **_figures(pairs.rollout, pairs.reference),
        "ratio_mean": float(ratio.mean()),
        "ratio_mean_standard_error": float(ratio.std() / np.sqrt(len(ratio))),
        **{f"ratio_quantile_{q:g}": float(np.quantile(ratio, q)) for q in QUANTILES},
        **{
            f"sequence_log_ratio_quantile_{q:g}": float(np.quantile(of_rows, q))
            for q in OF_SEQUENCES
        },
    }


def _figures(a: Floats, b: Floats) -> dict[str, float]:
    log_ratio = (b - a).clip(-LARGEST, LARGEST)
    ratio = np.exp(log_ratio)
    outside = (ratio < RATIOS[0]) | (ratio > RATIOS[1])
    return {
        **distances(a, b),
        "kl": float(-log_ratio.mean()),
        "k3_kl": float((ratio - log_ratio - 1).mean()),
        f"ratio_outside_{RATIOS[0]}_{RATIOS[1]}": float(outside.mean()),
    }


def _by_step(pairs: Pairs, steps: Sequence[int | None]) -> list[dict[str, float]]:
    """Return the numbers of each step, if the records have several."""
    known = np.array([np.nan if step is None else step for step in steps])[pairs.row]
    numbers = np.unique(known[~np.isnan(known)])
    return [
        {
            "step": int(step),
            "rows": len(np.unique(pairs.row[known == step])),
            "tokens": int((known == step).sum()),
            **_figures(pairs.rollout[known == step], pairs.reference[known == step]),
        }
        for step in numbers
        if len(numbers) > 1
    ]


def _of_shift(shift: int, names: tuple[str, str]) -> list[Finding]:
    if not shift:
        return []
    which = "next" if shift == 1 else "previous"
    text = (
        f"shifted by one: {names[0]}'s value at a token is {names[1]}'s at the {which} token; "
        "the numbers are of the tokens as they belong together"
    )
    return [Finding("shift", shift, 0, text)]


def _of_relation(found: Relation, a: str, b: str) -> list[Finding]:
    if found.temperature is not None and found.tempered:
        text = f"temperature: {a} is at {found.temperature:.2f} times {b}'s temperature"
        return [Finding("temperature", found.temperature, 1, text)]
    if found.filtered is None:
        return []
    cut, whole = (a, b) if found.filtered == "a" else (b, a)
    text = (
        f"filter: {cut} is over the tokens that a filter (top_p, top_k, min_p) left, about "
        f"{found.kept:.0%} of the probability or more, and {whole} over more; or else {cut} has "
        f"{INSTEAD_OF_A_FILTER}: the figures do not tell them apart"
    )
    return [Finding("filter_kept", found.kept, 1, text)]


def _of_numbers(
    pairs: Pairs, metrics: dict[str, float], allowed: dict[str, float]
) -> list[Finding]:
    meaning = SMALL if like_rounding(pairs) else UNEXPLAINED
    if len(pairs) < ENOUGH:
        meaning = f"these are too few tokens to tell the cause; it takes {ENOUGH} at least"
    return [
        Finding(name, metrics[name], most, meaning)
        for name, most in allowed.items()
        if not metrics[name] <= most
    ]


def _of_drift(by_step: Sequence[dict[str, float]]) -> list[Finding]:
    if len(by_step) < 4:
        return []
    size = len(by_step) // 4
    means = [row["logprobs_diff_mean"] for row in by_step]
    first, last = float(np.mean(means[:size])), float(np.mean(means[-size:]))
    if last < LEAST_DRIFT or last < GROWN * first:
        return []
    text = (
        f"drift: the mean difference grew from {first:.3g} in the first quarter of the steps to "
        f"{last:.3g} in the last one: the two sides' weights or rounding move apart"
    )
    return [Finding("drift", last / first if first else float("inf"), GROWN, text)]


def _notes(records: Records, between: Relation) -> list[str]:
    notes, both = [], " and ".join(records.names)
    if records.without_mask:
        notes.append(
            f"{records.without_mask} records have no mask: all ids count as sampled, "
            "except where a side begins with zeros"
        )
    if records.left_out:
        names = f"{', '.join(records.left_out[:3])}{', ...' * (len(records.left_out) > 3)}"
        notes.append(f"{len(records.left_out)} files without {both} were left out: {names}")
    if between.temperature is None:
        notes.append(
            "no temperature could be told: that takes several answers of one prompt at one step"
        )
    return notes


def _against(
    engine: InferenceEngine, answers: Sequence[Answer], names: tuple[str, str], batch: int
) -> dict[str, str]:
    """Say of each side what it is to the engine's own scores of the same ids."""
    chosen = np.unique(np.linspace(0, len(answers) - 1, min(batch, len(answers))).astype(int))
    rows = [answers[place] for place in chosen]
    prompts, ids = [], []
    for row in rows:
        record = row.record
        if not record.prompt or not record.ids:
            raise ConfigError(f"{record.where}: to be scored, it needs the ids of its prompt.")
        prompts.append(as_prompt(record.prompt))
        ids.append(record.ids)
    scores = [np.array(score) for score in engine.get_logprobs(prompts, ids)]
    said = {}
    for side, name in enumerate(names):
        values = [(row.a, row.b)[side] for row in rows]
        known = [row.known(each) for each, row in zip(values, rows, strict=True)]
        shift = shift_between(known, scores)
        both = [
            Answer(row.record, each, score, row.keep)
            for row, each, score in zip(rows, values, scores, strict=True)
        ]
        pairs, _ = pairs_of(both, shift)
        if len(pairs) < ENOUGH:
            said[name] = f"{len(pairs)} tokens are too few to tell"
            continue
        found = [*_of_shift(shift, (name, MODEL)), *_of_relation(relation(pairs), name, MODEL)]
        text = "; ".join(finding.meaning for finding in found)
        mean = _figures(pairs.rollout, pairs.reference)["logprobs_diff_mean"]
        size = f"mean difference {mean:.3g} of {len(pairs)} tokens"
        said[name] = f"{text or (AS_MODEL if like_rounding(pairs) else UNEXPLAINED)} ({size})"
    return said
