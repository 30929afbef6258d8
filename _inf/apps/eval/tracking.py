"""Sends an evaluation's metrics to an experiment tracker, through verl's own `Tracking`."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys

from _inf.apps.eval.eval_report import EvalReport
from _inf.errors import ConfigError, InferenceError, error_text
from _inf.runtime.extras import require_verl

TRACKERS = ("wandb", "mlflow", "trackio", "tensorboard")  # each also its package's name
PROJECT = "inf-eval"


def check_tracker(name: str) -> None:
    """Refuse a tracker that verl does not have or that is not installed."""
    if name not in TRACKERS:
        raise ConfigError.of("log", f"{name!r} is none of {', '.join(TRACKERS)}.")
    require_verl("log")
    if importlib.util.find_spec(name) is None:
        raise ConfigError.of("log", f"the package {name} is not installed: pip install {name}")


def global_step(model_path: str | None) -> int:
    """Return the training step that the path of a verl checkpoint has; 0 for other models."""
    found = re.findall(r"global_step_(\d+)", model_path or "")
    return int(found[-1]) if found else 0


def log_metrics(tracker: str, report: EvalReport, run: str, step: int) -> None:
    """Log the metrics under the names of a verl log. run: the run's name in `PROJECT`."""
    facts = {"model": report.model, "reward": report.reward, "n": report.n}
    config = {
        "trainer": {"project_name": PROJECT, "experiment_name": run},  # verl reads keys of it
        "evaluation": facts | {"parameters": {k: repr(v) for k, v in report.parameters.items()}},
    }
    with contextlib.redirect_stdout(sys.stderr):
        try:
            from verl.utils.tracking import Tracking

            tracking = Tracking(PROJECT, run, default_backend=tracker, config=config)
            tracking.log(report.metrics, step=step)
            del tracking  # finishes the run
        except Exception as failure:
            raise InferenceError(
                f"log: {tracker} took no metrics: {error_text(failure)}. The rows and the summary "
                "are written; the same command sends them again."
            ) from failure
