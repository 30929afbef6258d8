"""A file of prompts to a file of answers, resumable: what `inf batch` does.

In: a config, a running engine and two paths. Out: rows on disk, and a `RunStats`. The input is
streamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from _inf.apps.batch import fingerprint
from _inf.apps.batch.lines import parse
from _inf.apps.batch.run_files import Fault, Job, RunFiles
from _inf.apps.batch.runner import RunStats, answer, calls_at_once
from _inf.config import Config
from _inf.errors import ConfigError
from _inf.models.resolve import resolve_model
from _inf.request.sampling import check_params


def begin(
    record: RunFiles, config: Config, source: Path, params: Mapping[str, Any], restart: bool
) -> int:
    """Check all that can be without an engine, begin or go on with `record`, and count the lines.

    Raises `ConfigError` where a parameter is wrong, where two lines of `source` have one
    `custom_id`, and where the record is of another model, parameter or input; `restart` empties it.
    """
    check_params(params, config.rollout)
    total = _count(source)
    whole = {**fingerprint_of(config), "parameters": {**params, "timeout": None}}
    record.begin({**whole, "input": fingerprint.of_file(source)}, restart)
    return total


def fingerprint_of(config: Config) -> dict[str, Any]:
    """Of the engine that `config` would start."""
    folder = resolve_model(
        config.model_path,
        trust_remote_code=config.trust_remote_code,
        adapter_path=config.adapter_path,
    )
    return fingerprint.of(config, folder)


def _count(source: Path) -> int:
    """The lines that are not blank; no two of them may have one `custom_id`."""
    first: dict[str, int] = {}
    total = 0
    for job in jobs(source, ""):
        total += 1
        if job.custom_id is None:
            continue
        if (line := first.setdefault(job.custom_id, job.line)) != job.line:
            raise ConfigError(
                f"{source}, line {job.line}: line {line} has the custom_id {job.custom_id!r} too; "
                "answers are told apart by it: give each line its own."
            )
    return total


def answer_file(
    engine: Any,
    source: Path,
    record: RunFiles,
    params: Mapping[str, Any],
    *,
    total: int,
    hear: Callable[[Fault], None] = lambda fault: None,
) -> RunStats:
    """Answer those of the `total` lines of `source` that `record` has not, once it is begun.

    See `long_run.answer` for what ends a run.
    """
    return answer(
        engine,
        jobs(source, engine.config.model_name, engine.tokenizer),
        record,
        params,
        at_once=calls_at_once(engine),
        total=total,
        hear=hear,
    )


def jobs(source: Path, model: str, tokenizer: Any = None) -> Iterator[Job | Fault]:
    return (parse(text, line, model, tokenizer) for line, text in lines(source))


def lines(source: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered from 1. Blank lines are none, but they are counted."""
    with open(source, "rb") as file:
        for line, text in enumerate(file, 1):
            if text.strip():
                yield line, text
