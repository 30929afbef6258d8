"""An engine as an actor of Ray Data: lines of a batch file in, their answers out.

Ray itself is not imported here: it makes the object, calls it, and replaces its process.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from _inf.apps.batch import fingerprint
from _inf.apps.batch.lines import parse
from _inf.apps.batch.run_files import Fault, Job
from _inf.apps.batch.runner import Result, answer_one
from _inf.errors import ConfigError, EngineDeadError, InferenceError, shown

# For one call: an engine that died twice under the same lines dies of them.
STARTS = 2


class InferenceWorker:
    """For `ray.data.Dataset.map_batches`: one engine, in the actor's process, at the first batch.

    config: `InferenceEngine`'s. params: `generate`'s keywords for all lines; a line's own go first.
    about: the fingerprint that the engine must have, or `ConfigError`; None: any.

    A batch has a column `text`, JSON lines in the forms of docs/batch.md (`ray.data.read_text`
    makes it), and may have `line`, their numbers, by which lines differ under one seed (without it
    each batch counts from 1). It comes back with three columns more: `answer` (JSON), or `error`
    (why there is none), the other one being empty; `completion_tokens`.

    May be called from several threads at once: the engine then runs their lines together. An engine
    that dies is started again once for a batch; then, and where it cannot start, its error is
    raised.
    """

    def __init__(
        self,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self._config, self._params, self._about = config, dict(params or {}), about
        self._engine: Any = None
        self._starting = threading.Lock()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        texts = [text if isinstance(text, bytes) else str(text).encode() for text in batch["text"]]
        lines = [int(line) for line in batch.get("line", range(1, len(texts) + 1))]
        answered = [_columns(*each) for each in self._answers(texts, lines)]
        names = ("answer", "error", "completion_tokens")
        return {**batch, **dict(zip(names, map(list, zip(*answered, strict=True)), strict=True))}

    def _answers(self, texts: Sequence[bytes], lines: Sequence[int]) -> list[tuple[Result, int]]:
        for _ in range(STARTS):
            engine = self._running()
            model, tokenizer = engine.config.model_name, engine.tokenizer
            jobs = [parse(text, n, model, tokenizer) for text, n in zip(texts, lines, strict=True)]
            answers = asyncio.run(_all(engine, jobs, self._params))
            [*failures] = (each for each, _ in answers if isinstance(each, InferenceError))
            if not failures:
                return answers
            if not isinstance(failures[0], EngineDeadError):
                break
        raise failures[0]

    def _running(self) -> Any:
        """The engine; started where there is none yet or it has died."""
        from inf import InferenceEngine

        with self._starting:
            if self._engine is None:
                engine = InferenceEngine(self._config)
                try:
                    engine.generate([], **self._params)  # refuse wrong parameters once, not by line
                    self._check(engine)
                except BaseException:
                    engine.shutdown()
                    raise
                self._engine = engine
            elif self._engine.rollout.host.death is not None:
                self._engine.restart()
            return self._engine

    def _check(self, engine: Any) -> None:
        found = fingerprint.of_engine(engine)
        for name, wanted in (self._about or {}).items():
            if found[name] != wanted:
                raise ConfigError(
                    f"{name}: {shown(found[name])} on a worker's machine, {shown(wanted)} where "
                    "the run was begun; all must have the same."
                )


async def _all(
    engine: Any, jobs: Sequence[Job | Fault], params: Mapping[str, Any]
) -> list[tuple[Result, int]]:
    return list(await asyncio.gather(*(answer_one(engine, job, params) for job in jobs)))


def _columns(result: Result, tokens: int) -> tuple[str, str, int]:
    if isinstance(result, Fault):
        return "", result.reason, tokens
    return json.dumps(result), "", tokens
