"""The report that `evaluate` returns: metrics by verl's names, the rows and a table."""

from __future__ import annotations

import dataclasses
import datetime
import html
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from _inf.apps.eval.intervals import mean_interval, share_interval
from _inf.apps.eval.metrics import AnswerRow, metrics
from _inf.apps.eval.scoring import RESCORE, scored_by_its_loop
from _inf.apps.json_lines import json_text
from _inf.errors import shown
from _inf.runtime.extras import without_verl

OF_AGENT_LOOPS = ("agent_loops", "scored_by_loops", "unsampled_rows", "unsampled_ids")


@dataclasses.dataclass(frozen=True, repr=False)
class EvalReport:
    """The results of an evaluation.

    metrics: verl's validation metrics under the names of a verl log (`val-core/...`,
        `val-aux/...`), and also `.../pass@k` (unbiased) and `.../stderr@n`.
    left_out: which of verl's metrics are missing, and why, if verl is not installed; else "".
    rows: a dict per answer: `number` (of the data's row), `sample`, `data_source`, `prompt`,
        `ground_truth`, `completion`, `reward`, `reward_extra`, `finish_reason`, tokens; with tools
        `messages` and `tool_calls`; with an agent loop `agent_loop`, `extra_fields` and
        `unsampled_ids`; `error` where there is no answer or no reward.
    limit: of the data's rows; None for all. reward: the function that scored, or the environment.
        reward_version: changes when the function's code, or a value that it uses, changes.
        parameters: all sampling keywords with the values used, also those from the config.
    unscored: answers that are missing or have no reward; their prompts are not in `metrics`.
    cut_by_length: the share of all answers that ended at a limit.
    tokens_per_second: of this run alone; None if an earlier run had answered all.
    answers_kept, rewards_kept: how many come from an earlier run. rescored_because: why stored
        answers with a reward were scored again, if they were.
    agent_loops: how many answers each agent loop gave, by its name. scored_by_loops: how many of
        them have the loop's own score. unsampled_rows, unsampled_ids: how many answers of agent
        loops, and how many ids in them, have a wrong mask.
    """

    metrics: dict[str, float]
    left_out: str
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
    agent_loops: dict[str, int]
    scored_by_loops: int
    unsampled_rows: int
    unsampled_ids: int

    @classmethod
    def of(cls, rows: list[dict[str, Any]], wanted: int, **facts: Any) -> EvalReport:
        """Summarize the rows of `wanted` answers. facts: the fields that no row says."""
        scored = [row for row in rows if row.get("reward") is not None]
        answered = [row for row in rows if "completion_tokens" in row]
        cut = sum(row.get("finish_reason") == "length" for row in answered)
        unsampled = [row["unsampled_ids"] for row in answered if row.get("unsampled_ids")]
        return cls(
            metrics=metrics(scored, facts["n"]),
            left_out=without_verl("metrics") if facts["n"] > 1 else "",
            rows=rows,
            unscored=wanted - len(scored),
            cut_by_length=cut / max(1, len(answered)),
            completion_tokens=sum(row["completion_tokens"] for row in answered),
            date=datetime.date.today().isoformat(),
            agent_loops=Counter(row["agent_loop"] for row in answered if "agent_loop" in row),
            scored_by_loops=sum(map(scored_by_its_loop, scored)),
            unsampled_rows=len(unsampled),
            unsampled_ids=sum(unsampled),
            **facts,
        )

    def json(self) -> str:
        """Return everything but the rows as JSON; fields of agent loops only if one ran."""
        left_out = ("rows", *(() if self.agent_loops else OF_AGENT_LOOPS))
        values = {k: v for k, v in vars(self).items() if k not in left_out}
        values["answers"] = len(self.rows)
        return json_text(values, indent=1, default=repr)

    def without_reward(self) -> str:
        """Say how many answers have no reward, and the first reason."""
        reasons = [row["error"]["message"] for row in self.rows if row.get("error")]
        none = "" if self.metrics else ", so there are no metrics"
        first = f" The first: {reasons[0]}" if reasons else ""
        return (
            f"{self.unscored} answers have no reward{none}; 'error' in their rows says why.{first}"
        )

    def unsampled(self) -> str:
        """Say how many answers of agent loops have ids that were not sampled there, and where."""
        row = next(row for row in self.rows if row.get("unsampled_ids"))
        place = row["unsampled_at"][0]
        what = "was not sampled there" if row["response_mask"][place] else "has mask 0"
        first = f"{row['agent_loop']}, row {row['number']}, sample {row['sample']}"
        return (
            f"{self.unsampled_rows} of {sum(self.agent_loops.values())} answers of agent loops "
            f"have {self.unsampled_ids} ids with a wrong mask; the first is in {first}: token "
            f"{place} of the response, {row['response_texts'][place]!r} (id "
            f"{row['response_ids'][place]}), {what}. A trainer would learn from ids that the model "
            "did not sample (docs/agent_loops.md)."
        )

    def __repr__(self) -> str:
        return f"<EvalReport: {self.result()}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return f"<pre>{html.escape(self.table())}</pre>"

    def __str__(self) -> str:
        return self.table()

    def _what(self) -> str:
        """Say what was measured, how and when."""
        rows = "" if self.limit is None else f", the first {self.limit} rows"
        parameters = [f"{name}={shown(value)}" for name, value in self.parameters.items()]
        head = f"{self.model} on {self.data}{rows}, {self.reward}, n={self.n}, {self.date}"
        return f"{head}\n{', '.join(parameters)}"

    def table(self) -> str:
        """Return the result in one sentence, then what was measured, and its metrics."""
        width = max((len(name) for name in self.metrics), default=0)
        lines = [f"{name:<{width}}  {value:.4f}" for name, value in sorted(self.metrics.items())]
        speed = "" if self.tokens_per_second is None else f", {self.tokens_per_second:.0f} tok/s"
        counts = f"{len(self.rows)} answers, {self.unscored} without a reward"
        left_out = [f"not computed: {self.left_out}"] if self.left_out else []
        of_rows = [f"{counts}{speed}", *self._of_loops()]
        return "\n".join([self.result(), self._what(), *of_rows, *lines, *left_out])

    def result(self) -> str:
        """Say how many answers are right, with 1 as their `acc` or else as their reward, and how
        many were cut; if there are other values, the mean reward."""
        scored = [row for row in self.rows if row.get("reward") is not None]
        right = f"none of {len(self.rows)} answers has a reward"
        if scored:
            right = _right(scored, self.n)
        cut = [row for row in self.rows if row.get("finish_reason") == "length"]
        limit = "a limit"
        if "max_tokens" in self.parameters and not any(row.get("limit") for row in cut):
            limit = f"max_tokens ({self.parameters['max_tokens']})"
        return f"{right}, {len(cut)} cut by {limit}"

    def _of_loops(self) -> list[str]:
        loops = [f"{name} {count}" for name, count in sorted(self.agent_loops.items())]
        scored = f"; {self.scored_by_loops} scored by their loop" if self.scored_by_loops else ""
        unsampled = ""
        if self.unsampled_rows:
            unsampled = f"; {self.unsampled_ids} unsampled ids in {self.unsampled_rows} answers"
        return [f"answers of agent loops: {', '.join(loops)}{scored}{unsampled}"] if loops else []


