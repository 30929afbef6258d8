"""The execution of one call of a tool, whatever the tool does.

In: a tool, arguments that fit its schema, limits. Out: an `Executed`, always, whose text is what
the model reads: a tool that raises, hangs or floods harms nobody but its own call. Functions of
`async` run on the caller's loop, others each on a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import functools
import inspect
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from _inf.types import Tool

NOTHING = "(no output)"  # a chat template may drop an empty turn


@dataclass(frozen=True)
class Executed:
    """text: what the model reads; it begins with "Error:" where `error` is set. seconds: the wall
    time. reward, metrics: what a verl tool returned beside its text. truncated: the text was cut to
    the limit, and says so."""

    text: str
    seconds: float
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
    """Run a call; only a cancellation of the caller comes out of it.

    instance_id, execute_kwargs: for a verl tool's `execute`. timeout: seconds; what still runs then
    is left behind. max_length: characters of the result. side: which end of a longer result is
    kept, as verl's agent loop reads its `tool_response_truncate_side`.
    """
    start = time.perf_counter()
    done = await _run(tool, arguments, instance_id, execute_kwargs, timeout)
    if done.error is not None:
        done = replace(done, text=f"Error: {tool.name} failed: {done.error}")
        side = "left"  # where the message says what it is
    text = done.text.encode("utf-8", "replace").decode()  # a lone surrogate has no tokens
    text = text if text.strip() else NOTHING
    cut = _cut(text, max_length, side)
    return replace(
        done, text=cut, seconds=time.perf_counter() - start, truncated=len(text) > max_length
    )


def _cut(text: str, limit: int, side: Literal["left", "middle", "right"]) -> str:
    """verl 0.6.1, `experimental/agent_loop/tool_agent_loop.py`: "left" keeps the beginning."""
    if len(text) <= limit:
        return text
    head = {"left": limit, "middle": limit - limit // 2, "right": 0}[side]
    tail = len(text) - (limit - head)
    before, after = ("..." if head else ""), ("..." if tail < len(text) else "")
    return f"{text[:head]}{before}({len(text) - limit} characters cut){after}{text[tail:]}"


def _no_function(**arguments: Any) -> Any:
    raise RuntimeError("nothing here executes it")


# ─── Running ───


async def _run(
    tool: Tool,
    arguments: Mapping[str, Any],
    instance_id: str,
    execute_kwargs: Mapping[str, Any],
    timeout: float,
) -> Executed:
    async def run() -> Executed:
        try:
            given = copy.deepcopy(dict(arguments))  # a tool may change them
            if tool.verl is not None:
                call = functools.partial(tool.verl.execute, instance_id, given, **execute_kwargs)
            else:
                call = functools.partial(tool.function or _no_function, **given)
            value = call() if _is_async(call.func) else await _on_thread(call)
            value = await value if inspect.isawaitable(value) else value
            return _verl_result(value) if tool.verl is not None else _function_result(value)
        except (Exception, SystemExit) as failure:  # SystemExit would end the loop
            return _failed(_told(failure))

    task = asyncio.ensure_future(run())
    try:
        await asyncio.wait({task}, timeout=timeout)
    finally:
        task.cancel()  # if it still runs; not awaited, since it may refuse
    if not task.done():
        return _failed(f"it did not answer within {timeout:g} seconds")
    return _failed("it was cancelled") if task.cancelled() else task.result()


def _failed(error: str) -> Executed:
    return Executed(text="", seconds=0.0, error=error)


def _told(failure: BaseException) -> str:
    try:
        text = str(failure)
    except Exception:  # a __str__ of the caller's
        text = ""
    return f"{type(failure).__name__}: {text}" if text else type(failure).__name__


def _is_async(function: Callable[..., Any]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  the method, to see what it is
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


async def _on_thread(call: Callable[[], Any]) -> Any:
    """On a daemon thread of its own: a pool's hung thread would block others, and the exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, failure: BaseException | None) -> None:
        if future.done():
            return
        if failure is None:
            future.set_result(value)
        else:
            future.set_exception(failure)

    def run() -> None:
        value, failure = None, None
        try:
            value = call()
        except (Exception, SystemExit) as raised:
            failure = raised
            if isinstance(raised, StopIteration):  # a future cannot hold one
                failure = RuntimeError("StopIteration")
        with contextlib.suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(settle, value, failure)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="inf-tool", daemon=True).start()
    return await future


# ─── Results ───


def _function_result(value: Any) -> Executed:
    if _is_response(value):
        return _response_result(value)
    if type(value).__module__.startswith("PIL."):
        return _failed("it returned an image, and only text can be shown to the model")
    return Executed(text=_as_text(value), seconds=0.0)


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _is_response(value: Any) -> bool:
    """A verl `ToolResponse`, without importing verl."""
    return all(hasattr(value, field) for field in ("text", "image", "video"))


def _response_result(response: Any) -> Executed:
    if response.image or response.video:
        return _failed("it returned an image or a video, and only text can be shown to the model")
    return Executed(text=_as_text(response.text), seconds=0.0)


def _verl_result(value: Any) -> Executed:
    """`(ToolResponse, reward, metrics)`; what of it is plain to see may be missing."""
    response, reward, metrics = value, None, None
    if isinstance(value, tuple) and 1 <= len(value) <= 3:
        response, reward, metrics = (*value, None, None)[:3]
    if response is not None and not isinstance(response, str) and not _is_response(response):
        kind = type(value).__name__
        return _failed(f"it returned {kind}, not (ToolResponse, reward, metrics)")
    done = _response_result(response) if _is_response(response) else _function_result(response)
    reward = None if reward is None else float(reward)
    return replace(done, reward=reward, metrics=metrics)
