"""One evaluation: answers a data set and scores the answers; the file of rows is what a stopped run
resumes."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio.from_thread import start_blocking_portal

from _inf.apps.batch import fingerprint
from _inf.apps.batch.lines import Job
from _inf.apps.batch.output_file import OutputFile
from _inf.apps.batch.runner import OnError, answer_each
from _inf.apps.code_version import CodeVersion, depends_on
from _inf.apps.configured_code import of_tools
from _inf.apps.eval.agent_rows import KWARGS, AgentRows
from _inf.apps.eval.dataset import Example, check_for_verls_reward
from _inf.apps.eval.environments import ENVIRONMENT, environment_version
from _inf.apps.eval.environments import KEYWORD as FACTORY
from _inf.apps.eval.eval_report import EvalReport
from _inf.apps.eval.reward import RewardPool
from _inf.apps.eval.reward_worker import RewardError
from _inf.apps.eval.scoring import Stored, answer_and_score, judge_of, stored_answers
from _inf.apps.rollouts.sources import answer_fields
from _inf.apps.tally import Tally
from _inf.config import Config
from _inf.errors import ConfigError
from _inf.request.sampling import effective_params, greedy_unless_asked
from _inf.response.decode import decoded_text
from _inf.response.output import GenerationOutput
from _inf.tools.definition import as_tools
from _inf.types import Tokenizer

if TYPE_CHECKING:
    from inf import InferenceEngine

PROGRESS = "{0.done} of {0.total} scored, {0.answered} answered{0.speed}"


@dataclasses.dataclass
class EvalRun:
    """One evaluation. data: the data's name. limit: of the examples; a later run of the same files
    may have a higher one. adapter_folder: of the adapter that `params` name, if its files are to be
    the same in a later run. The others: as of `evaluate`."""

    examples: Sequence[Example]
    data: str
    stem: Path
    config: Config
    params: dict[str, Any]
    pool: RewardPool
    _: dataclasses.KW_ONLY
    n: int
    limit: int | None
    rescore: bool
    restart: bool
    adapter_folder: Path | None = None

    def __post_init__(self) -> None:
        for name, value in (("n", self.n), ("limit", self.limit)):
            if value is not None and value < 1:
                raise ConfigError.of(name, f"it must be at least 1, not {value}.")
        self._agents = AgentRows.of(self.examples, self.config, self.params)
        self.params.pop(KWARGS, None)  # a row's own have them
        self._environment = environment_version(self.params)
        self._digest = self._digest_of_data()
        tools = self.params.get("tools")
        self._tools = None if tools is None else as_tools(tools)
        self.examples = self.examples[: self.limit]
        self.stem = Path(str(self.stem).removesuffix(".jsonl"))
        rows = Path(f"{self.stem}.jsonl")
        if rows.exists() and Path(self.data).exists() and rows.samefile(self.data):
            raise ConfigError.of("out", f"{rows} is also DATA; name another file for the answers.")
        self._wanted = len(self.examples) * self.n
        if self.n == 1:
            greedy_unless_asked(self.params)
        self._used = effective_params(self.params, self.config.rollout)
        if self.n > 1 and not self._used["temperature"]:
            raise ConfigError.of(
                "n", f"{self.n} greedy answers of one prompt are all the same; give a temperature."
            )
        for each in self.examples if self.pool.is_verls else ():
            # A loop, or an environment, may score the row itself.
            if self._agents.of_row(each) is None and self._environment is None:
                check_for_verls_reward(each)

    def run(
        self,
        start: Callable[[], contextlib.AbstractContextManager[InferenceEngine]],
        on_error: OnError = lambda line, reason: None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> EvalReport:
        """Answer and score what the file of rows lacks, and report. start: called for the engine if
        there is anything to answer. on_error: called with an answer's number and the reason. tell:
        called with what was resumed, and with the progress now and then."""
        version = self.pool.version
        with OutputFile(Path(f"{self.stem}.jsonl")) as file:
            file.begin(self._about(), self.restart)
            stored = stored_answers(file, self._wanted, version, self._scores, self.rescore)
            if stored.answers:
                tell(str(stored))
            tally = Tally(self._wanted, stored.rewards, stored.answers, PROGRESS, tell)
            if stored.to_answer or stored.to_score:
                self._finish(file, stored, tally, start, on_error)
            rows = [row for row in file.rows() if row["line"] <= self._wanted]
        tools = {"tools": self._schemas} if self._tools else {}
        judge = judge_of(rows, version, self._scores)
        report = EvalReport.of(
            rows,
            self._wanted,
            model=self.config.model_name,
            data=self.data,
            limit=self.limit,
            reward=judge.name,
            reward_version=judge.digest,
            n=self.n,
            parameters=self._used | tools | self._agents.about,
            tokens_per_second=tally.tokens_per_second,
            answers_kept=stored.answers,
            rewards_kept=stored.rewards,
            rescored_because=stored.why,
        )
        Path(f"{self.stem}.summary.json").write_text(report.json() + "\n", encoding="utf-8")
        return report

    def _finish(
        self,
        file: OutputFile,
        stored: Stored,
        tally: Tally,
        start: Callable[[], contextlib.AbstractContextManager[InferenceEngine]],
        on_error: OnError,
    ) -> None:
        def named(line: int, reason: str) -> None:
            on_error(line, f"row {self._example(line).number} of the data: {reason}")

        answering = None
        with contextlib.ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())  # a notebook's loop runs already
            pool = stack.enter_context(portal.wrap_async_context_manager(self.pool))
            if stored.to_answer:
                engine = stack.enter_context(start())
                self._agents.check_engine(engine, self.examples, self.params)
                jobs = [self._job(line, engine) for line in stored.to_answer]
                answering = partial(answer_each, engine, jobs, self.params)
            own = {**self._agents.versions}
            if self._scores is not None:
                own[ENVIRONMENT] = self._scores
            todo = (stored.to_score, self._arguments, answering, own, tally, named)
            portal.call(answer_and_score, file, pool, *todo)

    @property
    def _scores(self) -> CodeVersion | None:
        """The environment, if its rewards count: a reward function that was given comes first."""
        return self._environment if self.pool.is_verls else None

    @property
    def _schemas(self) -> list[dict[str, Any]] | None:
        return None if self._tools is None else [tool.schema for tool in self._tools]

    def _digest_of_data(self) -> str:
        """Without the columns that only agent loops and environments get, if there is none: files
        that were begun before these were read are resumed."""
        read = bool(self._agents.versions or self._environment)
        rows = [vars(each) if read else each.answered_without_a_loop for each in self.examples]
        return hashlib.sha256(json.dumps(rows, default=repr).encode()).hexdigest()

    def _about(self) -> dict[str, Any]:
        """What the answers depend on. A row says itself which reward function scored it."""
        params = {**self.params, "timeout": None, "tools": self._schemas, **self._agents.about}
        params.pop(FACTORY, None)  # it is known by its version
        environments = [self._environment] if self._environment else []
        adapter, folder = {}, self.adapter_folder
        if folder is not None:  # a server's may be on another machine
            known = folder.is_dir()
            adapter = {"adapter": fingerprint.of_model(folder) if known else str(folder)}
        return {
            **depends_on([*self._agents.versions.values(), *environments]),
            **fingerprint.of_config(self.config),
            **of_tools(self._tools or ()),
            "parameters": params,
            **adapter,
            "n": self.n,
            "data": self._digest,
        }

    def _example(self, line: int) -> Example:
        return self.examples[(line - 1) // self.n]

    def _job(self, line: int, engine: InferenceEngine) -> Job:
        example, sample = self._example(line), (line - 1) % self.n
        turns, given = engine.config.rollout.multi_turn, self.params.get("tools")
        about = {  # what also a row without an answer has
            "number": example.number,
            "sample": sample,
            "data_source": example.data_source,
            "prompt": example.prompt,
            "reward": None,
            "row_id": f"{example.number}.{sample}",
        }

        def row(output: GenerationOutput) -> dict[str, Any]:
            [answer] = output
            row = {
                "ground_truth": example.ground_truth,
                "prompt_tokens": answer.prompt_tokens,
                "completion_tokens": answer.completion_tokens,
                **answer_fields(answer, engine.tokenizer),
            }
            solution = _solution(row, example, engine.tokenizer)
            if solution != row.get("completion"):
                row["solution_str"] = solution
            return about | row

        if self._agents.of_row(example) is not None:
            return Job(line, example.prompt, row, self._agents.params(example), about)
        params = example.params(
            tools=bool(turns.tool_config_path if given is None else given),
            interactions=turns.interaction_config_path is not None,
        )
        if self._environment is not None:
            params["environment_kwargs"] = example.columns
        return Job(line, example.prompt, row, params, about)

    def _arguments(self, row: dict[str, Any]) -> dict[str, Any]:
        """What the reward function gets for a row with an answer; an agent loop's `extra_fields`
        are merged as verl 0.6.1 does (`experimental/reward/reward_loop/naive.py`)."""
        example = self._example(row["line"])
        looped = self._agents.of_row(example) is not None
        if self.pool.is_verls and (looped or self._environment is not None):
            try:
                check_for_verls_reward(example)
            except ConfigError as failure:
                gave = "agent loop gave no reward_score" if looped else "environment gave no reward"
                raise RewardError(f"the {gave}, and {failure}") from None
        turns = {
            "num_turns": row.get("num_turns"),
            "rollout_reward_scores": row.get("reward_scores", {}),
        }
        return {
            "data_source": example.data_source,
            "solution_str": row.get("solution_str", row.get("completion", "")),
            "ground_truth": example.ground_truth,
            "extra_info": {**example.extra_info, **turns, **row.get("extra_fields", {})},
        }


def _solution(row: Mapping[str, Any], example: Example, tokenizer: Tokenizer) -> str:
    """All text after the prompt, tools' results too, as verl's reward manager decodes it
    (`workers/reward_manager/naive.py`, 0.6.1)."""
    if "response_ids" in row:
        return decoded_text(row["response_ids"], tokenizer, skip_special_tokens=True)
    asked = 1 if isinstance(example.prompt, str) else len(example.prompt)  # of a server of texts
    said = [message.get("content") or "" for message in row.get("messages", [])[asked:]]
    return "\n".join(said) or str(row.get("completion", ""))