def _right(scored: Sequence[AnswerRow], n: int) -> str:
    """Say how many answers are right, or their mean reward. The interval of answers to different
    questions is Wilson's; otherwise it is that of resampled questions."""
    extras = [{"acc": row["reward"], **(row.get("reward_extra") or {})} for row in scored]
    values: list[float] = [extra["acc"] for extra in extras]
    if not (are_marks := all(value in (0, 1) for value in values)):
        values = [row["reward"] for row in scored]
    of_question: dict[int, list[float]] = defaultdict(list)
    for row, value in zip(scored, values, strict=True):
        of_question[row["number"]].append(value)
    bounds: tuple[float, float] | None
    if are_marks and n == 1:
        bounds = share_interval(values.count(1), len(values))
    else:
        bounds = mean_interval([*map(statistics.fmean, of_question.values())])
    written = _percent if are_marks else "{:.4f}".format
    interval = "no interval: the questions do not differ"
    if bounds is not None:
        by_question = " by question" if n > 1 else ""
        interval = f"95 % interval {' to '.join(map(written, bounds))}{by_question}"
    mean = written(statistics.fmean(values))
    answers = f" answers to {len(of_question)} questions" if n > 1 else ""
    if are_marks:
        return f"{values.count(1)} of {len(values)}{answers} right ({mean} %, {interval})"
    return f"a mean reward of {mean} of {len(values)}{answers or ' answers'} ({interval})"


def _percent(share: float) -> str:
    return f"{round(100 * share, 1 if min(share, 1 - share) < 0.01 else 0):g}"


def faults(report: EvalReport) -> Iterator[str]:
    """What a reader of the metrics must know besides."""
    if report.unscored:
        yield report.without_reward()
    if report.left_out:
        yield f"metrics were not computed: {report.left_out}"
    if report.unsampled_ids:
        yield report.unsampled()
    if report.rescored_because not in (None, RESCORE):
        yield f"answers were scored again: {report.rescored_because}"
