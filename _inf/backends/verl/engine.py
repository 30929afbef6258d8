"""A subclass of verl's SGLang engine that sends one request per row and keeps the raw answers.

In: token ids and a dict of SGLang's sampling parameters per row. Out: one `RequestOutput` per row.
Importing this module imports verl and SGLang, and restores the interpreter's settings afterwards.
It corrects verl 0.6.1, `workers/rollout/sglang_rollout/sglang_rollout.py`, and sglang 0.5.9,
`srt/entrypoints/engine.py` and `srt/managers/tokenizer_manager.py`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from _inf.backends.base import check_finite
from _inf.backends.verl.call import Call, current_call
from _inf.backends.verl.child.heartbeat import last_heartbeat
from _inf.backends.verl.prefix_cache import PrefixCache
from _inf.backends.verl.sglang_params import (
    LOGPROB_START,
    ROUTED_EXPERTS,
    SAMPLING_MASK,
    TOP_LOGPROBS,
    TOP_PROMPT_LOGPROBS,
)
from _inf.errors import EngineRefusal, InferenceError, RequestFailure
from _inf.runtime.child_process import Worker
from _inf.runtime.host import current_host
from _inf.runtime.interpreter import interpreter_left_alone
from _inf.types import RequestOutput

with interpreter_left_alone():
    from sglang.srt.entrypoints.engine import init_tokenizer_manager
    from sglang.srt.server_args import ServerArgs as ServerArgs
    from verl.workers.rollout.sglang_rollout import sglang_rollout as sglang_rollout

REPORT_SECONDS = 0.25
# An answer, for verl's `_post_process_outputs`: it takes longer to pad answers than to decode them.
ONE_TOKEN = {"meta_info": {"output_token_logprobs": [(0.0, 0, None)]}}
SENT_AT_ONCE = 64  # rows, then other calls may send; sending a thousand takes half a second


class Engine(sglang_rollout.AsyncEngine):
    """verl's engine with our server arguments, our processes, and its raw outputs kept."""

    def __init__(
        self,
        scheduler: Worker,
        server_arguments: dict[str, Any],
        free_cache: bool,
        **verl_arguments: Any,
    ) -> None:
        self.free_cache = free_cache
        self.refusal: str | None = None  # the reason, while requests are refused
        self.update_failure: Exception | None = None
        self.prefix_cache = PrefixCache(super().flush_cache)
        self._abandoned: set[str] = set()  # requests that are being aborted
        unset: Any = None
        self.tokenizer_manager = self.send_to_rpc = unset
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
        host.last_heartbeat = functools.partial(last_heartbeat, self.tokenizer_manager, host.log)

    def _init_tokenizer_manager(self, *args: Any, **kwargs: Any) -> Any:
        """Keep the manager before the engine is ready, so that a failed start can close it too."""
        self.tokenizer_manager, templates = init_tokenizer_manager(*args, **kwargs)
        return self.tokenizer_manager, templates

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
        self, *args: Any, input_ids: Any = None, sampling_params: Any = None, **kwargs: Any
    ) -> Any:
        """Send one request per row, so that each row has its own parameters and can be aborted."""
        call = current_call.get(None)
        if call is None:
            return await super().async_generate(
                *args, input_ids=input_ids, sampling_params=sampling_params, **kwargs
            )
        per_row = call.sampling_params or [sampling_params] * len(input_ids)
        requests: list[asyncio.Task[dict[str, Any]]] = []
        watch = asyncio.ensure_future(self._report(call, len(input_ids), requests))
        try:
            for row, (ids, params) in enumerate(zip(input_ids, per_row, strict=True)):
                requests.append(asyncio.ensure_future(self._request(ids, params, call.rid(row))))
                if len(requests) % SENT_AT_ONCE == 0:
                    await asyncio.sleep(0)
            outputs = await asyncio.gather(*requests)
        finally:
            for task in (watch, *requests):
                task.cancel()
        for row, (output, params) in enumerate(zip(outputs, per_row, strict=True)):
            call.rows.append(_row(output, params, row))
        if call.report is not None:
            call.report(len(call.rows), sum(row.completion_tokens for row in call.rows))
        return [ONE_TOKEN] * len(outputs) if call.rows_only else outputs

    async def _report(self, call: Call, rows: int, requests: Sequence[asyncio.Task[Any]]) -> None:
        """Call `call.report`, if it is set, with the progress of the rows until cancelled."""
        states, tokens = self.tokenizer_manager.rid_to_state, [0] * rows
        while call.report is not None:
            await asyncio.sleep(REPORT_SECONDS)
            for row in range(rows):
                if state := states.get(call.rid(row)):
                    tokens[row] = len(state.output_ids)
            call.report(sum(request.done() for request in requests), sum(tokens))

    @contextlib.contextmanager
    def _sending(self, rid: str) -> Iterator[None]:
        """Refuse a request while requests are refused; abort it if its caller ends or is gone."""
        if self.refusal is not None:
            raise EngineRefusal(self.refusal)
        try:
            yield
        except BaseException:
            self._abandon(rid)
            raise

    async def _request(self, ids: list[int], params: dict[str, Any], rid: str) -> dict[str, Any]:
        with self._sending(rid):
            return dict(await super().async_generate(**_arguments(ids, params, rid)))

    async def stream(
        self, ids: list[int], params: dict[str, Any], put: Callable[[RequestOutput], None]
    ) -> None:
        """Send one request; `put` is called with the output so far whenever tokens arrive."""
        rid = uuid.uuid4().hex
        with self._sending(rid):
            outputs = await super().async_generate(**_arguments(ids, params, rid), stream=True)
            async for output in outputs:
                put(_row(output, params))
        await self.empty_after_call()

    async def turn(self, ids: list[int], params: dict[str, Any]) -> RequestOutput:
        """Send one turn of a conversation as one request."""
        name = current_call.get().rid(uuid.uuid4().hex)
        return _row(await self._request(ids, params, name), params, None)

    async def score(
        self, ids: list[int], start: int, call: Call, row: int, likeliest: int
    ) -> RequestOutput:
        """Compute the log probs of `ids[start:]` by a prefill; nothing is generated."""
        params = {"max_new_tokens": 0, "temperature": 1.0}
        params |= {LOGPROB_START: start - 1, TOP_PROMPT_LOGPROBS: likeliest}
        return _row(await self._request(ids, params, call.rid(row)), params, row)

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

    async def update_weights_from_tensor(self, update_weights_request: Any) -> tuple[bool, str]:
        """Keep SGLang's refusal, which verl ignores, or the failure, for `weights.send`. Raised
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
        """verl's, after every call, where `free_cache_engine` decides, and after new weights."""
        if current_call.get(None) is None:
            await self.prefix_cache.empty()
        else:
            await self.empty_after_call()

    async def empty_after_call(self) -> None:
        """Empty the prefix cache if `free_cache_engine` is on. While other calls run SGLang cannot;
        the last of them does it, unless that fails: then the next call that succeeds."""
        if self.free_cache:
            states = self.tokenizer_manager.rid_to_state
            await self.prefix_cache.empty(others=lambda: bool(states.keys() - self._abandoned))


