"""Answers a data set with an engine, scores each answer as a verl trainer would, and reports."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from _inf.apps.eval.dataset import EvalData
from _inf.apps.eval.eval_report import EvalReport, faults
from _inf.apps.eval.reward_pool import SECONDS
from _inf.apps.eval.reward_process import RewardFunction
from _inf.apps.eval.run import EvalRun, EvalSettings

if TYPE_CHECKING:
    from inf import InferenceEngine


def evaluate(
    engine: InferenceEngine,
    data: object,
    *,
    reward: RewardFunction | str | None = None,
    n: int = 1,
    out: str | Path | None = None,
    prompt_key: str = "prompt",
    limit: int | None = None,
    shuffle_seed: int | None = None,
    reward_timeout: float = SECONDS,
    reward_workers: int | None = None,
    rescore: bool = False,
    restart: bool = False,
    **params: object,
) -> EvalReport:
    """Answer verl's rows, score the answers, and summarize with verl's own metrics.

    data: a path (.parquet, .jsonl, .json), a `datasets.Dataset`, a pandas table or a list of rows
        with `prompt`, `data_source`, `reward_model.ground_truth` and `extra_info`, whose
        `tools_kwargs` and `interaction_kwargs` the call gets. With an agent loop its `run` gets all
        columns of the row; a row's `agent_name` names its own loop (docs/agent_loops.md).
    reward: `compute_score(data_source, solution_str, ground_truth, extra_info)`, sync or async,
        which returns a number or a dict with `score`; also as "FILE.py:NAME". By default verl's
        `default_compute_score`. It is loaded before the first request. If an agent loop gave the
        answer a `reward_score`, that is its reward; without `reward`, an answer in an environment
        has the environment's reward.
    reward_timeout: seconds for one call of the reward.
    reward_workers: how many processes call it; by default one for each core, at most 8. A process
        runs one call of a sync function at a time, or up to 32 of an async one. 0: a thread of this
        process calls it.
    n: answers per row; pass@k and the standard errors need several. With n=1 answers are greedy
        unless a temperature, a filter or a seed is given.
    out: the stem of the files that are written: STEM.jsonl and STEM.summary.json. A later call
        resumes STEM.jsonl, also with a higher `limit`, unless `restart` is set. Without `out`
        nothing is stored. If the reward has changed, stored answers stay and are scored again.
    rescore: score all stored answers again. Use it if something has changed that is neither the
        reward's code nor a value that it uses, such as a file that it reads.
    params: `generate`'s keywords. The files of `out` identify an `adapter` by its name: set
        `restart` if another adapter now has that name. With `environment_factory` an environment's
        `reset` gets the columns of its row. `agent_kwargs` are further columns, the same for all
        rows.

    Raises `ConfigError` for data, a reward or keywords of another form, before anything is sent. If
    an answer fails or cannot be scored, its row has an `error` and counts in `unscored`, with a
    warning. Another warning names agent loops whose mask is wrong.
    """
    settings = EvalSettings(
        prompt_key=prompt_key,
        n=n,
        limit=limit,
        shuffle_seed=shuffle_seed,
        reward_timeout=reward_timeout,
        reward_workers=reward_workers,
        rescore=rescore,
        restart=restart,
    )
    name = str(data) if isinstance(data, str | os.PathLike) else type(data).__name__
    with tempfile.TemporaryDirectory() as folder:
        asked = EvalData(data, name, Path(out or f"{folder}/rows"), reward)
        run = EvalRun(asked, settings, engine.config, params)
        report = run.run(lambda: contextlib.nullcontext(engine))
    for fault in faults(report):
        warnings.warn(fault, stacklevel=2)
    return report
