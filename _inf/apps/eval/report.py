"""Reports an evaluation on GSM8K: a summary of numbers and a plot.

In: the rows of `_inf.apps.eval.gsm8k`. Out: a frozen `Summary`, a PNG. Knows nothing of engines.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from _inf.apps.eval.gsm8k import RULES

Z95 = 1.959964  # standard deviations that hold 95 % of a normal distribution
PLOTTED = "lm_eval_flexible_extract"  # the most lenient


@dataclasses.dataclass(frozen=True)
class Run:
    """What was measured. limit: None for all problems; parameters: all sampling keywords with the
    values used, also those from the config; date: when the run ended."""

    model: str
    data: str
    limit: int | None
    shots: int
    tool: bool
    parameters: dict[str, Any]
    date: str

    def __str__(self) -> str:
        limit = "all problems" if self.limit is None else f"the first {self.limit} problems"
        extras = [f"{self.shots} examples before each"] if self.shots else []
        extras += ["with tools"] if self.tool else []
        what = ", ".join([f"{self.model} on {self.data}", limit, *extras, self.date])
        return f"{what}\n{', '.join(f'{name}={value}' for name, value in self.parameters.items())}"


@dataclasses.dataclass(frozen=True)
class Share:
    """A share of the questions, with its 95 % confidence interval (Wilson's, which unlike a
    standard error is not empty at 0 % or 100 %)."""

    accuracy: float
    low: float
    high: float

    @classmethod
    def of(cls, right: int, asked: int) -> Share:
        if not asked:
            return cls(0.0, 0.0, 1.0)
        share, spread = right / asked, Z95**2 / asked
        middle = (share + spread / 2) / (1 + spread)
        half = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
        return cls(share, max(0.0, middle - half), min(1.0, middle + half))


@dataclasses.dataclass(frozen=True)
class Summary:
    """The results. Unanswered questions (their prompt was too long) count as wrong.
    tokens_per_second: of this run alone; None if an earlier run had answered all."""

    run: Run
    questions: int
    unanswered: int
    rules: dict[str, Share]
    cut_by_length: float
    completion_tokens: int
    tokens_per_second: float | None

    @classmethod
    def of(
        cls, run: Run, rows: Sequence[dict[str, Any]], asked: int, speed: float | None
    ) -> Summary:
        """Summarize the rows of the answered questions, of `asked` questions."""
        right = {rule: sum(row["scores"][rule] for row in rows) for rule in RULES}
        return cls(
            run=run,
            questions=asked,
            unanswered=asked - len(rows),
            rules={rule: Share.of(count, asked) for rule, count in right.items()},
            cut_by_length=sum(row["finish_reason"] == "length" for row in rows) / max(1, len(rows)),
            completion_tokens=sum(row["completion_tokens"] for row in rows),
            tokens_per_second=speed,
        )

    def json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    def table(self) -> str:
        lines = [
            f"{name:<26} {share.accuracy:6.1%}   {share.low:.1%} to {share.high:.1%}"
            for name, share in self.rules.items()
        ]
        speed = "" if self.tokens_per_second is None else f", {self.tokens_per_second:.0f} tok/s"
        asked = f"{self.questions} questions, {self.unanswered} of them unanswered"
        head = f"{'rule':<26}  right   95 % interval"
        cut = f"{'cut by length':<26} {self.cut_by_length:6.1%}{speed}"
        return "\n".join([str(self.run), asked, head, *lines, cut])


def plot(run: Run, rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot the answer lengths of right and wrong answers, and the accuracy so far, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    title = "\n".join(fill(line, 130) for line in str(run).splitlines())
    figure.suptitle(title, fontsize=9, parse_math=False)
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
