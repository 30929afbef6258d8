"""A process that has done the imports of an engine's processes, which are forked from it.

It starts before the caller does the same imports, so that both do them at the same time, and every
further engine of the caller finds them done. Unlike multiprocessing's own fork server it has no
socket with a name, dies with the caller at any moment, and ends with the last engine.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import io
import os
import select
import signal
import socket
import threading
import traceback
from collections.abc import Iterator
from multiprocessing import forkserver, popen_forkserver, reduction, spawn, util
from multiprocessing.context import set_spawning_popen
from pathlib import Path
from typing import Any

from _inf.errors import EngineDeadError
from _inf.runtime.forks import check_start
from _inf.runtime.free_memory import give_back
from _inf.runtime.interpreter import TORCH_VARIABLES
from _inf.runtime.processes import (
    JOIN_SECONDS,
    Worker,
    WorkerProcess,
    block_interrupts,
)

MAX_FILES = 32  # that one fork inherits


class ForkServer:
    """Owns the process; the last `release` kills it and, with it, what was forked from it.

    imports: the function that it runs first, as "module:name". log: the file for its output.
    """

    def __init__(self, imports: str, log: Path) -> None:
        self._channel, self._theirs = socket.socketpair()
        self.process = WorkerProcess(
            target=Worker(f"{__name__}:serve", log, setup=imports),
            args=(self._theirs,),
            name="fork server",
            daemon=True,
        )
        self._users = 0
        self._lock = threading.RLock()  # a finalizer may release in the thread that holds it
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._stop = threading.Event()
        # The kernel kills the process when the thread that started it ends.
        self._thread = threading.Thread(target=self._run, name="inf-engine-forks", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        block_interrupts()
        try:
            self.process.start()
            self._started.set_result(None)
        except BaseException as failure:
            self._started.set_exception(failure)
        self._theirs.close()
        self._stop.wait()
        if self.process.pid is not None:
            self.process.kill()
            self.process.join(JOIN_SECONDS)
        self._channel.close()

    def acquire(self) -> bool:
        """Add a user; False if the process has ended or is being stopped."""
        with self._lock:
            if self._stop.is_set() or (self._started.done() and not self.process.is_alive()):
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """Remove a user; after the last one the process is killed."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._stop.set()
        if self._stop.is_set() and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)

    def pid(self) -> int:
        self._started.result()
        assert self.process.pid is not None
        return self.process.pid

    def fork(self, files: list[int]) -> tuple[int, int]:
        """Ask for a fork that inherits `files`. Returns two files: the fork's pid and exit code are
        read from the first; the second takes what it unpickles."""
        status, their_status = os.pipe()
        their_data, data = os.pipe()
        try:
            with self._lock:
                reduction.sendfds(self._channel, [their_data, their_status, *files])
        except OSError as failure:
            util.close_fds(status, data)  # type: ignore[attr-defined]
            raise EOFError("the fork server has ended") from failure
        finally:
            util.close_fds(their_data, their_status)  # type: ignore[attr-defined]
        return status, data


class SharedForkServer:
    """The newest server of this process, which all engines share that inherit the same."""

    def __init__(self, imports: str) -> None:
        self._imports = imports
        self._newest: ForkServer | None = None
        self._inherited: object = None  # what the caller had that a process inherits

    def acquire(self, log: Path) -> ForkServer:
        """Add a user; to a new server if the caller has changed what processes inherit."""
        server = self._newest
        if server is None or self._inherited != inherited() or not server.acquire():
            server = self._newest = ForkServer(self._imports, log)
            server.acquire()
        return server

    def started(self) -> None:
        """Note what the caller has now, with what the start of an engine has set."""
        self._inherited = inherited()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the server, while one engine ends and another starts."""
        check_start(children=False)  # the engine that starts may have none
        with contextlib.ExitStack() as users:
            if (server := self._newest) is not None and server.acquire():
                users.callback(server.release)
            yield


def inherited() -> object:
    """Return what a process inherits and reads once: the cores it may use, its niceness, and the
    environment without the variable that pytest changes for every test. The fork server sets
    those of `TORCH_VARIABLES` that are missing itself, as the backend `hf` does in this process."""
    variables = {**TORCH_VARIABLES, **os.environ}
    variables.pop("PYTEST_CURRENT_TEST", None)
    return variables, os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)


class ForkedProcess(WorkerProcess):
    """A fork of a `ForkServer`'s process."""

    def __init__(self, server: ForkServer, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._server = server

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_server"}

    def _Popen(self, process: Any) -> Any:  # type: ignore[override]  # noqa: N802
        return _Popen(process, self._server)


class _Popen(popen_forkserver.Popen):
    """multiprocessing's handle of a forked process, with our server in place of its own."""

    def __init__(self, process: ForkedProcess, server: ForkServer) -> None:
        self._server = server
        self._reading = threading.Lock()
        self._fds: list[int] = []
        super().__init__(process)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code; read by one thread, because it is there only once."""
        with self._reading:
            return super().poll(flag)

    def _launch(self, process: Any) -> None:
        pickled = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process.name), pickled)
            reduction.dump(process, pickled)
        finally:
            set_spawning_popen(None)
        self.sentinel, data = self._server.fork(self._fds)
        files = (os.dup(data), self.sentinel)
        self.finalizer = util.Finalize(self, util.close_fds, files)  # type: ignore[attr-defined]
        with contextlib.suppress(BrokenPipeError), open(data, "wb") as file:
            file.write(pickled.getbuffer())  # a server that has died shows in the next line
        pid = forkserver.read_signed(self.sentinel)
        if pid < 0:
            raise EngineDeadError(f"No process can be forked for the engine: {os.strerror(-pid)}.")
        self.pid = pid


def serve(channel: socket.socket) -> None:
    """Fork for each request on `channel`, and report each fork's id and exit code, until the caller
    closes it."""
    give_back()
    gc.freeze()  # a collection in a fork would write to, and so copy, all that they share
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(woken)
    forks: dict[int, int] = {}  # by process id, the file that takes the exit code
    while True:
        ready, _, _ = select.select([channel.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            for pid, status in list(forks.items()):
                ended, how = os.waitpid(pid, os.WNOHANG)
                if ended:
                    _write(status, os.waitstatus_to_exitcode(how))
                    os.close(forks.pop(pid))
        if channel.fileno() in ready:
            try:
                data, status, *files = reduction.recvfds(channel, MAX_FILES)
            except EOFError:
                return
            try:
                pid = os.fork()
            except OSError as failure:  # the engines that run stay as they are
                _write(status, -(failure.errno or 1))
                files.append(status)
            else:
                if pid == 0:
                    _run_fork(data, files, [channel.fileno(), wake, woken, status, *forks.values()])
                forks[pid] = status
                _write(status, pid)
            for file in (data, *files):
                os.close(file)


def _write(status: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        forkserver.write_signed(status, number)


def _run_fork(data: int, files: list[int], unused: list[int]) -> None:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for file in unused:
            os.close(file)
        forkserver._forkserver._inherited_fds = files  # type: ignore[attr-defined]
        code = spawn._main(data, os.dup(data))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