def _arguments(ids: list[int], params: dict[str, Any], rid: str) -> dict[str, Any]:
    """The arguments of SGLang's `async_generate`; some of our keys are not sampling parameters."""
    params = dict(params)
    start, likeliest = params.pop(LOGPROB_START, -1), params.pop(TOP_LOGPROBS, 0)
    likeliest = max(likeliest, params.pop(TOP_PROMPT_LOGPROBS, 0))
    return {
        "input_ids": ids,
        "sampling_params": params,
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": likeliest,
        "return_routed_experts": params.pop(ROUTED_EXPERTS, False),
        "rid": rid,
    }


def _row(output: dict[str, Any], params: dict[str, Any], row: int | None = 0) -> RequestOutput:
    meta, ids = output["meta_info"], list(output["output_ids"])
    finish = meta["finish_reason"] or {"type": None}
    if finish["type"] == "abort":
        reason = finish.get("message", "aborted")
        raise RequestFailure(f"The engine gave a request up: {reason}", row=row)
    if finish["type"] == "length" and ids and ids[-1] in (params.get("stop_token_ids") or ()):
        # SGLang checks the length first, even if the last allowed token is a stop token.
        finish = {"type": "stop", "matched": ids[-1]}
    logprobs = [logprob for logprob, _, _ in meta["output_token_logprobs"]]
    prompt_logprobs = [logprob for logprob, _, _ in meta.get("input_token_logprobs", ())]
    for scored in (logprobs, prompt_logprobs):
        check_finite(scored, row)
    masked = params.get("custom_params", {}).get(SAMPLING_MASK, False)
    most, of_prompt = params.get(TOP_LOGPROBS, 0), params.get(TOP_PROMPT_LOGPROBS, 0)
    tops = _top_logprobs(meta, None if masked else most) if most else None
    return RequestOutput(
        token_ids=ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        finish_reason=finish["type"],
        matched_stop=finish.get("matched"),
        prompt_tokens=meta["prompt_tokens"],
        completion_tokens=len(ids),
        cached_tokens=meta["cached_tokens"],
        weight_version=int(meta["weight_version"]),
        top_prompt_logprobs=[
            None if top is None else {token: value for value, token, _ in top[:of_prompt]}
            for top in (meta.get("input_top_logprobs", ()) if of_prompt else ())
        ],
        top_logprobs=None if masked else tops,
        kept=tops if masked else None,
        routed_experts=meta["routed_experts"].numpy() if params.get(ROUTED_EXPERTS) else None,
    )


def _top_logprobs(meta: dict[str, Any], most: int | None) -> list[dict[int, float]]:
    """The likeliest tokens, at most so many, without those that a grammar or a bias ruled out."""
    tops, sampled = meta["output_top_logprobs"], meta["output_token_logprobs"]
    return [
        {token: value for value, token, _ in [*top[:most], own] if math.isfinite(value)}
        for top, own in zip(tops, sampled, strict=True)
    ]
