"""Makes SGLang's overlap schedule exact (sglang 0.5.9, `Scheduler.event_loop_overlap`).

There the scheduler starts a step before it has read the tokens of the step before, so that a GPU
does not wait for its Python code. Penalties, `min_new_tokens` and what parts send `BY_HISTORY` with
need those tokens, or count them: beside such rows a step is read before the next one is prepared.
All other rows, those with grammars too, need no more than what a step knew when it began.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from _inf.backends.verl.patch_table import Process, Replace, Wrap
from _inf.backends.verl.sglang_format import BY_HISTORY, custom_rows

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler


def read_last_step(scheduler: Scheduler) -> None:
    """Process the last step's result now. The loop processes each result once, later: `None` in its
    place is skipped (`skip_what_was_read`)."""
    if scheduler.enable_overlap and (queue := scheduler.result_queue):
        batch, result = queue[0]
        scheduler.process_batch_result(batch, result)
        queue[0] = batch, None


def read_before_penalties(prepare: Callable[[Scheduler], object], scheduler: Scheduler) -> object:
    """Read the last step first if one of its rows needs the tokens before the next."""
    if scheduler.enable_overlap and (last := scheduler.last_batch) is not None:
        penalties = last.sampling_info.penalizer_orchestrator.is_required
        if penalties or any(BY_HISTORY in custom for *_, custom in custom_rows(last.reqs)):
            read_last_step(scheduler)
    return prepare(scheduler)


def skip_what_was_read(
    process: Callable[..., None], scheduler: object, batch: object, result: object
) -> None:
    if result is not None:
        process(scheduler, batch, result)


def copy_with_penalizers(info: SamplingBatchInfo) -> SamplingBatchInfo:
    """Copy the record of a batch for its step. The penalizers and the batch's requests, which they
    lead to, are shared: a step that uses penalties is read before they change."""
    return dataclasses.replace(info)


def patches(process: Process) -> list[Replace]:
    scheduler = "sglang.srt.managers.scheduler:Scheduler"
    # fmt: off
    return [
        Wrap(f"{scheduler}.get_next_batch_to_run", read_before_penalties,
             "managers/schedule_batch.py, `prepare_for_decode`: the penalties of a step lack the "
             "token of the step before, if the two overlap"),
        Wrap(f"{scheduler}.process_batch_result", skip_what_was_read,
             "the other half of the row above"),
        Replace("sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo.copy_for_forward",
                copy_with_penalizers,
                "it sums the penalties in advance, and repetition_penalty is not a sum; and it "
                "leaves out the requests, which have the seeds"),
    ]
    # fmt: on
