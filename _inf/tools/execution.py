"""Executes one call of a tool, even if the tool raises, hangs or returns too much.

`async` functions run on the caller's loop, each other call on its own thread, or on that of its
environment.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import copy
import functools
import inspect
import json
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from _inf.errors import InferenceError, error_text
from _inf.types import T, Tool

Side: TypeAlias = Literal["left", "middle", "right"]

NOTHING = "(no output)"  # a chat template may drop an empty turn


@dataclass(frozen=True)
class Executed:
    """The result of a call. text: what the model reads; it begins with "Error:" if `error` is set.
    seconds: wall time. reward, metrics: returned by a verl tool in addition to its text. truncated:
    whether the text was cut to the limit; the text then says so."""

    text: str = ""
    seconds: float = 0.0
    error: str | None = None
    reward: float | None = None
    metrics: object = None
    truncated: bool = False


async def execute(
    tool: Tool,
    arguments: Mapping[str, object],
    *,
    instance_id: str,
    execute_kwargs: Mapping[str, object],
    timeout: float,
    max_length: int,
    side: Side,
) -> Executed:
    """Run a call; raises nothing but the caller's own cancellation.

    instance_id, execute_kwargs: for a verl tool's `execute`. timeout: seconds; a tool that still
    runs then is ignored. max_length: characters of the result. side: which end of a longer result
    is kept, with the meaning of `tool_response_truncate_side` in verl's agent loop.
    """
    start = time.perf_counter()
    try:
        done = await with_timeout(_run(tool, arguments, instance_id, execute_kwargs), timeout)
    except TimeoutError:  # `_run` itself raises nothing
        done = Executed(error=f"it did not answer within {timeout:g} seconds")
    if done.error is not None:
        done = replace(done, text=f"Error: {tool.name} failed: {done.error}")
        side = "left"  # the beginning of the message says what happened
    done = replace(done, text=done.text if done.text.strip() else NOTHING)
    return replace(shown_part(done, max_length, side), seconds=time.perf_counter() - start)


def shown_part(done: Executed, limit: int, side: Side) -> Executed:
    """The result with at most `limit` characters of its text, and a mark where it is cut."""
    text = done.text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be encoded
    return replace(done, text=_cut(text, limit, side), truncated=len(text) > limit)


async def with_timeout(work: Awaitable[T], timeout: float) -> T:
    """Await a tool's, an interaction's or an environment's own code, in a task of its own: it may
    be cancelled from within, which is an error like any other, and no cancellation of the row."""

    async def of_the_row() -> T:
        try:
            return await work
        # The first two would end the engine's event loop, and some of the last, which are of
        # another engine, the whole call.
        except (SystemExit, KeyboardInterrupt, InferenceError) as failure:
            raise RuntimeError(error_text(failure)) from failure

    task = asyncio.ensure_future(of_the_row())
    try:
        await asyncio.wait({task}, timeout=timeout)
    finally:
        task.cancel()  # if it still runs; not awaited, since it may ignore this
    if not task.done():
        raise TimeoutError(f"no answer within {timeout:g} seconds")
    if task.cancelled():
        raise RuntimeError("it was cancelled")
    return task.result()


def _cut(text: str, limit: int, side: Side) -> str:
    """verl 0.6.1, `experimental/agent_loop/tool_agent_loop.py`: "left" keeps the beginning."""
    if len(text) <= limit:
        return text
    head = {"left": limit, "middle": limit - limit // 2, "right": 0}[side]
    tail = len(text) - (limit - head)
    before, after = ("..." if head else ""), ("..." if tail < len(text) else "")
    return f"{text[:head]}{before}({len(text) - limit} characters cut){after}{text[tail:]}"


async def _run(
    tool: Tool,
    arguments: Mapping[str, object],
    instance_id: str,
    execute_kwargs: Mapping[str, object],
) -> Executed:
    try:
        arguments = copy.deepcopy(dict(arguments))  # a tool may change them
        call: functools.partial[object]
        if tool.verl is not None:
            call = functools.partial(tool.verl.execute, instance_id, arguments, **execute_kwargs)
        elif tool.function is not None:
            call = functools.partial(tool.function, **arguments)
        else:
            return Executed(error="nothing here executes it")
        return executed(await call_user_code(call), verl=tool.verl is not None)
    except BaseException as failure:  # SystemExit would end the loop
        return Executed(error=error_text(failure))


async def call_user_code(call: Callable[[], object], thread: CallThread | None = None) -> Any:
    """Call an `async` function here, and any other one on `thread`, or on a thread of its own."""
    function = call.func if isinstance(call, functools.partial) else call
    value = call() if _is_async(function) else await _on_thread(call, thread)
    return await value if inspect.isawaitable(value) else value


def _is_async(function: Callable[..., object]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  to inspect the method
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


async def _on_thread(call: Callable[[], object], thread: CallThread | None) -> object:
    if thread is not None:
        return await thread.run(call)
    alone = CallThread()
    try:
        return await alone.run(call)
    finally:
        alone.end()


class CallThread:
    """A daemon thread that makes calls one after the other: what an object opens on one thread,
    such as a connection of sqlite3, may refuse any other. (A hung thread of a pool would block
    other calls and the exit.) It begins with the first call, in a copy of its context, and ends
    with `end`."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._begun = False

    async def run(self, call: Callable[[], object]) -> object:
        return await asyncio.wrap_future(self.submit(call))

    def submit(self, call: Callable[[], object]) -> concurrent.futures.Future[object]:
        """Make a call, after those before it; one that is cancelled while it waits is not made."""
        future: concurrent.futures.Future[object] = concurrent.futures.Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call())
            except (StopIteration, GeneratorExit) as end:  # they would end the coroutine that waits
                future.set_exception(RuntimeError(type(end).__name__))
            except BaseException as failure:
                future.set_exception(failure)

        if not self._begun:
            context = contextvars.copy_context()
            work = functools.partial(context.run, self._make_calls)
            threading.Thread(target=work, name="inf-tool", daemon=True).start()
            self._begun = True
        self._calls.put(run)
        return future

    def _make_calls(self) -> None:
        while (run := self._calls.get()) is not None:
            run()
            del run  # it has what the call returned

    def end(self) -> None:
        """Let the thread end after the calls before; safe to call twice."""
        self._calls.put(None)


