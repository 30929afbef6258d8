"""Summarizes the rows of an evaluation with verl's own function, by the names of a verl log
(`verl/trainer/ppo/ray_trainer.py`, 0.6.1, `_validate`), and a few numbers that verl lacks."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from _inf.runtime.extras import without_verl

AnswerRow: TypeAlias = Mapping[str, Any]  # of the file of answers
CORE = ("mean", "maj", "best")  # verl's rule for the section val-core


def metrics(rows: Sequence[AnswerRow], n: int) -> dict[str, float]:
    """Summarize the rows of complete prompts, those with `n` rewards.

    `val-core/...` and `val-aux/...` are `process_validation_metrics` of verl; without verl, its
    `mean@n` and `std@n` are computed here, and the others are missing. In addition:
    `stderr@n`, the standard error of each mean, clustered by prompt; and for the core value (`acc`
    if the reward function returns it, else the reward) `pass@k`, the unbiased
    1 - C(n-c, k) / C(n, k) with c answers of n whose value is 1, for k = 1, 2, 4 ... n.
    """
    scored = [row for row in rows if row.get("reward") is not None]
    counts = Counter(row["number"] for row in scored)
    complete = [row for row in scored if counts[row["number"]] == n]
    if not complete:
        return {}
    import pandas

    values, named = _values(complete), _turns(complete)
    index = [[str(row[name]) for row in complete] for name in ("data_source", "number")]
    verls = _verls(index, values) if not without_verl("metrics") else None
    for variable in (name for name, column in values.items() if _all_are(int | float, column)):
        by_source = pandas.Series(values[variable], index=index, dtype=float).groupby(level=0)
        for source, numbers in by_source:
            is_core = variable == ("acc" if "acc" in values else "reward")
            of_prompt = numbers.groupby(level=1)
            figures = verls[source][variable] if verls else _means(of_prompt, n)
            for name, number in figures.items():
                core = is_core and name.startswith(CORE) and f"@{n}" in name
                named[f"val-{'core' if core else 'aux'}/{source}/{variable}/{name}"] = float(number)
            if len(of_prompt) > 1:
                error = float(of_prompt.mean().sem())
                named[f"val-aux/{source}/{variable}/stderr@{n}"] = error
            if is_core and (numbers <= 1).all():  # 1 is right
                for k, share in _pass_at(of_prompt, n).items():
                    named[f"val-aux/{source}/{variable}/pass@{k}"] = share
    return named


def _values(rows: Sequence[AnswerRow]) -> dict[str, list[Any]]:
    """Return the rewards, and the numbers and texts that their function returned for every row."""
    extras = [row.get("reward_extra") or {} for row in rows]
    values = {"reward": [row["reward"] for row in rows]}
    for name in sorted(set.intersection(*map(set, extras)) - values.keys()):
        column = [extra[name] for extra in extras]
        if _all_are(int | float, column) or _all_are(str, column):
            values[name] = column
    return values


def _all_are(kind: Any, values: Sequence[Any]) -> bool:
    return all(isinstance(value, kind) for value in values)


def _verls(index: list[list[str]], values: Mapping[str, list[Any]]) -> Any:
    """Return verl's numbers by source, variable and name."""
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    sources, prompts = index
    return process_validation_metrics(sources, prompts, dict(values))


def _means(of_prompt: Any, n: int) -> dict[str, float]:
    spread = {f"std@{n}": of_prompt.std(ddof=0).mean()} if n > 1 else {}
    return {f"mean@{n}": of_prompt.mean().mean(), **spread}


def _pass_at(of_prompt: Any, n: int) -> dict[int, float]:
    right = of_prompt.agg(lambda rewards: (rewards == 1).sum())
    sizes = sorted({min(2**i, n) for i in range(n.bit_length() + 1)})
    return {k: statistics.fmean(pass_at_k(n, int(count), k) for count in right) for k in sizes}


def _turns(rows: Sequence[AnswerRow]) -> dict[str, float]:
    """Return verl's figures of the turns, after tools or interactions."""
    turns = [row["num_turns"] for row in rows if "num_turns" in row]
    if not turns:
        return {}
    figures = {"min": min(turns), "max": max(turns), "mean": statistics.fmean(turns)}
    return {f"val-aux/num_turns/{name}": float(value) for name, value in figures.items()}


def pass_at_k(n: int, right: int, k: int) -> float:
    """Return the chance that one of `k` answers is right, of `n` with `right` right ones (Chen et
    al., 2021, arXiv 2107.03374)."""
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)
