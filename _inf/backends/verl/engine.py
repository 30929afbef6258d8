"""A subclass of verl's SGLang engine that sends one request per row and keeps the raw answers.

It corrects verl 0.6.1, `workers/rollout/sglang_rollout/sglang_rollout.py`, and sglang 0.5.9,
`srt/entrypoints/engine.py` and `srt/managers/tokenizer_manager.py`. Importing it imports both, and
restores the interpreter's settings afterwards.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import functools
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _inf.backends.verl.calls import EndedBefore, RunningRows, current_call
from _inf.backends.verl.sglang_format import (
    KNOWN_TOKENS,
    Answer,
    output_row,
    request_arguments,
    sglang_params,
    whole_row,
)
from _inf.errors import EngineRefusal, InferenceError
from _inf.runtime.host import current_host
from _inf.runtime.interpreter import interpreter_left_alone
from _inf.runtime.processes import Worker
from _inf.runtime.side_by_side import run_rows
from _inf.types import Put, Request, RequestOutput

with interpreter_left_alone():
    from sglang.srt.entrypoints.engine import init_tokenizer_manager
    from sglang.srt.server_args import ServerArgs as ServerArgs
    from verl.workers.rollout.sglang_rollout import sglang_rollout as sglang_rollout

if TYPE_CHECKING:
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    from _inf.backends.verl.changes import PrefixCache

# An answer, for verl's `_post_process_outputs`: it takes longer to pad answers than to decode them.
ONE_TOKEN = {"meta_info": {"output_token_logprobs": [(0.0, 0, None)]}}


# Makes the engine of the rollout that starts in this context.
build_engine: contextvars.ContextVar[Callable[..., Engine]] = contextvars.ContextVar("inf_engine")


class Engine(sglang_rollout.AsyncEngine):
    """verl's engine with our server arguments, our processes, and its raw outputs kept."""

    tokenizer_manager: TokenizerManager

    def __init__(
        self,
        scheduler: Worker,
        server_arguments: dict[str, object],
        free_cache: bool,
        **verl_arguments: object,
    ) -> None:
        self.free_cache = free_cache
        self.refusal: str | None = None  # the reason, while requests are refused
        self.update_failure: Exception | None = None
        self._abandoned: set[str] = set()  # requests that are being aborted
        self.rows = RunningRows()
        # Until SGLang sets them; a start that fails closes what is there.
        self.tokenizer_manager, self.send_to_rpc = None, None
        host = current_host.get()
        self.or_death = host.or_death
        self.run_scheduler_process_func = scheduler
        self.init_tokenizer_manager_func = self._init_tokenizer_manager
        host.on_stop.append(self._close_sockets)
        super().__init__(**(verl_arguments | server_arguments))
        # SGLang's exit handler kills all children of the caller's process; the host stops ours.
        atexit.unregister(self.shutdown)
        # Started now, because the loop would keep the context of the first request alive.
        self.tokenizer_manager.auto_create_handle_loop()
        host.last_heartbeat = lambda: _last_heartbeat(self.tokenizer_manager, host.log)

    @functools.cached_property
    def prefix_cache(self) -> PrefixCache:
        from _inf.backends.verl.changes import PrefixCache

        return PrefixCache(super().flush_cache)

    def _init_tokenizer_manager(self, *args: object, **kwargs: object) -> tuple[object, object]:
        """Keep the manager before the engine is ready, so that a failed start can close it too."""
        self.tokenizer_manager, templates = init_tokenizer_manager(*args, **kwargs)
        self.tokenizer_manager._validate_and_resolve_lora = self._before_sending
        return self.tokenizer_manager, templates

    async def _before_sending(self, request: GenerateReqInput) -> None:
        """Refuse a request while requests are refused. Those that come under frozen rows, also
        while new weights are sent, have waited until the rows go on."""
        if self.refusal is not None:
            raise EngineRefusal(self.refusal)
        if isinstance(request.rid, str):  # else a batch that none of our calls sent
            self.rows.sent(request.rid, self._version_of(request))

    def _version_of(self, request: GenerateReqInput) -> Callable[[], int]:
        """Returns the version of the weights in use that answer a request."""
        return lambda: int(self.tokenizer_manager.server_args.weight_version)

    def _close_sockets(self) -> None:
        """Close them now: the garbage collector would wait without end for unsent messages."""
        manager = self.tokenizer_manager
        ours = [] if manager is None else [manager.recv_from_detokenizer, manager.send_to_scheduler]
        for socket in [*ours, self.send_to_rpc]:
            if socket is not None:
                socket.context.destroy(linger=0)

    def shutdown(self) -> None:
        """Do nothing: SGLang kills all children of the process here; the `Host` stops its own."""

    async def async_generate(
        self,
        *args: object,
        input_ids: Any = None,
        sampling_params: Any = None,
        image_data: Sequence[list[object] | None] | None = None,
        **kwargs: object,
    ) -> object:
        """Send one request per row, so that each row has its own parameters and can be aborted."""
        call = current_call.get(None)
        if call is None:
            return await super().async_generate(
                *args,
                input_ids=input_ids,
                sampling_params=sampling_params,
                image_data=image_data,
                **kwargs,
            )
        per_row = call.sampling_params or [sampling_params] * len(input_ids)
        if image_data is not None and any(image_data):
            per_row = [*map(_with_images, per_row, image_data)]
        states, tokens = self.tokenizer_manager.rid_to_state, [0] * len(input_ids)

        async def answered(row: int, ids: list[int], params: dict[str, Any]) -> Answer:
            output = await self.request(ids, params, call.rid(row))
            tokens[row] = len(output["output_ids"])
            return output

        def sampled() -> int:
            for row in range(len(tokens)):
                if state := states.get(call.rid(row)):
                    tokens[row] = len(state.output_ids)
            return sum(tokens)

        pairs = zip(input_ids, per_row, strict=True)
        rows = (answered(row, ids, params) for row, (ids, params) in enumerate(pairs))
        outputs = await run_rows(rows, call.report, sampled)
        for row, (output, params) in enumerate(zip(outputs, per_row, strict=True)):
            call.rows.append(call.made_row(output, params, row))
        await self.empty_after_call()
        return outputs if call.requests is None else [ONE_TOKEN] * len(outputs)

    @contextlib.contextmanager
    def _sending(self, rid: str, prompt_tokens: int, *, scored: bool = False) -> Iterator[None]:
        """Abort a request whose caller ends or is gone."""
        self.rows.begin(rid, prompt_tokens, scored=scored)
        try:
            yield
        except BaseException:
            self._abandon(rid)
            raise
        else:
            # Of a request that was aborted in the scheduler's queue SGLang keeps the state for good
            # (tokenizer_manager.py, `_handle_abort_req`).
            self.tokenizer_manager.rid_to_state.pop(rid, None)
        finally:
            self.rows.forget(rid)

    async def request(
        self, ids: list[int], params: dict[str, Any], rid: str, *, scored: bool = False
    ) -> Answer:
        """Send a request, and return SGLang's answer. scored: nothing is generated."""
        known = params.get("custom_params", {}).get(KNOWN_TOKENS, 0)
        with self._sending(rid, len(ids) - known, scored=scored):
            try:
                arguments = request_arguments(ids, params, rid)
                output: Answer = (await super().async_generate(**arguments)).copy()
            except EndedBefore:
                return self.rows.nothing(rid)
            return self.rows.output(output, rid)

    async def turn(self, request: Request, put: Put | None = None) -> RequestOutput:
        """Send one request of a call; `put` is called with its output so far, but for the last."""
        rid, params = current_call.get().rid(uuid.uuid4().hex), sglang_params(request)
        if put is None:
            output = await self.request(request.known_ids, params, rid)
            return whole_row(
                request, output_row(output, params, request.row, parts=request.params.parts)
            )
        row, new = RequestOutput(), RequestOutput()
        with self._sending(rid, len(request.token_ids)):
            arguments = request_arguments(request.known_ids, params, rid)
            try:
                async for output in await super().async_generate(**arguments, stream=True):
                    arrived, parts = self.rows.output(output, rid), request.params.parts
                    new = output_row(arrived, params, request.row, new, parts)
                    row = whole_row(request, new)
                    if row.finish_reason is None:
                        put(row)
            except EndedBefore:
                return whole_row(request, output_row(self.rows.nothing(rid), params))
        return row

    def _abandon(self, rid: str) -> None:
        """Abort a request whose caller is gone, and wait for its last answer, because the
        tokenizer manager keeps a request's state until that answer is taken."""
        manager = self.tokenizer_manager
        state = manager.rid_to_state.get(rid)
        if state is None:
            return
        manager.abort_request(rid=rid)
        self._abandoned.add(rid)

        async def forget() -> None:
            while not state.finished:
                state.event.clear()
                await state.event.wait()
            manager.rid_to_state.pop(rid, None)
            self._abandoned.discard(rid)

        task = asyncio.ensure_future(forget())
        manager.asyncio_tasks.add(task)
        task.add_done_callback(manager.asyncio_tasks.discard)

    async def update_weights_from_tensor(self, update_weights_request: object) -> tuple[bool, str]:
        """Keep SGLang's refusal, which verl ignores, or the failure, for `send_weights`. Raised
        here, it would leave the other ranks of a group waiting for the next part of the weights."""
        if self.update_failure is None:
            try:
                sending = super().update_weights_from_tensor(update_weights_request)
                done, message = await self.or_death(sending)
                if not done:
                    raise InferenceError(f"The engine refused the weights: {message}")
            except Exception as failure:
                self.update_failure = failure
        return self.update_failure is None, str(self.update_failure)

    async def flush_cache(self) -> None:
        """verl's, after new weights; after a call `Call.run_until_complete` leaves it out."""
        await self.prefix_cache.empty()

    async def empty_after_call(self) -> None:
        """Empty the prefix cache if `free_cache_engine` is on. While other calls run SGLang cannot;
        the last of them does it, unless that fails: then the next call that succeeds."""
        if self.free_cache:
            states = self.tokenizer_manager.rid_to_state
            await self.prefix_cache.empty(others=lambda: bool(states.keys() - self._abandoned))


def _with_images(params: dict[str, Any], images: list[object] | None) -> dict[str, Any]:
    return {**params, "image_data": images} if images else params


def _last_heartbeat(manager: TokenizerManager, log: Path) -> object:
    """Return None while no answer is expected, else a value that changes with each heartbeat: an
    answer, or `touch_log` in the scheduler's process. SGLang's manager keeps a request in
    `rid_to_state` until its last answer, and has a communicator for each other kind."""
    events = (getattr(value, "_result_event", None) for value in vars(manager).values())
    if not manager.rid_to_state and all(event is None or event.is_set() for event in events):
        return None
    touched = None
    with contextlib.suppress(OSError):
        touched = log.stat().st_mtime_ns
    return manager.last_receive_tstamp, touched
