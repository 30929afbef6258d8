"""Corrects SGLang's scheduler and its process: how it ends, finds other ranks, waits, and ends
rows."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch
from sglang.srt.managers.schedule_batch import BaseFinishReason, Req, ScheduleBatch
from sglang.srt.managers.scheduler_output_processor_mixin import DEFAULT_FORCE_STREAM_INTERVAL

from _inf.backends.verl.patch_table import Process, Replace, Wrap
from _inf.runtime.free_memory import give_back
from _inf.types import Tokenizer

if TYPE_CHECKING:
    from sglang.srt.constrained.grammar_manager import GrammarManager
    from sglang.srt.managers.scheduler import Scheduler

IDLE_SECONDS = 0.9  # SGLang's poll ends after a second
LOOKED = "inf_given_back_at"  # on SGLang's scheduler: its steps when memory was last given back


def exit_instead_of_sigquit(
    send_signal: Callable[[psutil.Process, int], None], process: psutil.Process, sig: int
) -> None:
    """Exit the process; the parent notices that by the process' sentinel."""
    if sig != signal.SIGQUIT:
        send_signal(process, sig)
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def meet_in_a_file(
    path: Path,
    initialize: Callable[..., None],
    *args: object,
    init_method: str | None = None,
    **kwargs: object,
) -> None:
    if init_method is not None and init_method.startswith("tcp://127.0.0.1:"):
        # Not a file:// URL: torch would wait without end for a path with "%20" for a space.
        store = torch.distributed.FileStore(str(path), kwargs["world_size"])
        init_method, kwargs["store"] = None, store
    initialize(*args, init_method=init_method, **kwargs)


