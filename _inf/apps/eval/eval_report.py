"""What `evaluate` returns: metrics by verl's names, the rows, a table and a plot."""

from __future__ import annotations

import dataclasses
import datetime
from collections import defaultdict
from textwrap import fill
from typing import TYPE_CHECKING, Any

from _inf.apps.eval.metrics import metrics
from _inf.apps.json_lines import json_text
from _inf.errors import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class EvalReport:
    """The results of an evaluation.

    metrics: verl's validation metrics under the names of a verl log (`val-core/...`,
        `val-aux/...`), and beside them `.../pass@k` (unbiased) and `.../stderr@n`.
    rows: a dict per answer: `number` (of the data's row), `sample`, `data_source`, `prompt`,
        `ground_truth`, `completion`, `reward`, `reward_extra`, `finish_reason`, tokens; with tools
        `messages` and `tool_calls`; `error` where there is no answer or no reward.
    limit: of the data's rows; None for all. reward_version: of the function; it changes with its
        code and the values that it uses. parameters: all sampling keywords with the values used,
        also those from the config.
    unscored: answers that are missing or have no reward; their prompts are not in `metrics`.
    cut_by_length: the share of all answers that ended at a limit.
    tokens_per_second: of this run alone; None if an earlier run had answered all.
    answers_kept, rewards_kept: how many are of an earlier run. rescored_because: why stored answers
        with a reward were scored again, if they were.
    """

    metrics: dict[str, float]
    rows: list[dict[str, Any]]
    model: str
    data: str
    limit: int | None
    reward: str
    reward_version: str
    n: int
    parameters: dict[str, Any]
    unscored: int
    cut_by_length: float
    completion_tokens: int
    tokens_per_second: float | None
    date: str
    answers_kept: int
    rewards_kept: int
    rescored_because: str | None

    @classmethod
    def of(cls, rows: list[dict[str, Any]], wanted: int, **about: Any) -> EvalReport:
        """Summarize the rows of `wanted` answers. about: the fields that no row says."""
        scored = [row for row in rows if row.get("reward") is not None]
        answered = [row for row in rows if "completion_tokens" in row]
        cut = sum(row.get("finish_reason") == "length" for row in answered)
        return cls(
            metrics=metrics(scored, about["n"]),
            rows=rows,
            unscored=wanted - len(scored),
            cut_by_length=cut / max(1, len(answered)),
            completion_tokens=sum(row["completion_tokens"] for row in answered),
            date=datetime.date.today().isoformat(),
            **about,
        )

    def json(self) -> str:
        """Everything but the rows."""
        values = {k: v for k, v in vars(self).items() if k != "rows"} | {"answers": len(self.rows)}
        return json_text(values, indent=1, default=repr)

    def without_reward(self) -> str:
        """Say how many answers have no reward, and the first reason."""
        reasons = [row["error"]["message"] for row in self.rows if row.get("error")]
        none = "" if self.metrics else ", so there are no metrics"
        first = f" The first: {reasons[0]}" if reasons else ""
        return (
            f"{self.unscored} answers have no reward{none}; 'error' in their rows says why.{first}"
        )

    def __str__(self) -> str:
        """What was measured, how and when."""
        rows = "" if self.limit is None else f", the first {self.limit} rows"
        parameters = [f"{name}={shown(value)}" for name, value in self.parameters.items()]
        head = f"{self.model} on {self.data}{rows}, {self.reward}, n={self.n}, {self.date}"
        return f"{head}\n{', '.join(parameters)}"

    def table(self) -> str:
        width = max((len(name) for name in self.metrics), default=0)
        lines = [f"{name:<{width}}  {value:.4f}" for name, value in sorted(self.metrics.items())]
        speed = "" if self.tokens_per_second is None else f", {self.tokens_per_second:.0f} tok/s"
        counts = f"{len(self.rows)} answers, {self.unscored} without a reward"
        cut = f"{self.cut_by_length:.1%} cut by length{speed}"
        kept = []
        if self.answers_kept:
            why = f"; scored again: {self.rescored_because}" if self.rescored_because else ""
            kept = [f"resumed: {self.answers_kept} answers, {self.rewards_kept} rewards{why}"]
        return "\n".join([str(self), f"{counts}, {cut}", *kept, *lines])

    def plot(self) -> Figure:
        """Draw the rewards and the lengths of the answers, by data source."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 4.5), layout="constrained")
        title = "\n".join(fill(line, 130) for line in str(self).splitlines())
        figure.suptitle(title, fontsize=9, parse_math=False)
        rewards, lengths = figure.subplots(1, 2)
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in self.rows:
            if row.get("reward") is not None:
                groups[row["data_source"]].append(row)
        names = list(groups)
        for axes, value in ((rewards, "reward"), (lengths, "completion_tokens")):
            axes.hist(
                [[row[value] for row in groups[name]] for name in names], bins=20, label=names
            )
        rewards.set(xlabel="reward", ylabel="answers")
        lengths.set(xlabel="tokens of the answer")
        if names:
            rewards.legend()
        return figure
