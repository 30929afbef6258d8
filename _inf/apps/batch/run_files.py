"""The files of one long run: OUT.jsonl, OUT.errors.jsonl and OUT.meta.json, the run's fingerprint.

Each job ends in exactly one line of the first two, in the jobs' order, on disk before the next
one's. So what is done is what stands there, whenever the process was killed. Knows nothing of
engines.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from _inf.apps.batch.append_log import AppendLog, not_written
from _inf.errors import ConfigError, shown
from _inf.response.output import GenerationOutput


@dataclasses.dataclass(frozen=True)
class Job:
    """A prompt with its own parameters, and what becomes of its answer; `line` counts from 1."""

    line: int
    prompt: Any
    row: Callable[[GenerationOutput], dict[str, Any]]
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    custom_id: str | None = None


@dataclasses.dataclass(frozen=True)
class Fault:
    """A line that cannot be answered, and why."""

    line: int
    reason: str
    custom_id: str | None = None


class RunFiles:
    """A context manager. `begin` before anything else."""

    def __init__(self, out: Path) -> None:
        stem = out.with_suffix("") if out.suffix == ".jsonl" else out
        self.meta = Path(f"{stem}.meta.json")
        self.out = AppendLog(out)
        self.errors = AppendLog(Path(f"{stem}.errors.jsonl"))
        self.rows = 0
        self._faulty: set[int] = set()

    def begin(self, about: Mapping[str, Any], restart: bool) -> None:
        """Go on with what stands there, or begin anew; refuse what another run wrote.

        `about`: the fingerprint. Raises `ConfigError`, which names what differs.
        """
        about = json.loads(json.dumps(about))
        if restart:
            self.meta.unlink(missing_ok=True)
            self.out.clear()
            self.errors.clear()
        elif not self.out.empty or not self.errors.empty:
            self._check(about)
        self._note(about)
        self.rows = self.out.cut()
        self.errors.cut()
        self._faulty = {row["line"] for row in self.errors.rows()}

    def known(self) -> dict[str, Any]:
        """The fingerprint that stands there; empty where none does."""
        try:
            value = json.loads(self.meta.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def _check(self, about: Mapping[str, Any]) -> None:
        known = self.known()
        if not known:
            raise ConfigError(
                f"{self.out.path} holds rows, and no {self.meta.name} says whose; name another "
                "file, or empty it with --restart."
            )
        if about.get("format") != known.get("format"):
            raise ConfigError(
                f"{self.out.path} was begun by another version of inf, which read lines or drew "
                "seeds otherwise; finish it with that version, name another file, or begin anew "
                "with --restart."
            )
        for name in {**about, **known}:
            if about.get(name) != known.get(name):
                raise ConfigError(
                    f"{self.out.path} was begun with {name}={shown(known.get(name))}, and now it "
                    f"is {name}={shown(about.get(name))}. Go back to it, name another file, or "
                    "begin anew with --restart."
                )

    def _note(self, about: Mapping[str, Any]) -> None:
        new = self.meta.with_name(f"{self.meta.name}.new")
        try:
            new.write_text(json.dumps(about, indent=1) + "\n")
            with open(new, "rb") as file:
                os.fsync(file.fileno())
            new.replace(self.meta)
        except OSError as failure:
            new.unlink(missing_ok=True)
            raise not_written(self.meta, failure) from failure

    @property
    def done(self) -> int:
        return self.rows + len(self._faulty)

    def remaining(self, jobs: Iterable[Job | Fault]) -> Iterator[Job | Fault]:
        """The jobs that no line stands for yet."""
        rows = self.rows
        for job in jobs:
            if job.line in self._faulty:
                continue
            if rows and isinstance(job, Job):
                rows -= 1
                continue
            yield job

    def keep(self, results: Iterable[dict[str, Any] | Fault]) -> None:
        """Write the next results, in order."""
        for faulty, some in itertools.groupby(results, lambda each: isinstance(each, Fault)):
            rows = [vars(each) if isinstance(each, Fault) else each for each in some]
            (self.errors if faulty else self.out).append(rows)

    def __enter__(self) -> RunFiles:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.errors.empty:
            self.errors.path.unlink(missing_ok=True)
        if self.out.empty and not self.meta.exists():  # the run never began
            self.out.path.unlink(missing_ok=True)
        self.out.close()
        self.errors.close()
