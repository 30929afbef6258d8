"""Runs one evaluation: answers a data set, scores the answers, and reports. A stopped run resumes
from its file of rows."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from anyio.from_thread import start_blocking_portal

from _inf.apps.batch import fingerprint
from _inf.apps.batch.lines import Job
from _inf.apps.batch.output_file import OutputFile
from _inf.apps.batch.runner import OnError, answer_each
from _inf.apps.code_version import depends_on
from _inf.apps.configured_code import of_tools
from _inf.apps.eval.agent_rows import KWARGS, AgentRows
from _inf.apps.eval.dataset import EvalData, Example, check_for_verls_reward, read_examples
from _inf.apps.eval.environments import FACTORY, environment_version
from _inf.apps.eval.eval_report import EvalReport
from _inf.apps.eval.reward import RewardError
from _inf.apps.eval.reward_pool import SECONDS, RewardPool
from _inf.apps.eval.scoring import Judges, Stored, answer_and_score
from _inf.apps.rollouts.sources import answer_fields
from _inf.apps.tally import Tally
from _inf.config import Config
from _inf.errors import ConfigError
from _inf.parts.images.rows import check_backend
from _inf.parts.kept import kept_messages
from _inf.request.effective import effective_params, greedy_unless_asked
from _inf.response.decode import decoded_text
from _inf.response.output import GenerationOutput
from _inf.runtime.files import check_output, write_text
from _inf.tools.definition import as_tools
from _inf.types import Tokenizer

if TYPE_CHECKING:
    from inf import InferenceEngine

PROGRESS = "{0.done} of {0.total} scored, {0.answered} answered{0.speed}"
StartEngine = Callable[[], contextlib.AbstractContextManager["InferenceEngine"]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """How an evaluation asks and scores: keywords of `evaluate`, and options of `inf eval`."""

    prompt_key: Annotated[str, typer.Option(help="The key of the prompt in a row.")] = "prompt"
    n: Annotated[int, typer.Option("-n", "--n", min=1, help="Answers per row.")] = 1
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first LIMIT rows.")] = None
    shuffle_seed: Annotated[int | None, typer.Option(help="Shuffle the rows first.")] = None
    reward_timeout: Annotated[float, typer.Option(help="Seconds for one reward.")] = SECONDS
    reward_workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How many processes call the reward function; 0: this process.",
            show_default="cores, <= 8",
        ),
    ] = None
    rescore: Annotated[bool, typer.Option("--rescore", help="Score stored answers again.")] = False
    restart: Annotated[
        bool, typer.Option("--restart", help="Start again, without the stored answers.")
    ] = False

    def __post_init__(self) -> None:
        for name, value in (("n", self.n), ("limit", self.limit)):
            if value is not None and value < 1:
                raise ConfigError.of(name, f"it must be at least 1, not {value}.")


class EvalRun:
    """One evaluation.

    params: keywords of `generate`. adapter_folder: the folder of the adapter that they name, if a
    later run must have the same files. Raises `ConfigError` for what cannot be asked or scored.
    """

    def __init__(
        self,
        data: EvalData,
        settings: EvalSettings,
        config: Config,
        params: Mapping[str, object],
        adapter_folder: Path | None = None,
    ) -> None:
        self.data, self.settings, self.config = data, settings, config
        self._adapter_folder = adapter_folder
        examples = read_examples(
            data.rows, prompt_key=settings.prompt_key, shuffle_seed=settings.shuffle_seed
        )
        self._digest = hashlib.sha256(
            json.dumps([vars(example) for example in examples], default=_known_by).encode()
        ).hexdigest()
        self._pool = RewardPool(data.reward, settings.reward_timeout, settings.reward_workers)
        self._agents = AgentRows.of(examples, config, params)
        self._environment = environment_version(params)
        # A reward function that was given comes before the environment's rewards.
        scores = self._environment if self._pool.is_verls else None
        self._judges = Judges(self._pool, self._agents.versions, scores)
        self.examples = examples[: settings.limit]
        self._wanted = len(self.examples) * settings.n
        # Without those of the loops, which the rows' jobs have.
        self.params = {name: params[name] for name in params if name != KWARGS}
        tools = params.get("tools")
        self._tools = None if tools is None else as_tools(tools)
        self.stem = Path(str(data.stem).removesuffix(".jsonl"))
        self.rows = Path(f"{self.stem}.jsonl")
        self.summary = Path(f"{self.stem}.summary.json")
        self._inputs = [Path(data.name)]  # or what a benchmark is called
        self._used = self._checked()

    def _checked(self) -> dict[str, object]:
        """Refuse what cannot be asked, scored or written; return the parameters with the config's
        values."""
        for path in (self.rows, self.summary):
            check_output(path, "out", self._inputs)
        n = self.settings.n
        if n == 1:
            greedy_unless_asked(self.params)
        used = effective_params(self.params, self.config.rollout)
        if n > 1 and not used["temperature"]:
            raise ConfigError.of(
                "n", f"{n} greedy answers of one prompt are all the same; give a temperature."
            )
        for example in self.examples:
            check_backend(self.config.rollout.name, example.columns, f"row {example.number}")
        for example in self.examples if self._pool.is_verls else ():
            # A loop, or an environment, may score the row itself.
            if self._agents.of_row(example) is None and self._environment is None:
                check_for_verls_reward(example)
        return used

    def run(
        self,
        start: StartEngine,
        on_error: OnError = lambda line, reason: None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> EvalReport:
        """Answer and score what the file of rows lacks, and report.

        start: makes the engine; it is called if there is anything to answer. on_error: called with
        an answer's number and the reason. tell: called with a line about what was resumed, and with
        the progress now and then.
        """
        with OutputFile(self.rows, self._inputs) as file:
            file.begin(self._answers_depend_on(), self.settings.restart)
            stored = Stored.of(file, self._wanted, self._judges, self.settings.rescore)
            if stored.answers:
                tell(str(stored))
            tally = Tally(self._wanted, stored.rewards, stored.answers, PROGRESS, tell)
            if stored.to_answer or stored.to_score:
                self._finish(file, stored, tally, start, on_error)
            rows = [row for row in file.rows() if row["line"] <= self._wanted]
        tools = {"tools": self._schemas} if self._tools else {}
        judge = self._judges.reported(rows)
        report = EvalReport.of(
            rows,
            self._wanted,
            model=self.config.model_name,
            data=self.data.name,
            limit=self.settings.limit,
            reward=judge.name,
            reward_version=judge.digest,
            n=self.settings.n,
            parameters=self._used | tools | self._agents.about,
            tokens_per_second=tally.tokens_per_second,
            answers_kept=stored.answers,
            rewards_kept=stored.rewards,
            rescored_because=stored.why,
        )
        write_text(self.summary, report.json() + "\n", "out")
        return report

    def _finish(
        self, file: OutputFile, stored: Stored, tally: Tally, start: StartEngine, on_error: OnError
    ) -> None:
        def named(line: int, reason: str) -> None:
            on_error(line, f"row {self._example(line).number} of the data: {reason}")

        answering = None
        with contextlib.ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())  # a notebook's loop runs already
            stack.enter_context(portal.wrap_async_context_manager(self._pool))
            if stored.to_answer:
                engine = stack.enter_context(start())
                jobs = (self._job(line, engine) for line in stored.to_answer)
                answering = partial(answer_each, engine, jobs, self.params)
            todo = (stored.to_score, self._arguments, answering, tally, named)
            portal.call(answer_and_score, file, self._judges, *todo)

    @property
    def _schemas(self) -> list[dict[str, object]] | None:
        return None if self._tools is None else [tool.schema for tool in self._tools]

    def _answers_depend_on(self) -> dict[str, object]:
        """Return what the answers depend on. What scored an answer is in its row."""
        params = {**self.params, "timeout": None, "tools": self._schemas, **self._agents.about}
        params.pop(FACTORY, None)  # it is known by its version
        environments = [self._environment] if self._environment else []
        adapter, folder = {}, self._adapter_folder
        if folder is not None:  # a server's may be on another machine
            adapter["adapter"] = fingerprint.of_model(folder) if folder.is_dir() else str(folder)
        return {
            **depends_on([*self._agents.versions.values(), *environments]),
            **fingerprint.of_config(self.config),
            **of_tools(self._tools or ()),
            "parameters": params,
            **adapter,
            "n": self.settings.n,
            "data": self._digest,
        }

    def _example(self, line: int) -> Example:
        return self.examples[(line - 1) // self.settings.n]

    def _job(self, line: int, engine: InferenceEngine) -> Job:
        example, sample = self._example(line), (line - 1) % self.settings.n
        copied = {  # what also a row without an answer has
            "number": example.number,
            "sample": sample,
            "data_source": example.data_source,
            "prompt": kept_messages(example.prompt),
            "ground_truth": example.ground_truth,
            "reward": None,
            "row_id": f"{example.number}.{sample}",
        }
        turns, tools = engine.config.rollout.multi_turn, self.params.get("tools")
        if self._agents.of_row(example) is not None:
            params = self._agents.params(example)
        else:
            params = example.params(
                tools=bool(turns.tool_config_path if tools is None else tools),
                interactions=turns.interaction_config_path is not None,
            )
            if self._environment is not None:
                params["environment_kwargs"] = example.columns
        row = partial(_row, copied, engine.tokenizer)
        return Job(line, example.prompt, row, params, copied)

    def _arguments(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the reward function's arguments for a row with an answer. An agent loop's
        `extra_fields` are merged as in verl 0.6.1 (`experimental/reward/reward_loop/naive.py`)."""
        example = self._example(row["line"])
        looped = self._agents.of_row(example) is not None
        if self._pool.is_verls and (looped or self._environment is not None):
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


def _known_by(value: object) -> str:
    """What a value that JSON cannot hold, such as an image, is known by."""
    data = value.tobytes() if hasattr(value, "tobytes") else value
    return hashlib.sha256(data).hexdigest() if isinstance(data, bytes) else repr(value)


def _row(
    copied: Mapping[str, object], tokenizer: Tokenizer, output: GenerationOutput
) -> dict[str, object]:
    [answer] = output
    row = {
        **copied,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        **answer_fields(answer, tokenizer),
    }
    solution = _solution(row, tokenizer)
    return row if solution == row.get("completion") else {**row, "solution_str": solution}


def _solution(row: Mapping[str, Any], tokenizer: Tokenizer) -> str:
    """Return all text after the prompt, tools' results too, as verl's reward manager decodes it
    (`workers/reward_manager/naive.py`, 0.6.1)."""
    if "response_ids" in row:
        return decoded_text(row["response_ids"], tokenizer, skip_special_tokens=True)
    prompts = 1 if isinstance(row["prompt"], str) else len(row["prompt"])  # a server of texts
    texts = [message.get("content") or "" for message in row.get("messages", [])[prompts:]]
    return "\n".join(texts) or str(row.get("completion", ""))
