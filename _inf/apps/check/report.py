"""The report that `inf.check` returns: numbers, findings, a table and a plot."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from _inf.apps.check.differences import Pairs
from _inf.apps.check.findings import Finding
from _inf.apps.json_lines import json_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


@dataclasses.dataclass(frozen=True)
class WorstToken:
    """The token with the largest difference. row, position: its sequence, and its place there."""

    row: int
    position: int
    token: str
    rollout: float
    reference: float


def two_columns(title: str, rows: Mapping[str, str]) -> Table:
    """Return names and values as a table for a terminal."""
    from rich.table import Table

    table = Table(title=title, show_header=False)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for row in rows.items():
        table.add_row(*row)
    return table


def shown_metrics(metrics: Mapping[str, float], allowed: Mapping[str, float]) -> dict[str, str]:
    """Return the numbers as text, with their bounds."""
    shown = {}
    for name, value in metrics.items():
        most = allowed.get(name.rpartition("/")[2])
        shown[name] = f"{value:.3g}" if most is None else f"{value:.3g} (allowed: {most:g})"
    return shown


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """The result of a check. passed: whether there are no findings.

    findings: each names a number of `metrics` that exceeds its bound, and the likely cause.
    metrics: numbers by name; docs/parity.md explains them. Differences are in nats.
    allowed: the bounds, by the last part of a metric's name.
    tokens, rows: how many were compared with the reference. notes: how they were compared, and what
    was left out.
    pairs: the compared tokens, as numpy arrays; not in the JSON.
    """

    passed: bool
    findings: list[Finding]
    metrics: dict[str, float]
    allowed: dict[str, float]
    tokens: int
    rows: int
    worst: WorstToken
    notes: list[str]
    model: str
    reference: str
    device: str
    dtype: str
    date: str
    versions: dict[str, str]
    pairs: Pairs = dataclasses.field(repr=False)

    def json(self) -> str:
        """Return everything but `pairs` as one JSON object; NaN and infinite numbers are null."""
        report = dataclasses.asdict(self)
        del report["pairs"]
        return json_text(report)

    def table(self) -> Table:
        """Return the report as a table for a terminal."""
        worst, rows = self.worst, {"result": "passed" if self.passed else "FAILED"}
        for number, finding in enumerate(self.findings, 1):
            past = f"({finding.metric} is {finding.value:.3g}, allowed: {finding.allowed:g})"
            rows[f"finding {number}"] = f"{finding.meaning} {past}"
        rows |= shown_metrics(self.metrics, self.allowed)
        rows |= {
            "largest difference": f"row {worst.row}, token {worst.position} of the sequence, "
            f"{worst.token!r}: rollout {worst.rollout:.4g}, reference {worst.reference:.4g}",
            "compared": f"{self.tokens} sampled tokens in {self.rows} rows, with {self.reference}",
            "notes": "; ".join(self.notes) or "none",
            "model": self.model,
            "device, dtype": f"{self.device}, {self.dtype}",
            "versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        }
        return two_columns("Rollout compared with its reference", rows)

    def plot(self) -> Figure:
        """Draw both probabilities of each token, and the differences by position and by size."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 4), layout="constrained")
        figure.suptitle(
            f"{self.model}, {self.dtype}, against {self.reference}, {self.date}: "
            f"{'passed' if self.passed else 'FAILED'}",
            fontsize=9,
            parse_math=False,
        )
        pairs, apart = self.pairs, np.abs(self.pairs.difference)
        finite = np.isfinite(apart)
        apart = np.maximum(apart[finite], 1e-9)  # zero has no logarithm
        both, position, size = figure.subplots(1, 3)
        both.plot([0, 1], [0, 1], color="0.8")
        both.scatter(np.exp(pairs.rollout[finite]), np.exp(pairs.reference[finite]), s=4)
        both.set(xlabel="probability, rollout", ylabel="probability, reference")
        position.scatter(pairs.position[finite], apart, s=4)
        position.set(xlabel="position", ylabel="difference of log probs (nats)", yscale="log")
        size.hist(np.log10(apart), bins=30)
        size.set(xlabel="log10 of the difference of log probs (nats)", ylabel="tokens")
        return figure
