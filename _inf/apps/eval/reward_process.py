"""Runs a reward function in a process of its own, or a thread of the caller, so that a call which
hangs or crashes ends neither the evaluation nor its engine.

It imports nothing of an engine, and answers calls until its connection is closed: a sync function
one after another in its main thread, an async one side by side in an event loop. A process prints
to stderr what the function prints.

Messages are pickles, each after its size. In: (number, arguments, seconds). Out: first (LOADED,
"returned", whether it is async) or (LOADED, "raised", (class, text)); then for each call (number,
kind, value), where "late" is a kind. Before an answer whose call loaded files of the user's own
comes (LOADED, "files", their digests).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import json
import pickle
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import cloudpickle
from anyio.from_thread import BlockingPortal, start_blocking_portal

from _inf.apps.code_version import file_digest, is_own_file
from _inf.errors import ConfigError, did_you_mean
from _inf.runtime.processes import die_with

RewardFunction = Callable[..., Any]
LOADED = 0  # the number of the first answer
FILES = "files"
HEADER = struct.Struct("!Q")  # the size of a message
ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")


def framed(message: object) -> bytes:
    """Return a message as it is sent. A value that cannot be pickled may raise anything."""
    data = pickle.dumps(message)
    return HEADER.pack(len(data)) + data


async def received(reader: asyncio.StreamReader) -> Any:
    """Return the next message. Raises `EOFError` or `OSError` when the other end is closed."""
    (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    return pickle.loads(await reader.readexactly(size))


class LoadedFiles:
    """Notes each file of code that this process runs from now on, however it was found."""

    def __init__(self) -> None:
        self._found: set[str] = set()
        self._told: set[str] = set()
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "exec":  # how every module's code is run
            self._found.add(getattr(arguments[0], "co_filename", ""))
        elif event == "import" and arguments[1]:  # a library in C
            self._found.add(arguments[1])

    def new(self) -> dict[str, str]:
        """Return the digests of the user's own files that were not returned before."""
        new = self._found.copy() - self._told
        self._told |= new
        files = [Path(name).resolve() for name in new if is_own_file(name)]
        return {str(file): file_digest(file) for file in files}


def serve_calls(file: int, parent: int) -> None:
    """Run as a process, which has the pickled function on its standard input."""
    die_with(parent)  # also in a call that never ends
    pickled, sys.stdout = sys.stdin.buffer.read(), sys.stderr
    end, files = socket.socket(fileno=file), LoadedFiles()
    answer_calls(end, lambda: load_function(cloudpickle.loads(pickled)), files)


def answer_calls(
    end: socket.socket, loaded: Callable[[], RewardFunction], files: LoadedFiles | None = None
) -> None:
    """Answer calls of the function that `loaded` returns, until the other end is closed.

    files: of a process; a thread cannot tell which files are its own.
    """

    def send(number: int, kind: str, value: object) -> None:
        if files is not None and (new := files.new()):
            connection.write(framed((LOADED, FILES, new)))
        connection.write(framed((number, kind, value)))
        connection.flush()

    def answer(number: int, call: Callable[[], Any]) -> None:
        try:
            kind, value = call()
        except Exception as failure:
            kind, value = _raised(failure)
        send(number, kind, value)

    def ended(number: int, task: Future[object]) -> None:
        answer(number, task.result)

    with contextlib.suppress(OSError), end, end.makefile("rwb") as connection:
        try:
            function = loaded()
            _check_keywords(function)
        except Exception as failure:
            return send(LOADED, *_raised(failure))
        is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        send(LOADED, "returned", is_async)
        with start_blocking_portal() as portal:
            while connection.read(HEADER.size):  # nothing when the other end is closed
                number, *call = pickle.load(connection)
                if is_async:
                    task = portal.start_task_soon(_awaited, function, *call)
                    task.add_done_callback(partial(ended, number))
                else:
                    answer(number, partial(_now, portal, function, *call))


def _now(
    portal: BlockingPortal, function: RewardFunction, arguments: dict[str, Any], seconds: float
) -> tuple[str, object]:
    result = function(**arguments)  # in this thread: it may run an event loop of its own
    if inspect.isawaitable(result):
        return portal.call(_awaited, lambda: result, {}, seconds)
    return "returned", _json(result)


async def _awaited(
    function: RewardFunction, arguments: dict[str, object], seconds: float
) -> tuple[str, object]:
    with anyio.move_on_after(seconds):
        return "returned", _json(await function(**arguments))
    return "late", None


def load_function(function: RewardFunction | str | None) -> RewardFunction:
    """Return the function itself, the one that "FILE.py:NAME" names, or verl's default."""
    if function is None:
        from verl.utils.reward_score import default_compute_score

        return default_compute_score  # type: ignore[no-any-return]
    if not isinstance(function, str):
        return function
    found, functions = from_file(function)
    if not callable(found):
        what = "no function" if found is None else "something other than a function"
        name = function.rpartition(":")[2]
        raise AttributeError(f"the file has {what} named {name!r}{did_you_mean(name, functions)}")
    return found


def check_file(named: str, option: str, form: str) -> None:
    """Raise `ConfigError` unless `named` is "FILE:NAME" of a file that exists. form: how the
    message describes NAME."""
    file, _, name = named.rpartition(":")
    if not file or not name.isidentifier():
        raise ConfigError(f"{option} {named!r}: name a file and {form}.")
    if not Path(file).is_file():
        raise ConfigError(f"{option} {named!r}: there is no file {file}.")


def from_file(named: str) -> tuple[object, list[str]]:
    """Return what "FILE.py:NAME" names, or None, and the names of the file's functions."""
    path, _, name = named.rpartition(":")
    if (folder := str(Path(path).resolve().parent)) not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location("custom_module", path)  # verl's name for it
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    return getattr(module, name, None), functions


def _check_keywords(function: RewardFunction) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a function in C
        return
    try:
        signature.bind(**dict.fromkeys(ARGUMENTS))
    except TypeError as failure:
        raise TypeError(
            f"{failure}; verl calls it with the keywords {', '.join(ARGUMENTS)}"
        ) from None


def _raised(failure: Exception) -> tuple[str, object]:
    """Return what is sent for an exception: its class, and its text with the place."""
    frames = traceback.extract_tb(failure.__traceback__)
    where = [frame for frame in frames if "importlib" not in frame.filename]
    place = f" ({Path(where[-1].filename).name}, line {where[-1].lineno})" if where else ""
    if isinstance(failure, SyntaxError):  # says its place itself
        place = ""
    kind = type(failure).__name__
    return "raised", (kind, f"{kind}: {failure}{place}")


def _json(result: object) -> object:
    """Return a result as a row has it, numpy's and torch's values as Python's."""

    def plain(value: object) -> object:
        if hasattr(value, "tolist"):
            return value.tolist()
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")

    return json.loads(json.dumps(result, default=plain))
