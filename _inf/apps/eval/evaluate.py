"""Answers a data set with an engine, scores each answer as a verl trainer would, and reports.

In: an engine or the means to start one, `Example`s, a reward function. Out: a file of rows, which a
stopped run resumes, and an `EvalReport`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _inf.apps.batch import fingerprint
from _inf.apps.batch.lines import Job
from _inf.apps.batch.output_file import OutputFile
from _inf.apps.batch.runner import OnError, RunStats, answer
from _inf.apps.eval.dataset import Example, check_for_verls_reward, read_examples
from _inf.apps.eval.eval_report import EvalReport
from _inf.apps.eval.metrics import metrics
from _inf.apps.eval.reward import SECONDS, RewardError, RewardFunction, RewardPool, function_name
from _inf.apps.rollouts.sources import answer_fields
from _inf.config import Config
from _inf.errors import ConfigError
from _inf.request.sampling import effective_params, greedy_unless_asked
from _inf.response.decode import decoded_text
from _inf.response.output import GenerationOutput, GenerationRow
from _inf.tools.definition import as_tools
from _inf.types import Tokenizer

if TYPE_CHECKING:
    from inf import InferenceEngine


def evaluate(
    engine: InferenceEngine,
    data: Any,
    *,
    reward: RewardFunction | str | None = None,
    n: int = 1,
    out: str | Path | None = None,
    prompt_key: str = "prompt",
    limit: int | None = None,
    shuffle_seed: int | None = None,
    reward_timeout: float = SECONDS,
    restart: bool = False,
    **params: Any,
) -> EvalReport:
    """Answer verl's rows, score the answers, and summarize with verl's own metrics.

    data: a path (.parquet, .jsonl, .json), a `datasets.Dataset`, a pandas table or a list of rows
        with `prompt`, `data_source`, `reward_model.ground_truth` and `extra_info`, whose
        `tools_kwargs` and `interaction_kwargs` the call gets.
    reward: `compute_score(data_source, solution_str, ground_truth, extra_info)`, sync or async,
        which returns a number or a dict with `score`; also as "FILE.py:NAME". By default verl's
        `default_compute_score`. It runs in processes of its own, `reward_timeout` seconds a call.
    n: answers per row; pass@k and the standard errors need several. With n=1 answers are greedy
        unless a temperature, a filter or a seed is given.
    out: the stem of the files that are written: STEM.jsonl, which a later call resumes unless
        `restart`, also with a higher `limit`, and STEM.summary.json. Without it nothing is kept.
    params: `generate`'s keywords.

    Raises `ConfigError` for data, a reward or keywords of another form, before anything is sent. An
    answer that cannot be given or scored is a row with an `error`, and counts in `unscored`.
    """
    examples = read_examples(data, prompt_key=prompt_key, shuffle_seed=shuffle_seed)
    with contextlib.ExitStack() as stack:
        stem = Path(out or stack.enter_context(tempfile.TemporaryDirectory()) + "/rows")
        name = str(data) if isinstance(data, str | os.PathLike) else type(data).__name__
        run = EvalRun(examples, name, reward, n, stem, params, reward_timeout, limit)
        report = run.run(engine.config, lambda: contextlib.nullcontext(engine), restart)
        if out is not None:
            report.write(run.stem)
    return report


@dataclasses.dataclass
class EvalRun:
    """One evaluation. data: the data's name. limit: of the examples; a later run of the same files
    may have a higher one."""

    examples: Sequence[Example]
    data: str
    reward: RewardFunction | str | None
    n: int
    stem: Path
    params: dict[str, Any]
    reward_timeout: float = SECONDS
    limit: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("n", self.n), ("limit", self.limit)):
            if value is not None and value < 1:
                raise ConfigError(f"{name}: it must be at least 1, not {value}.")
        rows = json.dumps([dataclasses.asdict(each) for each in self.examples], default=repr)
        self._digest = hashlib.sha256(rows.encode()).hexdigest()
        self.examples = self.examples[: self.limit]
        self.stem = Path(str(self.stem).removesuffix(".jsonl"))
        if self.n == 1:
            greedy_unless_asked(self.params)
        if self.reward is None:
            check_for_verls_reward(self.examples)

    def run(
        self,
        config: Config,
        start: Callable[[], contextlib.AbstractContextManager[InferenceEngine]],
        restart: bool,
        on_error: OnError = lambda line, reason: None,
    ) -> EvalReport:
        """Answer and score what the file of rows lacks, and report. start: called for the engine if
        there is anything to answer. on_error: called with an answer's number and the reason."""
        used = effective_params(self.params, config.rollout)
        if self.n > 1 and not used["temperature"]:
            raise ConfigError(
                f"n: {self.n} greedy answers of one prompt are all the same; give a temperature."
            )
        stats, wanted = RunStats(), len(self.examples) * self.n
        with (
            OutputFile(Path(f"{self.stem}.jsonl")) as file,
            RewardPool(self.reward, self.reward_timeout) as pool,
        ):
            file.begin(self._about(config), restart)
            if left := [line for line in range(1, wanted + 1) if not file.has_answer(line)]:
                with start() as engine:
                    jobs = [self._job(line, engine, pool) for line in left]
                    stats = _answer(engine, jobs, file, self.params, self._naming(on_error))
            rows = [row for row in file.rows() if row["line"] <= wanted]
        scored = [row for row in rows if row.get("reward") is not None]
        cut = sum(row["finish_reason"] == "length" for row in scored)
        schemas = self._schemas()
        return EvalReport(
            metrics=metrics(scored, self.n),
            rows=rows,
            model=config.model_name,
            data=self.data,
            limit=self.limit,
            reward=function_name(self.reward),
            n=self.n,
            parameters=used | ({"tools": schemas} if schemas else {}),
            unscored=wanted - len(scored),
            cut_by_length=cut / max(1, len(scored)),
            completion_tokens=sum(row["completion_tokens"] for row in scored),
            tokens_per_second=stats.tokens_per_second or None,
            date=datetime.date.today().isoformat(),
        )

    def _about(self, config: Config) -> dict[str, Any]:
        """What the rows depend on; of a reward function in a file, also the file's hash."""
        file = self.reward.rpartition(":")[0] if isinstance(self.reward, str) else None
        return {
            **fingerprint.of_config(config),
            "parameters": {**self.params, "timeout": None, "tools": self._schemas()},
            "n": self.n,
            "reward": [function_name(self.reward), file and fingerprint.of_file(Path(file))],
            "data": self._digest,
        }

    def _schemas(self) -> list[dict[str, Any]] | None:
        tools = self.params.get("tools")
        return None if tools is None else [tool.schema for tool in as_tools(tools)]

    def _naming(self, on_error: OnError) -> OnError:
        """`on_error`, with the number of the data's row in the reason."""

        def named(line: int, reason: str) -> None:
            number = self.examples[(line - 1) // self.n].number
            on_error(line, f"row {number} of the data: {reason}")

        return named

    def _job(self, line: int, engine: InferenceEngine, pool: RewardPool) -> Job:
        index, sample = divmod(line - 1, self.n)
        example = self.examples[index]
        turns, given = engine.config.rollout.multi_turn, self.params.get("tools")
        about = {  # what also a row without an answer has
            "number": example.number,
            "sample": sample,
            "data_source": example.data_source,
            "prompt": example.prompt,
            "reward": None,
            "row_id": f"{example.number}.{sample}",
        }

        async def row(output: GenerationOutput) -> dict[str, Any]:
            [answer] = output
            return about | await _scored(answer, example, engine.tokenizer, pool)

        params = example.params(
            tools=bool(turns.tool_config_path if given is None else given),
            interactions=turns.interaction_config_path is not None,
        )
        return Job(line, example.prompt, row, params, about)


def _answer(
    engine: InferenceEngine,
    jobs: list[Job],
    file: OutputFile,
    params: dict[str, Any],
    on_error: OnError,
) -> RunStats:
    """Answer the jobs, on another thread if this one runs an event loop, as a notebook's does."""
    work = partial(answer, engine, jobs, file, params, total=len(jobs), on_error=on_error)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(work).result()
        finally:
            jobs.clear()  # interrupted: the calls under way end, and no others begin


async def _scored(
    answer: GenerationRow, example: Example, tokenizer: Tokenizer, pool: RewardPool
) -> dict[str, Any]:
    """What a row says of its answer, with the reward, or the error of the reward function."""
    about = answer.metadata
    row: dict[str, Any] = {
        "ground_truth": example.ground_truth,
        **{name: about[name] for name in ("prompt_tokens", "completion_tokens")},
        **answer_fields(answer, tokenizer),
    }
    extra_info = {
        **example.extra_info,
        "num_turns": about.get("num_turns"),
        "rollout_reward_scores": about.get("reward_scores", {}),
    }
    call = pool.submit(
        example.data_source, _solution(row, example, tokenizer), example.ground_truth, extra_info
    )
    try:
        reward = await asyncio.wrap_future(call)
    except RewardError as failure:
        return row | {"error": {"code": "reward_error", "message": str(failure)}}
    return row | {"reward": reward.value, "reward_extra": reward.extra}


def _solution(row: Mapping[str, Any], example: Example, tokenizer: Tokenizer) -> str:
    """All text after the prompt, tools' results too, as verl's reward manager decodes it
    (`workers/reward_manager/naive.py`, 0.6.1)."""
    if "response_ids" in row:
        return decoded_text(row["response_ids"], tokenizer, skip_special_tokens=True)
    asked = 1 if isinstance(example.prompt, str) else len(example.prompt)  # of a server of texts
    said = [message.get("content") or "" for message in row.get("messages", [])[asked:]]
    return "\n".join(said) or str(row["completion"])
