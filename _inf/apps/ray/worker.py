"""An engine as a Ray actor that answers lines of a batch file. It does not import Ray."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from _inf.apps.batch import fingerprint
from _inf.apps.batch.lines import parse
from _inf.apps.batch.runner import Answer, answer, no_warnings_of_rows
from _inf.errors import ConfigError, EngineDeadError

if TYPE_CHECKING:
    from _inf.parts.typed import GenerateParams
    from inf import InferenceEngine


class InferenceWorker:
    """For `ray.data.Dataset.map_batches`: starts an engine in the actor at the first batch.

    config: as for `InferenceEngine`. params: `generate`'s keywords for all lines; a line's own
    override them. model: the digest that the model's folder must have; None: any. rollouts: answers
    have the form of docs/rollouts.md.

    A batch has a column `text` with JSON lines in the forms of docs/batch.md (`ray.data.read_text`
    makes it), and may have a column `line` with their numbers, from which each line's seed is
    derived (without it, line numbers start at 1 in each batch). The result has two more columns:
    `answer`, the row that `inf batch` would write (JSON, with an "error" if there is no answer),
    and `completion_tokens`.

    Several threads may call it at once: the engine then runs their lines together. An engine that
    dies is restarted once per batch; if it dies again, or cannot start, its error is raised.
    """

    def __init__(
        self,
        config: Any = None,
        params: Mapping[str, object] | None = None,
        model: str | None = None,
        rollouts: bool = False,
    ) -> None:
        self._config, self._params = config, dict(params or {})
        self._model, self._rollouts = model, rollouts
        self._engine: InferenceEngine | None = None
        self._starting = threading.Lock()

    def __call__(self, batch: Mapping[str, object]) -> dict[str, object]:
        try:
            rows = self._rows(self._running(), batch)
        except EngineDeadError:
            rows = self._rows(self._running(), batch)
        answers = [json.dumps(row) for row, _ in rows]
        return {**batch, "answer": answers, "completion_tokens": [tokens for _, tokens in rows]}

    def _rows(self, engine: InferenceEngine, batch: Mapping[str, Any]) -> list[Answer]:
        model, tokenizer = engine.config.model_name, engine.tokenizer
        jobs = []
        for number, text in enumerate(batch["text"]):
            line = int(batch["line"][number]) if "line" in batch else number + 1
            text = text if isinstance(text, bytes) else str(text).encode()
            jobs.append(parse(text, line, model, tokenizer, rollouts=self._rollouts))

        # Not a method: with an async one Ray would run all of them in one event loop.
        async def answers() -> list[Answer]:
            return await asyncio.gather(*(answer(engine, job, self._params) for job in jobs))

        with no_warnings_of_rows():
            return asyncio.run(answers())

    def _running(self) -> InferenceEngine:
        """Return the engine; start it if there is none, or restart it if it has died."""
        from inf import InferenceEngine

        with self._starting:
            if self._engine is None:
                engine = InferenceEngine(self._config)
                try:
                    # Refuse wrong parameters once, not per line.
                    engine.generate([], **cast("GenerateParams", self._params))
                    folder = engine.model_folder
                    if self._model not in (None, fingerprint.of_model(folder)):
                        raise ConfigError.of(
                            "model_path",
                            f"the files in {folder} on a worker's machine differ from the files of "
                            "the machine that started the run; all machines must have the same "
                            "files.",
                        )
                except BaseException:
                    engine.shutdown()
                    raise
                self._engine = engine
            elif self._engine.dead:
                self._engine.restart()
            return self._engine
