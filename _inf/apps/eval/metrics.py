"""Summarizes the rows of an evaluation with verl's own function, by the names of a verl log
(`verl/trainer/ppo/ray_trainer.py`, 0.6.1, `_validate`), and a few numbers that verl lacks."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from _inf.runtime.extras import has_verl

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
    by_prompt: dict[int, list[AnswerRow]] = defaultdict(list)
    for row in rows:
        if row.get("reward") is not None:
            by_prompt[row["number"]].append(row)
    complete = [row for group in by_prompt.values() if len(group) == n for row in group]
    if not complete:
        return {}
    values = _values(complete)
    return _verls(complete, values) | _ours(complete, values, n) | _turns(complete)


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


def _verls(rows: Sequence[AnswerRow], values: Mapping[str, list[Any]]) -> dict[str, float]:
    sources = [row["data_source"] for row in rows]
    prompts = [str(row["number"]) for row in rows]
    named: dict[str, float] = {}
    for source, variables in _of_variables(sources, prompts, dict(values)).items():
        core = "acc" if "acc" in variables else "reward"
        for variable, numbers in variables.items():
            most = max(int(name.split("@")[-1].split("/")[0]) for name in numbers)
            for name, number in numbers.items():
                is_core = variable == core and name.startswith(CORE) and f"@{most}" in name
                section = "val-core" if is_core else "val-aux"
                named[f"{section}/{source}/{variable}/{name}"] = float(number)
    return named


def _of_variables(
    sources: list[str], prompts: list[str], values: dict[str, list[Any]]
) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Return numbers by source, variable and verl's name."""
    if has_verl():
        from verl.trainer.ppo.metric_utils import process_validation_metrics

        return process_validation_metrics(sources, prompts, values)  # type: ignore[no-any-return]
    import pandas

    found: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for variable, column in values.items():
        if _all_are(str, column):
            continue
        numbers = pandas.Series(column, index=[sources, prompts], dtype=float)
        for source, of_source in numbers.groupby(level=0):
            of_prompt = of_source.groupby(level=1)
            n = int(of_prompt.size().max())
            found[source][variable] = {f"mean@{n}": of_prompt.mean().mean()}
            if n > 1:
                found[source][variable][f"std@{n}"] = of_prompt.std(ddof=0).mean()
    return found


def _ours(rows: Sequence[AnswerRow], values: Mapping[str, list[Any]], n: int) -> dict[str, float]:
    import pandas

    core = "acc" if "acc" in values else "reward"
    groups = [[row[name] for row in rows] for name in ("data_source", "number")]
    named = {}
    for variable in (name for name, column in values.items() if _all_are(int | float, column)):
        numbers = pandas.Series(values[variable], index=groups, dtype=float)
        for source, of_source in numbers.groupby(level=0):
            prefix, prompts = f"val-aux/{source}/{variable}", of_source.groupby(level=1)
            if len(prompts) > 1:
                named[f"{prefix}/stderr@{n}"] = float(prompts.mean().sem())
            if variable == core and (of_source <= 1).all():  # 1 is right
                right = prompts.agg(lambda rewards: (rewards == 1).sum())
                for k in sorted({min(2**i, n) for i in range(n.bit_length() + 1)}):
                    shares = [pass_at_k(n, int(count), k) for count in right]
                    named[f"{prefix}/pass@{k}"] = statistics.fmean(shares)
    return named


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
