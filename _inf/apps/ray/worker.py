"""An engine as an actor of Ray: lines of a batch file in, their answers out.

Ray itself is not imported here: it makes the object, calls it, and replaces its process.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from _inf.apps.batch import fingerprint
from _inf.apps.batch.lines import parse
from _inf.apps.batch.runner import answer_one
from _inf.errors import ConfigError, EngineDeadError

if TYPE_CHECKING:
    from _inf.request.sampling import GenerateParams
    from inf import InferenceEngine


class InferenceWorker:
    """For `ray.data.Dataset.map_batches`: one engine, in the actor's process, at the first batch.

    config: `InferenceEngine`'s. params: `generate`'s keywords for all lines; a line's own go first.
    model: the digest that the model's folder must have, or `ConfigError`; None: any.

    A batch has a column `text`, JSON lines in the forms of docs/batch.md (`ray.data.read_text`
    makes it), and may have `line`, their numbers, by which lines differ under one seed (without it
    each batch counts from 1). It comes back with two columns more: `answer`, the row as `inf batch`
    would write it (JSON, with an "error" where there is no answer), and `completion_tokens`.

    May be called from several threads at once: the engine then runs their lines together. An engine
    that dies is started again once for a batch; then, and where it cannot start, its error is
    raised.
    """

    def __init__(
        self, config: Any = None, params: Mapping[str, Any] | None = None, model: str | None = None
    ) -> None:
        self._config, self._params, self._model = config, dict(params or {}), model
        self._engine: InferenceEngine | None = None
        self._starting = threading.Lock()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        texts = [text if isinstance(text, bytes) else str(text).encode() for text in batch["text"]]
        lines = [int(line) for line in batch.get("line", range(1, len(texts) + 1))]
        try:
            rows = asyncio.run(_answers(self._running(), texts, lines, self._params))
        except EngineDeadError:
            rows = asyncio.run(_answers(self._running(), texts, lines, self._params))
        answers = [json.dumps(row) for row, _ in rows]
        return {**batch, "answer": answers, "completion_tokens": [tokens for _, tokens in rows]}

    def _running(self) -> InferenceEngine:
        """The engine; started where there is none yet or it has died."""
        from inf import InferenceEngine

        with self._starting:
            if self._engine is None:
                engine = InferenceEngine(self._config)
                try:
                    # Refuse wrong parameters once, not by line.
                    engine.generate([], **cast("GenerateParams", self._params))
                    self._check_model(engine)
                except BaseException:
                    engine.shutdown()
                    raise
                self._engine = engine
            elif self._engine.rollout.host.death is not None:
                self._engine.restart()
            return self._engine

    def _check_model(self, engine: InferenceEngine) -> None:
        folder = Path(engine.model_config.local_path)
        if self._model not in (None, fingerprint.of_model(folder)):
            raise ConfigError(
                f"model_path: the files in {folder} on a worker's machine are not those of where "
                "the run was begun; all machines must have the same."
            )


# Not a method: with an async one Ray would run all of them in one event loop.
async def _answers(
    engine: InferenceEngine, texts: Sequence[bytes], lines: Sequence[int], params: Mapping[str, Any]
) -> list[tuple[dict[str, Any], int]]:
    model, tokenizer = engine.config.model_name, engine.tokenizer
    jobs = [parse(text, n, model, tokenizer) for text, n in zip(texts, lines, strict=True)]
    return await asyncio.gather(*(answer_one(engine, job, params) for job in jobs))