def touch_log(run_batch: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Touch the engine's log, which is stdout, as a heartbeat; `last_heartbeat` reads it."""
    os.utime(1)
    return run_batch(*args, **kwargs)


def sleep_without_work(sleep: Callable[[Scheduler], None], scheduler: Scheduler) -> None:
    """Sleep until a request comes, for at most a second. After the first one in which none came,
    give back what the C library keeps of the last calls: 341 MB after 32 rows."""
    if scheduler.waiting_queue or scheduler.grammar_manager.has_waiting_grammars():
        return
    begin, kept = time.monotonic(), vars(scheduler)
    sleep(scheduler)
    if time.monotonic() - begin >= IDLE_SECONDS and kept.get(LOOKED) != scheduler.forward_ct:
        kept[LOOKED] = scheduler.forward_ct
        give_back()


def send_only_answers(
    send: Callable[..., None],
    scheduler: object,
    reqs: list[Req],
    *args: object,
    **kwargs: object,
) -> None:
    every = DEFAULT_FORCE_STREAM_INTERVAL
    if any(req.finished_reason or req.stream or not len(req.output_ids) % every for req in reqs):
        send(scheduler, reqs, *args, **kwargs)


def with_tokenizer(
    method: Callable[..., None], self: Scheduler | GrammarManager, *args: Scheduler
) -> None:
    """`method` is a method of the scheduler, or takes the scheduler as its argument."""
    server_args = (args[0] if args else self).server_args
    server_args.skip_tokenizer_init = False
    try:
        method(self, *args)
    finally:
        server_args.skip_tokenizer_init = True


def with_cached_eos(init: Callable[[Scheduler], None], scheduler: Scheduler) -> None:
    init(scheduler)
    vars(scheduler.tokenizer)["eos_token_id"] = scheduler.tokenizer.eos_token_id


class CheckedReq(Req):
    """A request with stop strings, with stop tokens and `ignore_eos`, with `custom_params` or a
    grammar, which a part may check (`check_all`), or one that was aborted; no other, because these
    checks for its end are made for each row and step."""

    tokenizer: Tokenizer
    eos_token_ids: set[int] | None
    to_finish: BaseFinishReason | None

    def check_finished(self, *args: int) -> None:
        """Check the token that a row gets after it was aborted as any other: it may be its last.
        (An abort with a status code is an error, whose row has no tokens of its own.)"""
        aborted = self.to_finish
        if aborted is None or aborted.status_code is not None:
            self.check_all(*args)
            return
        self.to_finish = None
        self.check_all(*args)
        if not self.finished():
            self.finished_reason = aborted

    def check_all(self, *args: int) -> None:
        """What parts wrap."""
        super().check_finished(*args)

    @property
    def early(self) -> bool:
        """Whether it is too short to end."""
        return bool(len(self.output_ids) < self.sampling_params.min_new_tokens)

    def _check_token_based_finish(self, new_accepted_tokens: list[int]) -> bool:
        """`ignore_eos` switches `stop_token_ids` off, too: check them with the EOS ids hidden."""
        params = self.sampling_params
        if not (params.ignore_eos and params.stop_token_ids):
            return bool(super()._check_token_based_finish(new_accepted_tokens))
        kept = self.tokenizer, self.eos_token_ids
        params.ignore_eos, self.tokenizer, self.eos_token_ids = False, None, None
        try:
            return bool(super()._check_token_based_finish(new_accepted_tokens))
        finally:
            params.ignore_eos, (self.tokenizer, self.eos_token_ids) = True, kept

    def tail_str(self) -> str:
        """Return the text in which stop strings are searched. SGLang takes as many tokens as the
        string has characters, but one character may be four tokens."""
        params = self.sampling_params
        longest = max((len(stop.encode()) for stop in params.stop_strs), default=0)
        # Begin at the token that fulfils min_new_tokens: stop strings before it do not count.
        start = max(len(self.output_ids) - longest - 1, params.min_new_tokens - 1, 0)
        return str(self.tokenizer.decode(self.output_ids[start:]))

    def _check_str_based_finish(self) -> bool:
        """A stop string ends an answer before `min_new_tokens`."""
        return not self.early and bool(super()._check_str_based_finish())


def check_what_it_asks_for(
    init: Callable[..., None], req: Req, *args: object, **kwargs: object
) -> None:
    init(req, *args, **kwargs)
    params = req.sampling_params
    asked = params.stop_strs, params.ignore_eos and params.stop_token_ids, params.custom_params
    if any((*asked, params.json_schema, params.regex)):
        req.__class__ = CheckedReq


def check_what_is_aborted(
    abort: Callable[..., None], scheduler: Scheduler, request: object
) -> None:
    abort(scheduler, request)
    for batch in (scheduler.running_batch, scheduler.cur_batch):
        for req in batch.reqs if batch is not None else ():
            if req.to_finish is not None:
                req.__class__ = CheckedReq


def take_turns(
    order: Callable[..., bool],
    policy: object,
    waiting: list[Req],
    running: ScheduleBatch | None = None,
) -> bool:
    """The next row is one of the call with the fewest running rows, so a call of one row waits for
    a single running row to end. SGLang's own order is kept within a call and between calls with
    equally many running rows. Uses no clock, so that all ranks of a group decide alike."""
    prefixes_matched = order(policy, waiting, running)
    rows = Counter(_call(request) for request in (running.reqs if running else ()))
    turns: dict[str, int] = {}
    for request in waiting:
        call = _call(request)
        turns[request.rid] = rows[call]
        rows[call] += 1
    waiting.sort(key=lambda request: turns[request.rid])
    return prefixes_matched


def _call(request: Req) -> str:
    """The name of a request's call, as written by `Call.rid`."""
    return str(request.rid).partition("-")[0]


def patches(process: Process) -> list[Replace]:
    module = "sglang.srt.managers.scheduler"
    meet = functools.partial(meet_in_a_file, process.folder / "rendezvous")
    # fmt: off
    return [
        Wrap("psutil:Process.send_signal", exit_instead_of_sigquit,
             "managers/scheduler.py: a child that fails sends SIGQUIT to its parent, which kills "
             "the caller's process"),
        Wrap("torch.distributed:init_process_group", meet,
             "distributed/parallel_state.py: the schedulers' rendezvous listens on every "
             "interface"),
        Wrap(f"{module}:Scheduler.run_batch", touch_log,
             "managers/scheduler_output_processor_mixin.py: its messages are too few to tell a "
             "slow scheduler from one that hangs: between two may be 50 tokens of each row and "
             "the prefill of all waiting rows, or minutes on a slow CPU"),
        Wrap(f"{module}:Scheduler.maybe_sleep_on_idle", sleep_without_work,
             "if all running rows end at once, its loop finds no batch once, and it sleeps for up "
             "to a second before the rows that wait; and the C library keeps what it freed"),
        Wrap(f"{module}:Scheduler.stream_output_generation", send_only_answers,
             "managers/scheduler_output_processor_mixin.py: each step sends a message, also one "
             "about no row, which costs the caller 0.9 ms of a core on a CPU"),
        Wrap(f"{module}:Scheduler.init_tokenizer", with_tokenizer,
             "without a tokenizer the scheduler dies of stop strings and min_new_tokens"),
        Wrap(f"{module}:Scheduler.init_tokenizer", with_cached_eos,
             "managers/schedule_batch.py asks Transformers (4.57.1) for the EOS id in each step "
             "and row, which finds the token's name and then its id anew each time"),
        Wrap("sglang.srt.managers.schedule_batch:Req.__init__", check_what_it_asks_for,
             "it ends rows with stop strings or stop tokens too late or too early"),
        Wrap(f"{module}:Scheduler.abort_request", check_what_is_aborted,
             "an aborted row gets one more token, which it does not check: one that has ended by "
             "itself comes back as aborted, and would be continued after its end"),
        Wrap("sglang.srt.managers.schedule_policy:SchedulePolicy.calc_priority", take_turns,
             "all calls share one queue: a call after 1,000 rows waits for all of them, and its "
             "priorities can only put a call always first"),
    ]
    # fmt: on
