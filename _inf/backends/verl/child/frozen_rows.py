"""Freezes rows between two tokens, and loads new weights meanwhile.

`frozen` is SGLang's own `_engine_paused`: its loop then only takes messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from sglang.srt.managers.io_struct import (
    AbortReq,
    GetInternalStateReqOutput,
    PauseGenerationReqInput,
)
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from _inf.backends.verl.child.overlap import read_last_step
from _inf.backends.verl.patch_table import Process, Replace, Wrap
from _inf.backends.verl.sglang_format import KNOWN_TOKENS, custom_of

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler

CACHE_NUMBER = "inf_cache_number"  # on the scheduler: how often its cache was emptied under rows


def stand_still(scheduler: Scheduler, request: PauseGenerationReqInput) -> None:
    """Leave everything as it is, so that the loop goes on exactly as if it had not been paused; or
    send all rows back to the queue, with what they have."""
    read_last_step(scheduler)
    scheduler._engine_paused = True
    if request.mode == "retract":
        last, running = scheduler.last_batch, scheduler.running_batch
        new = last is not None and last is not running and last.forward_mode.is_extend()
        for batch in (last, running) if new else (running,):
            batch.filter_batch(v1_spec_info_filtered=True)
            for req in batch.retract_all(scheduler.server_args) if batch.reqs else ():
                scheduler._add_request_to_queue(req)
            batch.batch_is_full = False
        if scheduler.enable_overlap:
            scheduler.result_queue.clear()
        scheduler.last_batch = scheduler.cur_batch = scheduler.chunked_req = None


def wait_while_frozen(receive: Callable[[Scheduler], object], scheduler: Scheduler) -> object:
    """Receive messages; between two of them sleep, with the heartbeat that `touch_log` gives."""
    if scheduler._engine_paused:
        os.utime(1)
        if scheduler.idle_sleeper is not None:
            scheduler.idle_sleeper.maybe_sleep()
    return receive(scheduler)


def tokens_of_rows(get: Callable[..., object], scheduler: Scheduler, request: object) -> object:
    """While rows are frozen the state is how many tokens each of them has, by request id."""
    if not scheduler._engine_paused:
        return get(scheduler, request)
    batches = (scheduler.running_batch, scheduler.last_batch)
    rows = [req for batch in batches if batch is not None for req in batch.reqs]
    rows += [*scheduler.waiting_queue, *scheduler.grammar_manager.grammar_queue]
    rows += [scheduler.chunked_req] if scheduler.chunked_req is not None else []
    tokens = {req.rid: _new_tokens(req) for req in rows if not req.finished()}
    return GetInternalStateReqOutput(internal_state=tokens)


def _new_tokens(req: Req) -> int:
    """How many tokens of its answer it has, without those that it began with."""
    known: int = custom_of(req).get(KNOWN_TOKENS, 0)
    return len(req.output_ids) - known


def empty_for_new_rows(flush: Callable[[Scheduler], bool], scheduler: Scheduler) -> bool:
    """Under frozen rows, which keep their keys and values, begin a new cache: rows that have no
    token yet find nothing in the one before, nor do later ones."""
    if flush(scheduler):
        return True
    if not scheduler._engine_paused:
        return False
    vars(scheduler)[CACHE_NUMBER] = number = vars(scheduler).get(CACHE_NUMBER, 0) + 1
    _begin_again(scheduler)
    for req in [*scheduler.waiting_queue, *scheduler.grammar_manager.grammar_queue]:
        if not _new_tokens(req):
            req.extra_key = _key(number, req.lora_id)
    cache = scheduler.tree_cache
    cache.evict(EvictParams(num_tokens=cache.evictable_size()))
    return True


def _begin_again(scheduler: Scheduler) -> None:
    """Send the row whose prompt is computed in part back to the queue."""
    req, batch = scheduler.chunked_req, scheduler.last_batch
    if req is None:
        return
    batch.release_req(batch.reqs.index(req), 1, scheduler.server_args)
    batch.filter_batch(chunked_req_to_exclude=[req])
    scheduler.waiting_queue.insert(0, req)
    scheduler.chunked_req = None


def _key(number: int, lora_id: str | None) -> str:
    """As `Req` joins them, whose rows of different keys share nothing in the prefix cache."""
    return f"{number}-" + (lora_id or "")


def in_newest_cache(init: Callable[..., None], scheduler: Scheduler, req: Req) -> None:
    init(scheduler, req)
    if number := vars(scheduler).get(CACHE_NUMBER):
        req.extra_key = _key(number, req.lora_id)


def end_with_tokens(abort: Callable[..., None], scheduler: Scheduler, request: AbortReq) -> None:
    """End rows that were sent back to the queue with all of their tokens, and those that wait for
    their grammars as any that waits."""

    def named(queue: list[Req]) -> list[Req]:
        return [req for req in queue if request.abort_all or req.rid.startswith(request.rid)]

    of_grammars = scheduler.grammar_manager.grammar_queue
    for req in named(of_grammars):
        req.grammar.cancel()
        of_grammars.remove(req)
        scheduler.waiting_queue.append(req)
    for req in named(scheduler.waiting_queue):
        if _new_tokens(req):
            scheduler.waiting_queue.remove(req)
            req.finished_reason = FINISH_ABORT()
            scheduler.stream_output([req], req.return_logprob)
    abort(scheduler, request)


def patches(process: Process) -> list[Replace]:
    module = "sglang.srt.managers.scheduler:Scheduler"
    # fmt: off
    return [
        Replace(f"{module}.pause_generation", stand_still,
                "managers/scheduler.py: it joins the last prompts to the running rows; if there "
                "are none, or all of the new ones have ended, the scheduler dies or mixes rows, "
                "and a second pause loses a prompt that was computed in part"),
        Wrap(f"{module}.recv_requests", wait_while_frozen,
             "managers/scheduler.py: while paused, its loop keeps a core busy and sends no "
             "heartbeat"),
        Wrap(f"{module}.get_internal_state", tokens_of_rows,
             "managers/scheduler.py: a pause has no answer, and nothing tells which token is next"),
        Wrap(f"{module}.flush_cache", empty_for_new_rows,
             "managers/scheduler.py: it refuses while rows are frozen, and new weights under them "
             "would leave keys and values of the old ones to new rows"),
        Wrap(f"{module}.abort_request", end_with_tokens,
             "managers/tokenizer_manager.py, `_handle_abort_req`: a row that is ended in the queue "
             "loses the tokens that were not sent yet, and in a stream all but the last; one whose "
             "grammar is compiled fails (constrained/grammar_manager.py)"),
        Wrap(f"{module}.init_req_max_new_tokens", in_newest_cache,
             "the other half of `empty_for_new_rows`: it does not pass a request's `extra_key` on"),
    ]
    # fmt: on