def copied(value: Any) -> Any:
    """Copy dicts, lists, tuples and numpy arrays, with what is in them: the code of a row may
    change them, and other rows have the same ones. Any other object stays the one it is."""
    if type(value) is dict:
        return {key: copied(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    return copy.deepcopy(value) if type(value).__module__ in ("collections", "numpy") else value


def executed(value: Any, *, verl: bool) -> Executed:
    """Convert a tool's return value to text for the model. A verl tool may return a plain string,
    or `(ToolResponse, reward, metrics)` without the last items."""
    if isinstance(value, Executed):  # of a tool of an MCP server
        return value
    reward = metrics = None
    if verl and isinstance(value, tuple) and 1 <= len(value) <= 3:
        value, reward, metrics = (*value, None, None)[:3]
    response = all(hasattr(value, field) for field in ("text", "image", "video"))
    if type(value).__module__.startswith("PIL.") or (response and (value.image or value.video)):
        why = "it returned an image or a video, and only text can be shown to the model"
        return Executed(error=why)
    if verl and not (response or value is None or isinstance(value, str)):
        kind = type(value).__name__
        return Executed(error=f"it returned {kind}, not (ToolResponse, reward, metrics)")
    text = _as_text(value.text if response else value)
    reward = None if reward is None else float(reward)
    try:
        metrics = copied(metrics)  # the tool may keep counting in them
    except RecursionError:
        return Executed(error="its metrics contain themselves, or are nested too deeply")
    return Executed(text, reward=reward, metrics=metrics)


def _as_text(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)
