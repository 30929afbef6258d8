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
import itertools
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _inf.apps.batch import fingerprint
from _inf.apps.batch.lines import BadLine, Job, error_row
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
from _inf.response.output import GenerationOutput
from _inf.tools.definition import as_tools

if TYPE_CHECKING:
    from inf import InferenceEngine

COPIED = ("finish_reason", "prompt_tokens", "completion_tokens", "num_turns", "tool_calls")


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
        stem = out or stack.enter_context(tempfile.TemporaryDirectory()) + "/rows"
        name = str(data) if isinstance(data, str | os.PathLike) else type(data).__name__
        run = EvalRun(examples, name, reward, n, Path(stem), params, reward_timeout, limit)
        with run.opened(engine.config, restart) as left:
            if left:
                _outside_of_a_loop(lambda stop: run.answer(engine, left, stop=stop))
        report = run.report(engine.config)
        if out is not None:
            report.write(run.stem)
    return report


def _outside_of_a_loop(work: Callable[[threading.Event], Any]) -> None:
    """Do the work, on another thread if this one runs an event loop, as a notebook's does."""
    stop = threading.Event()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        work(stop)
        return
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(work, stop).result()
        finally:
            stop.set()  # interrupted: the calls under way end, and no others begin


class EvalRun:
    """One evaluation: its rows and what they depend on. data: the data's name. limit: of the
    examples; a later run of the same files may have a higher one."""

    def __init__(
        self,
        examples: Sequence[Example],
        data: str,
        reward: RewardFunction | str | None,
        n: int,
        stem: Path,
        params: dict[str, Any],
        reward_timeout: float = SECONDS,
        limit: int | None = None,
    ) -> None:
        if n < 1:
            raise ConfigError(f"n: it must be at least 1, not {n}.")
        rows = json.dumps([dataclasses.asdict(each) for each in examples], default=repr)
        self._digest = hashlib.sha256(rows.encode()).hexdigest()
        self.examples, self.reward, self.n, self.params = examples[:limit], reward, n, dict(params)
        self.data, self.limit, self.reward_timeout = data, limit, reward_timeout
        self.stem = Path(str(stem).removesuffix(".jsonl"))
        self.stats = RunStats()
        self.rows: list[dict[str, Any]] = []
        if n == 1:
            greedy_unless_asked(self.params)
        if reward is None:
            check_for_verls_reward(self.examples)

    @contextlib.contextmanager
    def opened(self, config: Config, restart: bool) -> Iterator[list[Job]]:
        """Open the file of rows, yield the jobs without an answer, and read the rows at the end."""
        self._refuse_equal_answers(config)
        with (
            OutputFile(Path(f"{self.stem}.jsonl")) as self._file,
            RewardPool(self.reward, self.reward_timeout) as self._pool,
        ):
            self._file.begin(self.about(config), restart)
            yield [job for job in self._jobs(config) if not self._file.has_answer(job.line)]
            self.rows = [row for row in self._file.rows() if row["line"] <= self.wanted]

    @property
    def wanted(self) -> int:
        """The number of rows."""
        return len(self.examples) * self.n

    def answer(
        self,
        engine: InferenceEngine,
        jobs: Sequence[Job],
        *,
        on_error: OnError = lambda line, reason: None,
        stop: threading.Event | None = None,
    ) -> None:
        """Answer and score the jobs into the file."""
        self._tokenizer = engine.tokenizer
        waiting = (job for job in jobs if stop is None or not stop.is_set())

        def failed(line: int, reason: str) -> None:
            on_error(
                line, f"row {self.examples[(line - 1) // self.n].number} of the data: {reason}"
            )

        self.stats = answer(
            engine, waiting, self._file, self.params, total=len(jobs), on_error=failed
        )

    def about(self, config: Config) -> dict[str, Any]:
        """What the rows depend on."""
        return {
            **fingerprint.of_config(config),
            "parameters": {**self.params, "timeout": None, "tools": self._schemas()},
            "n": self.n,
            "reward": [function_name(self.reward), self._reward_file()],
            "data": self._digest,
        }

    def _reward_file(self) -> str | None:
        """The hash of the file of a reward function, if it is named by its file."""
        if not isinstance(self.reward, str):
            return None
        return fingerprint.of_file(Path(self.reward.rpartition(":")[0]))

    def _schemas(self) -> list[dict[str, Any]] | None:
        tools = self.params.get("tools")
        return None if tools is None else [tool.schema for tool in as_tools(tools)]

    def report(self, config: Config) -> EvalReport:
        scored = [row for row in self.rows if row.get("reward") is not None]
        cut = sum(row["finish_reason"] == "length" for row in scored)
        return EvalReport(
            metrics=metrics(scored, self.n),
            rows=self.rows,
            model=config.model_name,
            data=self.data,
            limit=self.limit,
            reward=function_name(self.reward),
            n=self.n,
            parameters=self._parameters(config),
            unscored=self.wanted - len(scored),
            cut_by_length=cut / max(1, len(scored)),
            completion_tokens=sum(row["completion_tokens"] for row in scored),
            tokens_per_second=self.stats.tokens_per_second or None,
            date=datetime.date.today().isoformat(),
        )

    def _parameters(self, config: Config) -> dict[str, Any]:
        """What is said of them: all sampling keywords with the values used, and the tools."""
        schemas = self._schemas()
        used = effective_params(self.params, config.rollout)
        return used | ({"tools": schemas} if schemas else {})

    def _refuse_equal_answers(self, config: Config) -> None:
        if self.n > 1 and not effective_params(self.params, config.rollout)["temperature"]:
            raise ConfigError(
                f"n: {self.n} greedy answers of one prompt are all the same; give a temperature."
            )

    def _jobs(self, config: Config) -> Iterator[Job]:
        turns, given = config.rollout.multi_turn, self.params.get("tools")
        tools = bool(turns.tool_config_path if given is None else given)
        interactions = turns.interaction_config_path is not None
        rows = itertools.product(self.examples, range(self.n))
        for line, (example, sample) in enumerate(rows, 1):
            about = {  # what also a row without an answer has
                "number": example.number,
                "sample": sample,
                "data_source": example.data_source,
                "prompt": example.prompt,
                "reward": None,
                "row_id": f"{example.number}.{sample}",
            }
            row = self._scored(example, line, about)
            params = example.params(tools=tools, interactions=interactions)
            yield Job(line, example.prompt, row, params, about)

    def _scored(self, example: Example, line: int, about: dict[str, Any]) -> Callable[..., Any]:
        """A function that makes the row of an answer, with its reward."""

        async def row(output: GenerationOutput) -> dict[str, Any]:
            [answer] = output
            made: dict[str, Any] = {
                **about,
                "ground_truth": example.ground_truth,
                "completion": answer.completion,
                **({"messages": answer.messages} if answer.messages else {}),
                **{name: answer.metadata[name] for name in COPIED if name in answer.metadata},
                **answer_fields(answer, self._tokenizer),
            }
            extra_info = {
                **example.extra_info,
                "num_turns": answer.metadata.get("num_turns"),
                "rollout_reward_scores": answer.metadata.get("reward_scores", {}),
            }
            try:
                reward = await asyncio.wrap_future(
                    self._pool.submit(
                        example.data_source,
                        self._solution(answer, example),
                        example.ground_truth,
                        extra_info,
                    )
                )
            except RewardError as failure:
                reason = str(failure)
                failed = error_row(BadLine(line, reason), "reward_error", reason)
                return {**made, **failed}
            return {**made, "reward": reward.value, "reward_extra": reward.extra}

        return row

    def _solution(self, answer: Any, example: Example) -> str:
        """All text after the prompt, tools' results too, as verl's reward manager decodes it
        (`workers/reward_manager/naive.py`, 0.6.1)."""
        about = answer.metadata
        if self._tokenizer is None:  # a server gives text, and no tokens of the template
            asked = 1 if isinstance(example.prompt, str) else len(example.prompt)
            said = [message.get("content") or "" for message in (answer.messages or [])[asked:]]
            return "\n".join(said) or str(answer.completion)
        ids = about["response_ids"][: about.get("response_tokens", about["completion_tokens"])]
        return decoded_text(ids, self._tokenizer, skip_special_tokens=True)
