"""A file of prompts to a file of answers, resumable: what `inf batch` does.

In: a running engine and two paths. Out: rows on disk, and a `Tally`. The input is streamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from _inf import fingerprint
from _inf.batch_lines import parse
from _inf.long_run import Tally, answer, calls_at_once
from _inf.record import Fault, Job, Record


def answer_file(
    engine: Any,
    source: Path,
    record: Record,
    params: Mapping[str, Any],
    *,
    restart: bool = False,
    hear: Callable[[Fault], None] = lambda fault: None,
) -> Tally:
    """Answer the lines of `source` that `record` has not; `restart` empties it first.

    Raises `ConfigError` where the record is of another model, parameter or input; see
    `long_run.answer` for what ends a run.
    """
    given = {name: value for name, value in params.items() if value is not None}
    total = begin(record, fingerprint.of_engine(engine), given, source, restart)
    return answer(
        engine,
        jobs(source, engine.config.model_name),
        record,
        given,
        at_once=calls_at_once(engine),
        total=total,
        hear=hear,
    )


def begin(
    record: Record,
    about: Mapping[str, Any],
    params: Mapping[str, Any],
    source: Path,
    restart: bool,
) -> int:
    """Begin the record of `about` (an engine's fingerprint), and count the input's lines."""
    whole = {**about, "parameters": {**params, "timeout": None}}
    record.begin({**whole, "input": fingerprint.of_file(source)}, restart)
    return sum(1 for _ in lines(source))


def jobs(source: Path, model: str) -> Iterator[Job | Fault]:
    return (parse(text, line, model) for line, text in lines(source))


def lines(source: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered from 1. Blank lines are none, but they are counted."""
    with open(source, "rb") as file:
        for line, text in enumerate(file, 1):
            if text.strip():
                yield line, text
