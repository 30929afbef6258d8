"""What came of an evaluation on GSM8K: numbers, and a picture of them.

In: the rows of `_inf.gsm8k`. Out: a frozen `Summary`, a PNG. Knows nothing of engines.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _inf.gsm8k import RULES

PLOTTED = "lm_eval_flexible_extract"  # the most lenient


@dataclasses.dataclass(frozen=True)
class Share:
    """A share of the questions, with its binomial standard error."""

    accuracy: float
    standard_error: float


@dataclasses.dataclass(frozen=True)
class Summary:
    """Unanswered questions (their prompt was too long) count as wrong. tokens_per_second: of this
    run alone; None where an earlier one had answered all."""

    questions: int
    unanswered: int
    rules: dict[str, Share]
    cut_by_length: float
    completion_tokens: int
    tokens_per_second: float | None

    def table(self) -> str:
        lines = [
            f"{name:<26} {share.accuracy:6.1%} ± {share.standard_error:.1%}"
            for name, share in self.rules.items()
        ]
        speed = "" if self.tokens_per_second is None else f", {self.tokens_per_second:.0f} tok/s"
        asked = f"{self.questions} questions, {self.unanswered} of them unanswered"
        return "\n".join([asked, *lines, f"{'cut by length':<26} {self.cut_by_length:6.1%}{speed}"])


def summary(
    rows: Sequence[dict[str, Any]], unanswered: int, tokens_per_second: float | None
) -> Summary:
    asked = len(rows) + unanswered
    return Summary(
        questions=asked,
        unanswered=unanswered,
        rules={rule: _share(sum(row["scores"][rule] for row in rows), asked) for rule in RULES},
        cut_by_length=_ratio(sum(row["finish_reason"] == "length" for row in rows), len(rows)),
        completion_tokens=sum(row["completion_tokens"] for row in rows),
        tokens_per_second=tokens_per_second,
    )


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _share(right: int, asked: int) -> Share:
    share = _ratio(right, asked)
    return Share(share, math.sqrt(share * (1 - share) / asked) if asked else 0.0)


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Answer lengths by right and wrong, and the accuracy as the questions go by, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    lengths, running = figure.subplots(1, 2)
    right, wrong = (
        [row["completion_tokens"] for row in rows if row["scores"][PLOTTED] is verdict]
        for verdict in (True, False)
    )
    labels = [f"right ({len(right)})", f"wrong ({len(wrong)})"]
    lengths.hist([right, wrong], bins=20, stacked=True, label=labels, color=["C2", "C7"])
    lengths.set(xlabel="tokens of the answer", ylabel="questions", title=f"by {PLOTTED}")
    lengths.legend()
    for rule in RULES:
        so_far, curve = 0, []
        for asked, row in enumerate(rows, 1):
            so_far += row["scores"][rule]
            curve.append(so_far / asked)
        running.plot(range(1, len(rows) + 1), curve, label=rule)
    running.set(xlabel="questions", title="accuracy so far", ylim=(0, None))
    running.legend()
    figure.savefig(path, dpi=120)
