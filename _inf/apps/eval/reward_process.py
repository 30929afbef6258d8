"""The process in which a reward function runs: answers one call after another until its end.

It is started by `reward.py`, imports nothing of an engine, and prints to stderr what the function
prints.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from _inf.runtime.worker import die_with


def serve(file: int, parent: int) -> None:
    """Take the pickled function, then the arguments of each call."""
    die_with(parent)  # also in a call that never ends
    sys.stdout = sys.stderr
    connection = Connection(file)
    try:
        function: Callable[..., Any] | None = None
        while True:
            message = connection.recv()
            try:
                if isinstance(message, bytes):
                    function = load(cloudpickle.loads(message))
                    result = None
                else:
                    assert function is not None
                    result = function(**message)
                    if inspect.isawaitable(result):
                        result = asyncio.run(_awaited(result))
                # Raises for what a row of the output cannot have.
                answer = ("returned", json.loads(json.dumps(result, default=_plain)))
            except Exception as failure:
                last = traceback.extract_tb(failure.__traceback__)[-1]
                where = f"{Path(last.filename).name}, line {last.lineno}"
                answer = ("raised", f"{type(failure).__name__}: {failure} ({where})")
            connection.send(answer)
    except EOFError:
        pass


async def _awaited(result: Any) -> Any:
    return await result


def load(function: Callable[..., Any] | str | None) -> Callable[..., Any]:
    """The function itself, one of a file, or verl's default."""
    if function is None:
        from verl.utils.reward_score import default_compute_score

        return default_compute_score  # type: ignore[no-any-return]
    if not isinstance(function, str):
        return function
    path, _, name = function.rpartition(":")
    sys.path.append(str(Path(path).resolve().parent))
    spec = importlib.util.spec_from_file_location("custom_module", path)  # verl's name for it
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """Turn numpy's and torch's values into Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
