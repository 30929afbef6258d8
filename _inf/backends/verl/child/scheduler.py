"""Corrections of SGLang's scheduler and its process; `scheduler_patches.py` has the reasons."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch

from _inf.backends.verl.child.grammar_fixes import end_with_its_grammar


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


def touch_log(run_batch: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Touch the engine's log, which is stdout, as a heartbeat; `last_heartbeat` reads it."""
    os.utime(1)
    return run_batch(*args, **kwargs)


def sleep_without_work(sleep: Callable[[Any], None], scheduler: Any) -> None:
    if not scheduler.waiting_queue and not scheduler.grammar_manager.has_waiting_grammars():
        sleep(scheduler)


def with_tokenizer(method: Callable[..., None], self: Any, *args: Any) -> None:
    """`method` is a method of the scheduler, or takes the scheduler as its argument."""
    server_args = (args[0] if args else self).server_args
    server_args.skip_tokenizer_init = False
    try:
        method(self, *args)
    finally:
        server_args.skip_tokenizer_init = True


def with_cached_eos(init: Callable[[Any], None], scheduler: Any) -> None:
    init(scheduler)
    vars(scheduler.tokenizer)["eos_token_id"] = scheduler.tokenizer.eos_token_id


def unpinned_without_a_gpu(
    build: Callable[..., None],
    self: Any,
    num_tokens: int,
    num_hidden_layers: int,
    num_experts_per_tok: int,
) -> None:
    shape = num_tokens, num_hidden_layers, num_experts_per_tok
    if torch.cuda.is_available():
        build(self, *shape)
        return
    self.num_tokens = num_tokens
    self.buffer = torch.zeros(shape, dtype=torch.int32)


def temperature_of_top_k_1(build: Callable[..., Any], batch: ScheduleBatch, vocab_size: int) -> Any:
    info = build(batch, vocab_size)
    # SGLang gives a greedy row temperature 1.
    info.is_all_greedy &= all(req.sampling_params.temperature == 1.0 for req in batch.reqs)
    return info


class CheckedReq(Req):
    """A request with a grammar, with stop strings, or with stop tokens beside `ignore_eos`; no
    other, because these checks for its end are made for each row and step."""

    tokenizer: Any
    eos_token_ids: Any

    def check_finished(self, *args: Any) -> None:
        """Under `ignore_eos` SGLang continues a row after the end of its grammar."""
        end_with_its_grammar(super().check_finished, self, *args)

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
        early = len(self.output_ids) < self.sampling_params.min_new_tokens
        return not early and bool(super()._check_str_based_finish())


def check_what_it_asks_for(init: Callable[..., None], req: Any, *args: Any, **kwargs: Any) -> None:
    init(req, *args, **kwargs)
    params = req.sampling_params
    grammars = params.json_schema, params.regex, params.ebnf, params.structural_tag
    if any(grammars) or params.stop_strs or (params.ignore_eos and params.stop_token_ids):
        req.__class__ = CheckedReq
