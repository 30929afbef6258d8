"""Runs an engine on its own thread, watches its child processes, and reports when one dies.

SGLang wants the main thread and an idle event loop, handles SIGTERM and SIGQUIT itself, hangs when
a child is killed, and on shutdown kills every child of the caller's process (sglang 0.5.9,
`srt/entrypoints/engine.py`, `srt/managers/tokenizer_manager.py`). A separate thread that watches
only the engine's own children keeps all of that away from the caller.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from _inf.errors import EngineDeadError, GenerationTimeout, InferenceError, error_text
from _inf.runtime.calls import TIMED_OUT, CancelToken, ReadWriteLock
from _inf.runtime.fork_server import ForkedProcess, ForkServer
from _inf.runtime.forks import in_fork, note_engine, starting
from _inf.runtime.processes import (
    JOIN_SECONDS,
    LOOK_SECONDS,
    EngineFolder,
    Watch,
    Worker,
    WorkerProcess,
    block_interrupts,
)

T = TypeVar("T")
Through: TypeAlias = "Callable[[Coroutine[object, None, T]], Coroutine[object, None, T]]"

EXIT_SECONDS = 2.0


class Host:
    """Owns one engine thread. `start` once, `run` from any thread, `stop` any number of times.

    hang_timeout: seconds of silence after which a child is killed. sockets: whether its processes
    meet at sockets in its folder. cause: what a dead engine's log means, in a sentence; or "".
    """

    def __init__(self, hang_timeout: float | None = None, *, sockets: bool = False) -> None:
        self.cause: Callable[[str], str] = lambda log: ""
        self._folder = EngineFolder(sockets=sockets)
        self.folder, self.log = self._folder.path, self._folder.log
        self.read_log = self._folder.read_log
        self.children: list[WorkerProcess] = []
        self.fork_server: ForkServer | None = None  # acquired; `stop` releases it
        self.on_stop: list[Callable[[], None]] = []
        self.last_heartbeat: Callable[[], object] = lambda: None  # of the children: `Watch`'s
        self._hang_timeout = hang_timeout
        self.death: EngineDeadError | None = None
        self.lock = ReadWriteLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._died, self._stop = asyncio.Event(), asyncio.Event()
        self._thread: threading.Thread | None = None
        self._kept: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._submitting = threading.RLock()  # what was submitted before `stop` runs before it
        self._pid = os.getpid()

    def check_process(self) -> None:
        if os.getpid() != self._pid:
            raise in_fork(self._pid)

    def process(self, target: Worker, **kwargs: Any) -> WorkerProcess:
        """Create a child process of this engine, which is then watched and stopped with it."""
        if self._stopping:  # interrupted while it starts: nothing would stop this child
            raise EngineDeadError("The engine was shut down while it started.")
        name, server = f"scheduler {len(self.children)}", self.fork_server
        if server is None:
            child = WorkerProcess(target=target, name=name, **kwargs)
        else:
            target.parent = server.pid()
            child = ForkedProcess(server, target=target, name=name, **kwargs)
        self.children.append(child)
        return child

    def _processes(self) -> list[WorkerProcess]:
        return self.children + ([self.fork_server.process] if self.fork_server else [])

    def start(self, build: Callable[[], T]) -> T:
        """Run `build` on the engine's thread, then its event loop; return what was built."""
        built: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._run_thread, args=(build, built), name="inf-engine", daemon=True
        )
        self._thread.start()
        # Runs before multiprocessing's handler, which waits for the children; finalizers may not.
        atexit.register(self.stop)
        note_engine()
        try:
            return built.result()
        except BaseException as failure:
            if isinstance(failure, EOFError):  # the child closed its pipe and is about to exit
                for process in self._processes():
                    if process.pid is not None:
                        process.join(EXIT_SECONDS)
                    if process.exitcode is not None:
                        break
            exits = self._exits()
            self.stop()
            if exits and isinstance(failure, Exception):
                died = f"The engine's process died while it started: {exits}"
                raise self._report(died) from failure
            if isinstance(failure, InferenceError) or not isinstance(failure, Exception):
                raise
            raise InferenceError(
                f"The engine refused to start: {type(failure).__name__}: {failure}"
            ) from failure

    def _run_thread(self, build: Callable[[], T], built: concurrent.futures.Future[T]) -> None:
        block_interrupts()
        try:
            asyncio.run(self._serve(build, built))
        except BaseException as failure:
            if not built.done():
                built.set_exception(failure)
            self.declare_dead(f"The engine's event loop ended with {failure!r}")

    async def _serve(self, build: Callable[[], T], built: concurrent.futures.Future[T]) -> None:
        """Run `build` inside the loop, so that SGLang uses this loop as its own."""
        self._loop = asyncio.get_running_loop()
        try:
            with starting():
                result = build()
            for child in self.children:
                self._loop.add_reader(child.sentinel, self._on_exit, child)
            built.set_result(result)
            self.keep("watch over its processes", self._watch())
            await self._stop.wait()
        finally:
            for _ in range(2):  # `or_death` of what was just submitted begins, and its work
                await asyncio.sleep(0)
            for task in (tasks := asyncio.all_tasks() - {asyncio.current_task()}):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for close in self.on_stop:
                close()

    def keep(self, name: str, work: Coroutine[object, None, None]) -> None:
        """Run `work`, which all calls need, until the engine ends; called on its thread. If it ends
        earlier, the engine is dead: calls would wait for it without end."""

        def ended(task: asyncio.Task[None]) -> None:
            self._kept.discard(task)
            if not task.cancelled():
                how = f" with {error_text(why)}" if (why := task.exception()) else ""
                self.declare_dead(f"The engine's {name} ended{how}")

        task = asyncio.ensure_future(work)
        self._kept.add(task)  # the event loop would let it be collected
        task.add_done_callback(ended)

    def run(self, work: Coroutine[object, None, T], cancel: CancelToken) -> T:
        """Await a call's `work` on the engine's loop from another thread; it is cancelled there on
        Ctrl-C, when a child dies (`EngineDeadError`) or its time is over (`GenerationTimeout`)."""
        return self._wait(self.submit(work, cancel), cancel)

    def run_alone(self, work: Coroutine[object, None, T], through: Through[T] | None = None) -> T:
        """Like `run`, but `work` runs alone: after the running calls ended, before others begin.
        through: what else runs it, with the lock."""
        cancel = CancelToken()
        return self._wait(self._submit(work, through or self.lock.write, cancel), cancel)

    def run_beside(self, work: Coroutine[object, None, T]) -> T:
        """Like `run`, but `work` is no call: it does not wait for a change to end."""
        cancel = CancelToken()
        return self._wait(self._submit(work, lambda itself: itself, cancel), cancel)

    def _wait(self, future: concurrent.futures.Future[T], cancel: CancelToken) -> T:
        if threading.current_thread() is self._thread:  # it would wait for itself without end
            future.cancel()
            raise InferenceError(
                "An async tool or an interaction runs on the engine's own thread, where generate() "
                "cannot wait: await agenerate() there, or make the tool a plain function."
            )
        try:
            return future.result(cancel.seconds_left())
        except concurrent.futures.TimeoutError:
            if future.done():
                raise
            raise GenerationTimeout(TIMED_OUT) from None
        finally:
            future.cancel()

    def submit(
        self, work: Coroutine[object, None, T], cancel: CancelToken
    ) -> concurrent.futures.Future[T]:
        """Start a call's `work` on the engine's loop; the future fails when the engine dies."""
        return self._submit(work, self.lock.read, cancel)

    def _submit(
        self,
        work: Coroutine[object, None, T],
        through: Through[T],
        cancel: CancelToken,
    ) -> concurrent.futures.Future[T]:
        try:
            self.check_process()
            with self._submitting:
                if self.death is not None or self._loop is None:
                    raise self.death or EngineDeadError("The engine has not been started.")
                call = self.or_death(through(work))
                future = asyncio.run_coroutine_threadsafe(call, self._loop)
        except InferenceError:
            work.close()
            raise
        cancel.admit(future)
        return future

    async def or_death(self, work: Coroutine[object, None, T]) -> T:
        """Await `work` on the engine's loop; raise if the engine dies meanwhile."""
        task, death = asyncio.ensure_future(work), asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
            if self.death is not None:
                raise self.death
            return await task
        except asyncio.CancelledError:
            if self.death is not None:  # cancelled because the engine was shut down
                raise self.death from None
            raise
        finally:
            death.cancel()
            task.cancel()

    def _on_exit(self, child: WorkerProcess) -> None:
        asyncio.get_running_loop().remove_reader(child.sentinel)
        child.join(1.0)
        exits = self._exits() or "no child has an exit code"
        self.declare_dead(f"The engine's process died: {exits}")

    async def _watch(self) -> None:
        """Kill a child that hangs, and report it like one that died."""
        names = {f"{c.name} (pid {c.pid})": c.pid for c in self.children if c.pid}
        watch = Watch(names, self.last_heartbeat, self._hang_timeout)
        while self.death is None:
            await asyncio.sleep(LOOK_SECONDS)
            if (what := watch.look()) is not None:
                self.declare_dead(f"The engine hung: {what}; it was killed")
                for child in self.children:
                    child.kill_tree()

    def declare_dead(self, what: str) -> None:
        """Make all running and later calls fail; called on the engine's thread."""
        if self.death is None and not self._stopping:
            self.death = self._report(f"{what}. restart() starts a new engine in this process")
            self._died.set()

    def _exits(self) -> str:
        return ", ".join(
            f"{process.name} (pid {process.pid}, exit code {process.exitcode})"
            for process in self._processes()
            if process.exitcode
        )

    def _report(self, what: str) -> EngineDeadError:
        return EngineDeadError(
            f"{what}. {self.cause(self.read_log())}".rstrip() + f"\n{self._folder.end_of_log()}"
        )

    def stop(self) -> None:
        """Kill this engine's processes and end its thread. Safe to call twice."""
        if self._stopping or os.getpid() != self._pid:  # a fork does not own the engine
            return
        self._stopping = True
        atexit.unregister(self.stop)
        failed = self.death is not None or bool(self._exits())
        with self._submitting:
            self.death = self.death or EngineDeadError(
                "The engine was shut down; restart() starts a new one."
            )
        for child in self.children:
            child.kill_tree()
        if self.fork_server is not None:
            self.fork_server.release()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)
        self._folder.remove(keep_log=failed)


# The host of the engine that is being built or runs in this context.
current_host: contextvars.ContextVar[Host] = contextvars.ContextVar("inf_host")
