"""Environments of rows, with the contract of TRL's `environment_factory` (`trl/trainer/
grpo_trainer.py`, 1.10): a fresh object for each row, whose public methods are its tools.

TRL keeps a pool of objects and resets them; here each row makes its own. There an environment that
raises ends the training step, here its row.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from _inf.errors import ConfigError, ToolError, did_you_mean, error_text, shown
from _inf.tools.definition import as_tool
from _inf.tools.execution import CallThread, call_user_code, copied, with_timeout
from _inf.types import Message, Tool, TurnOptions

KEYWORD, COLUMNS, NAME = "environment_factory", "environment_kwargs", "environment"
RESET, REWARD = "reset", "get_reward"


@dataclasses.dataclass(frozen=True)
class EnvironmentKind:
    """A factory, and the tools of what it makes, which a row binds to its own object. routed:
    whether the factory was chosen by a column, which `reset` does not get then."""

    factory: Callable[[], Any]
    tools: Sequence[Tool]
    routed: bool


def environment_kinds(turns: Sequence[TurnOptions], timeout: float) -> list[EnvironmentKind]:
    """Return the kind of each prompt's environment; none if the call has no factory.

    Makes one object of each kind, for its tools, as TRL does; timeout: seconds for each. Raises
    `ConfigError` and `ToolError`.
    """
    kinds: list[EnvironmentKind] = []
    known = functools.cache(functools.partial(_kind, timeout))
    for index, each in enumerate(turns):
        factory, columns = each.environment_factory, each.environment_kwargs
        if factory is None:
            if columns:
                said = f"{COLUMNS}: no environment gets it; set {KEYWORD}."
                raise ConfigError(said, key=COLUMNS, index=index)
        elif not isinstance(factory, Mapping):
            kinds.append(known(factory, KEYWORD))
        elif (name := columns.get(NAME)) in list(factory):  # `name` may be of any type
            kinds.append(known(factory[name], f"{KEYWORD}.{name}"))
        else:
            hint = did_you_mean(str(name), factory) or f"; there are {', '.join(factory)}."
            raise ConfigError(
                f"{COLUMNS}.{NAME}: {shown(name)} of prompt {index} is not an environment{hint}",
                key=f"{COLUMNS}.{NAME}",
                index=index,
            )
    if kinds and len(kinds) < len(turns):
        raise ConfigError.of(KEYWORD, "in one call all prompts have an environment, or none has.")
    return kinds


def _kind(timeout: float, factory: Callable[[], Any], where: str) -> EnvironmentKind:
    thread = CallThread()  # one that hangs is left behind
    try:
        making = thread.submit(factory)
        if not concurrent.futures.wait([making], timeout).done:
            raise TimeoutError(f"no answer within {timeout:g} seconds")
        made = making.result()
        methods = _methods(made)
    except Exception as failure:
        raise ConfigError.of(where, f"it cannot be made: {error_text(failure)}.") from failure
    finally:
        thread.end()
    if RESET not in methods:
        raise ConfigError.of(where, f"{type(made).__name__} has no method {RESET}().")
    tools = [
        as_tool(method, f"{where}: {type(made).__name__}.{name}()")
        for name, method in methods.items()
        if name not in (RESET, REWARD)
    ]
    return EnvironmentKind(factory, tools, routed=where != KEYWORD)


def _methods(environment: object) -> dict[str, Callable[..., Any]]:
    """Its public methods. The class is searched, as in TRL 1.16: a look at an object's property
    would run it."""
    names = [name for name, _ in inspect.getmembers(type(environment), _is_method)]
    return {name: getattr(environment, name) for name in names if not name.startswith("_")}


def _is_method(member: object) -> bool:
    return inspect.isfunction(member) or inspect.ismethod(member)  # of a class, and a class method


class Environment:
    """The environment of one row. timeout: seconds for each of its methods.

    What is not `async` runs on one thread of its own, as TRL runs all on one.
    """

    def __init__(self, kind: EnvironmentKind, columns: Mapping[str, Any], timeout: float) -> None:
        self._kind, self._columns, self._timeout = kind, dict(columns), timeout
        self._methods: dict[str, Callable[..., Any]] = {}
        self._thread = CallThread()

    async def start(self, messages: Sequence[Message]) -> tuple[list[Tool], str]:
        """Make and reset it; return its tools, and the text that `reset` returned. Raises what its
        code raises."""
        made = await self._call(self._kind.factory)
        self._methods = _methods(made)
        columns = copied({"prompt": [dict(each) for each in messages], **self._columns})
        if self._kind.routed:
            columns.pop(NAME, None)
        observation = await self._call(functools.partial(self._methods[RESET], **columns))
        if not isinstance(observation, str | None):
            raise ToolError(f"{RESET}() returned {shown(observation)}; it must be a str or None.")
        tools = [
            dataclasses.replace(tool, function=functools.partial(self._run_tool, tool.name))
            for tool in self._kind.tools
        ]
        return tools, observation or ""

    async def _run_tool(self, name: str, /, **arguments: Any) -> Any:
        """Run a method; the caller limits its time."""
        call = functools.partial(self._methods[name], **arguments)
        return await call_user_code(call, self._thread)

    async def reward(self) -> float | None:
        """What `get_reward` returns; None without one, or of a row that did not begin."""
        if REWARD not in self._methods:
            return None
        reward = float(await self._call(self._methods[REWARD]))
        if not math.isfinite(reward):
            raise ToolError(f"{REWARD}() returned {reward}, which is not a finite number.")
        return reward

    async def _call(self, call: Callable[[], Any]) -> Any:
        return await with_timeout(call_user_code(call, self._thread), self._timeout)

    def end(self) -> None:
        """Let its thread end; nothing is called any more."""
        self._thread.end()
