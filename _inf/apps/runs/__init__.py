"""The samples that a trainer writes at each step, over a whole run (docs/your_run.md)."""

from _inf.apps.runs.run import Run, load_run

__all__ = ["Run", "load_run"]
