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
import weakref
from collections.abc import Callable, Mapping, Sequence

from _inf.conversation.episode import PAUSED, Episode
from _inf.conversation.hooks import Hook
from _inf.errors import ConfigError, ToolError, did_you_mean, error_text, shown
from _inf.tools.definition import as_tool
from _inf.tools.execution import CallThread, call_user_code
from _inf.tools.results import copied
from _inf.turns import TurnOptions
from _inf.types import Tool

KEYWORD, COLUMNS, NAME = "environment_factory", "environment_kwargs", "environment"
RESET, REWARD = "reset", "get_reward"


@dataclasses.dataclass(frozen=True)
class EnvironmentKind:
    """A factory, and the tools of what it makes, which a row binds to its own object. routed:
    whether the factory was chosen by a column, which `reset` does not get then."""

    factory: Callable[[], object]
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
        raise ConfigError.of(KEYWORD, "in one call, give an environment to all prompts or to none.")
    return kinds


def _kind(timeout: float, factory: Callable[[], object], where: str) -> EnvironmentKind:
    thread = CallThread()  # one that hangs is abandoned
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


def _methods(environment: object) -> dict[str, Callable[..., object]]:
    """Its public methods. The class is searched, as in TRL 1.16: a look at an object's property
    would run it."""
    names = [name for name, _ in inspect.getmembers(type(environment), _is_method)]
    return {name: getattr(environment, name) for name in names if not name.startswith("_")}


def _is_method(member: object) -> bool:
    return inspect.isfunction(member) or inspect.ismethod(member)  # of a class, and a class method


class Kept:
    """The environment of a row that `pause` has ended, until a row that continues it takes it. A
    copy of the row, as in another process, has none."""

    def __init__(self, methods: Mapping[str, Callable[..., object]], thread: CallThread) -> None:
        self._methods, self._thread = dict(methods), thread
        self._forgotten = weakref.finalize(self, thread.end)

    @property
    def taken(self) -> bool:
        return not self._forgotten.alive

    def take(self) -> tuple[dict[str, Callable[..., object]], CallThread]:
        """Its methods and its thread; raises `ToolError` if another row has taken them."""
        if self._forgotten.detach() is None:
            raise ToolError("the row's environment has already continued in another row.")
        return self._methods, self._thread

    def __reduce__(self) -> tuple[object, ...]:
        return type(None), ()


class Environment(Hook):
    """The environment of one row: a new one, or that of the row which it continues.

    What is not `async` runs on one thread of its own, as TRL runs all on one.
    """

    one_call_at_a_time = True

    def __init__(
        self, episode: Episode, kind: EnvironmentKind, columns: Mapping[str, object]
    ) -> None:
        super().__init__(episode)
        self._kind, self._columns = kind, dict(columns)
        self._methods: dict[str, Callable[..., object]] = {}
        self._thread = CallThread()

    async def start(self) -> None:
        """Its methods become tools of the row, and what it shows ends the last message."""
        if (kept := self.episode.environment) is None:
            self.episode.add_to_prompt(await self._begin())
        else:
            self._methods, self._thread = kept.take()
            self.episode.environment = None
        if lacks := {tool.name for tool in self._kind.tools} - self._methods.keys():
            raise ToolError(f"the row's own environment has no {', '.join(sorted(lacks))}().")
        self.episode.add_tools(
            dataclasses.replace(tool, function=functools.partial(self._run_tool, tool.name))
            for tool in self._kind.tools
        )

    async def _begin(self) -> str:
        """Make and reset it; return what it shows."""
        made = await self.call(self._kind.factory, self._thread)
        self._methods = _methods(made)
        messages = [dict(message) for message in self.episode.messages]
        columns = copied({"prompt": messages, **self._columns})
        if self._kind.routed:
            columns.pop(NAME, None)
        reset = functools.partial(self._methods[RESET], **columns)
        observation = await self.call(reset, self._thread)
        if not isinstance(observation, str | None):
            raise ToolError(f"{RESET}() returned {shown(observation)}; it must be a str or None.")
        return observation or ""

    async def _run_tool(self, name: str, /, **arguments: object) -> object:
        """Run a method; the caller limits its time."""
        call = functools.partial(self._methods[name], **arguments)
        return await call_user_code(call, self._thread)

    async def rewards(self) -> dict[str, object]:
        """What `get_reward` returns; none without one, or of a row that did not begin, or that may
        be continued."""
        if REWARD not in self._methods or self.episode.limit == PAUSED:
            return {}
        reward = await self.attempt(REWARD, self._reward())
        return {} if reward is None else {NAME: reward}

    async def _reward(self) -> float:
        reward = float(await self.call(self._methods[REWARD], self._thread))
        if not math.isfinite(reward):
            raise ToolError(f"{REWARD}() returned {reward}, which is not a finite number.")
        return reward

    async def end(self) -> None:
        """Let its thread end; nothing is called any more, unless the row is continued."""
        if self.episode.limit == PAUSED:
            self.episode.environment = Kept(self._methods, self._thread)
        else:
            self._thread.end()
