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
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from _inf.errors import InferenceError, PromptError, error_text, strip_punctuation
from _inf.tools.results import NOTHING, Executed, Side, executed, shown_part, text_only
from _inf.types import JSON, T, Tool


async def execute(
    tool: Tool,
    arguments: Mapping[str, object],
    *,
    instance_id: str,
    execute_kwargs: Mapping[str, object],
    timeout: float,
    max_length: int,
    side: Side,
    read: Callable[[Sequence[JSON]], list[JSON]] = text_only,
) -> Executed:
    """Run a call; raises nothing but the caller's own cancellation.

    instance_id, execute_kwargs: for a verl tool's `execute`. timeout: seconds; a tool that still
    runs then is ignored. max_length: characters of the result. side: which end of a longer result
    is kept, with the meaning of `tool_response_truncate_side` in verl's agent loop. read: checks
    content that has more than text; what it raises is the tool's failure.
    """
    start = time.perf_counter()
    try:
        done = await with_timeout(_run(tool, arguments, instance_id, execute_kwargs, read), timeout)
    except TimeoutError:  # `_run` itself raises nothing
        done = Executed(error=f"it did not answer within {timeout:g} seconds")
    if done.error is not None:
        done = replace(done, text=f"Error: {tool.name} failed: {done.error}")
        side = "left"  # the beginning of the message says what happened
    done = replace(done, text=done.text if done.text.strip() or done.content else NOTHING)
    return replace(shown_part(done, max_length, side), seconds=time.perf_counter() - start)


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


async def _run(
    tool: Tool,
    arguments: Mapping[str, object],
    instance_id: str,
    execute_kwargs: Mapping[str, object],
    read: Callable[[Sequence[JSON]], list[JSON]],
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
        done = executed(await call_user_code(call), verl=tool.verl is not None)
        if done.content and done.error is None:
            opened: Any = await _on_thread(functools.partial(read, done.content), None)
            done = replace(done, content=opened)
        return done
    except PromptError as failure:
        return Executed(error=strip_punctuation(failure))
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
