"""Executes one call of a tool, even if the tool raises, hangs or returns too much.

`async` functions run on the caller's loop, each other call on its own thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import copy
import functools
import inspect
import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from _inf.errors import InferenceError, error_text
from _inf.types import Tool

T = TypeVar("T")

NOTHING = "(no output)"  # a chat template may drop an empty turn


@dataclass(frozen=True)
class Executed:
    """The result of a call. text: what the model reads; it begins with "Error:" if `error` is set.
    seconds: wall time. reward, metrics: returned by a verl tool besides its text. truncated:
    whether the text was cut to the limit; the text then says so."""

    text: str = ""
    seconds: float = 0.0
    error: str | None = None
    reward: float | None = None
    metrics: Any = None
    truncated: bool = False


async def execute(
    tool: Tool,
    arguments: Mapping[str, Any],
    *,
    instance_id: str,
    execute_kwargs: Mapping[str, Any],
    timeout: float,
    max_length: int,
    side: Literal["left", "middle", "right"],
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
    text = done.text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be encoded
    text = text if text.strip() else NOTHING
    cut = _cut(text, max_length, side)
    seconds = time.perf_counter() - start
    return replace(done, text=cut, seconds=seconds, truncated=len(text) > max_length)


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


def _cut(text: str, limit: int, side: Literal["left", "middle", "right"]) -> str:
    """verl 0.6.1, `experimental/agent_loop/tool_agent_loop.py`: "left" keeps the beginning."""
    if len(text) <= limit:
        return text
    head = {"left": limit, "middle": limit - limit // 2, "right": 0}[side]
    tail = len(text) - (limit - head)
    before, after = ("..." if head else ""), ("..." if tail < len(text) else "")
    return f"{text[:head]}{before}({len(text) - limit} characters cut){after}{text[tail:]}"


async def _run(
    tool: Tool, arguments: Mapping[str, Any], instance_id: str, execute_kwargs: Mapping[str, Any]
) -> Executed:
    try:
        arguments = copy.deepcopy(dict(arguments))  # a tool may change them
        call: functools.partial[Any]
        if tool.verl is not None:
            call = functools.partial(tool.verl.execute, instance_id, arguments, **execute_kwargs)
        elif tool.function is not None:
            call = functools.partial(tool.function, **arguments)
        else:
            return Executed(error="nothing here executes it")
        return _executed(await call_user_code(call), verl=tool.verl is not None)
    except BaseException as failure:  # SystemExit would end the loop
        return Executed(error=error_text(failure))


async def call_user_code(call: Callable[[], Any]) -> Any:
    """Call an `async` function here, and any other one on a thread of its own."""
    function = call.func if isinstance(call, functools.partial) else call
    value = call() if _is_async(function) else await _on_thread(call)
    return await value if inspect.isawaitable(value) else value


def _is_async(function: Callable[..., Any]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  to inspect the method
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


async def _on_thread(call: Callable[[], Any]) -> Any:
    """Run it on a new daemon thread: a hung pool thread would block other calls and the exit."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # it cannot be cancelled any more

    def run() -> None:
        try:
            future.set_result(call())
        except StopIteration:  # a coroutine cannot raise it
            future.set_exception(RuntimeError("StopIteration"))
        except BaseException as failure:
            future.set_exception(failure)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="inf-tool", daemon=True).start()
    return await asyncio.wrap_future(future)


def _executed(value: Any, *, verl: bool) -> Executed:
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
    return Executed(text, reward=None if reward is None else float(reward), metrics=metrics)


def _as_text(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)
