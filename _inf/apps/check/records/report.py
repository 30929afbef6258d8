"""The report of `inf check --records`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from _inf.apps.check.findings import Finding
from _inf.apps.check.records.sides import Side
from _inf.apps.check.report import shown_metrics, two_columns
from _inf.apps.json_lines import json_text

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

SHOWN_STEPS = 12


@dataclasses.dataclass(frozen=True)
class RecordsReport:
    """The result. passed: whether there are no findings.

    sides: what the values of A and B are. metrics, by_step: numbers of all tokens, and of each
    step; differences are in nats, and the ratio is B's probability divided by A's. by_model: what
    each side is to the scores of a model that was given.
    """

    passed: bool
    findings: list[Finding]
    sides: tuple[Side, Side]
    metrics: dict[str, float]
    allowed: dict[str, float]
    by_step: list[dict[str, float]]
    by_model: dict[str, str]
    tokens: int
    rows: int
    notes: list[str]
    path: str

    def json(self) -> str:
        """Return everything as one JSON object; NaN and infinite numbers are null."""
        return json_text(dataclasses.asdict(self))

    def table(self) -> Group:
        """Return the report for a terminal."""
        from rich.console import Group

        rows = {"result": "passed" if self.passed else "FAILED"}
        for number, finding in enumerate(self.findings, 1):
            rows[f"finding {number}"] = f"{finding.meaning} ({finding.metric} {finding.value:.3g})"
        for name, side in zip("AB", self.sides, strict=True):
            rows[f"{name}: {side.name}"] = _said(side)
        for name, text in self.by_model.items():
            rows[f"{name}, by the model"] = text
        rows |= shown_metrics(self.metrics, self.allowed)
        rows |= {
            "compared": f"{self.tokens} sampled tokens of {self.rows} records of {self.path}",
            "notes": "; ".join(self.notes) or "none",
        }
        table = two_columns("Log probs of two sides", rows)
        return Group(table, *([self._steps()] if self.by_step else []))

    def _steps(self) -> Table:
        from rich.table import Table

        table = Table(*self.by_step[0], title="By step")
        step = max(1, -(-len(self.by_step) // SHOWN_STEPS))
        for row in self.by_step[::step]:
            table.add_row(*(f"{value:.4g}" for value in row.values()))
        return table


def _said(side: Side) -> str:
    parts = [side.values]
    parts += [f"each value fits into {side.rounded_to}"] * bool(side.rounded_to)
    parts.append(f"from {side.lowest:.4g} to {side.highest:.4g}, mean {side.mean:.4g}")
    return "; ".join(parts)
