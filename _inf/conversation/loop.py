"""The rows of a call that run side by side, and the loop of a conversation: the model answers, then
tools or a user reply, and so on.

The order of create, execute, calc_reward and release, the turn limits and `over_sample_rate` are
verl 0.6.1's (`workers/rollout/sglang_rollout/sglang_rollout.py`, `_async_rollout_a_request`).
There, an exception in a method of a tool or an interaction cancels the whole batch, an aborted row
never releases its tools, interactions are never finalized, and nothing has a timeout. Here a
failure ends only its row, or only sets the row's `error`; and no prompt is rendered again, so the
returned ids are those that were sampled.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from _inf.conversation.calls import run_calls
from _inf.conversation.environments import NAME as ENVIRONMENT
from _inf.conversation.environments import REWARD
from _inf.conversation.episode import Episode
from _inf.conversation.rules import DEFAULT_INTERACTION
from _inf.errors import (
    ConfigError,
    EngineDeadError,
    EngineRefusal,
    RequestFailure,
    ToolError,
    error_text,
    shown,
)
from _inf.tools.execution import call_user_code, copied, executed, shown_part, with_timeout
from _inf.types import Report, RequestOutput, Turn


class Row(Protocol):
    """A row while it runs. tokens: sampled so far."""

    finished: bool

    @property
    def tokens(self) -> int: ...

    def abort(self, limit: str | None, error: str | None = None) -> None: ...

    def output(self, weight_version: int) -> RequestOutput: ...


AnyRow = TypeVar("AnyRow", bound=Row)


async def run_rows(
    rows: Sequence[AnyRow],
    run: Callable[[AnyRow, Callable[[], None]], Awaitable[None]],
    report: Report | None,
    *,
    over_sample_rate: float,
    weight_version: int,
) -> list[RequestOutput]:
    """Run all rows in parallel; abort the last share of them, `over_sample_rate`. run: runs one and
    calls what it is given whenever tokens arrive. weight_version: of rows without a turn."""

    def progressed() -> None:
        if report is not None:
            report(sum(row.finished for row in rows), sum(row.tokens for row in rows))

    tasks = [asyncio.ensure_future(run(row, progressed)) for row in rows]
    enough = int(len(rows) * (1 - over_sample_rate))
    try:
        for finished, task in enumerate(asyncio.as_completed(tasks), start=1):
            await task  # raises what ends the whole call
            progressed()
            if finished >= enough:
                break
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for each, row in zip(tasks, rows, strict=True):
        if each.cancelled():
            row.abort("over_sample_rate", "given up, because the other rows ended first")
    return [row.output(weight_version) for row in rows]


def warn_of_failures(outputs: Sequence[RequestOutput]) -> None:
    """Warn if rows failed, because they are no answers; name the first one and its reason. A row
    that a limit has ended did not fail."""
    failed = [
        (number, said)
        for number, output in enumerate(outputs)
        if (said := output.transcript) is not None
        and (output.finish_reason, said.limit) == ("abort", None)
    ]
    if failed:
        number, said = failed[0]
        loop = "" if said.agent_loop is None else f"agent loop {said.agent_loop}: "
        warnings.warn(
            f"{loop}{len(failed)} of {len(outputs)} rows failed; the first is row {number}: "
            f'{said.error}. The others\' reasons are in metadata["error"].',
            stacklevel=5,
        )


async def run_episode(episode: Episode, turn: Turn, progressed: Callable[[], None]) -> None:
    """Run one conversation; a failure aborts this row only, unless no row can be answered."""
    lifecycle = Lifecycle(episode)
    try:
        await lifecycle.start()
        turn_rewards = await _turns(episode, turn, lifecycle, progressed)
        episode.conclude(await lifecycle.rewards() | {"user_turn_rewards": turn_rewards})
    except (ConfigError, EngineDeadError, EngineRefusal):
        raise
    except Exception as failure:
        episode.abort(None, error_text(failure))
    finally:
        ending = asyncio.ensure_future(lifecycle.end())
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:  # the row is whole: its tools are released all the same
            await ending
    episode.finished = True


async def _turns(
    episode: Episode, turn: Turn, lifecycle: Lifecycle, progressed: Callable[[], None]
) -> list[float | None]:
    """Run turns until the conversation ends; return the rewards of the user's messages."""
    rewards: list[float | None] = []
    while not episode.over:
        request = episode.next_request()
        try:
            answer = await turn(request)
        except RequestFailure as failure:
            raise RequestFailure(f"turn {len(episode.outputs) + 1}: {failure}") from failure
        episode.add_assistant_turn(answer)
        progressed()
        if episode.over:
            break
        if episode.to_run:
            episode.add_tool_results(await run_calls(episode))
        elif lifecycle.interaction is None or not episode.may_add_user_message(len(rewards)):
            break
        else:
            done, content, reward = await lifecycle.respond()
            rewards.append(reward)
            if done:
                episode.concluded = True
                break
            episode.add_user_message(content)
    return rewards


class Lifecycle:
    """The verl tools of one row, and its interaction, if it has one."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._tools = [tool.verl for tool in episode.rules.tools.values() if tool.verl]
        self._started: list[Any] = []
        self._kwargs = episode.turns.interaction_kwargs
        self._name = self._kwargs.get("name", DEFAULT_INTERACTION)
        self.interaction: Any = episode.rules.interactions[self._name] if self._kwargs else None

    async def start(self) -> None:
        """Reset the environment, create the tools and start the interaction; a failure ends the
        row."""
        episode, turns = self._episode, self._episode.turns
        self._kwargs = copied(dict(self._kwargs))
        episode.turns = dataclasses.replace(turns, tools_kwargs=copied(turns.tools_kwargs))
        if episode.environment is not None:
            await episode.enter_environment()
        texts = await self._create_tools()
        episode.add_opening_texts(texts)
        if texts or episode.environment is not None:
            episode.render_prompt()
        if self.interaction is not None:
            self._started.append(self.interaction)
            await self._call(self.interaction, "start_interaction", **self._kwargs)

    async def _create_tools(self) -> dict[str, str]:
        """Create all tools, or raise the first failure once the others are created too, so that
        they can be released; return the texts of those that have one."""
        created = await asyncio.gather(*map(self._create, self._tools), return_exceptions=True)
        texts = {}
        for tool, text in zip(self._tools, created, strict=True):
            if isinstance(text, BaseException):
                raise text
            if text:
                texts[tool.name] = text
        return texts

    async def _create(self, tool: Any) -> str:
        self._started.append(tool)
        kwargs = self._episode.turns.tool_kwargs(tool.name, "create")
        try:
            _, response = await self._call(tool, "create", **kwargs)
            done = executed(response, verl=True)
        except Exception as failure:
            raise ToolError(f"{tool.name}: create(): {error_text(failure)}") from failure
        if done.error is not None:
            raise ToolError(f"{tool.name}: create(): {done.error}")
        multi_turn = self._episode.rules.config.rollout.multi_turn
        most, side = multi_turn.max_tool_response_length, multi_turn.tool_response_truncate_side
        return shown_part(done, most, side).text

    async def respond(self) -> tuple[bool, str, float | None]:
        """Return whether the conversation is over, the user's next message, and its reward."""
        messages = [{"role": m["role"], "content": m["content"]} for m in self._episode.messages]
        response = await self._attempt(
            self.interaction, "generate_response", messages, **self._kwargs
        )
        if response is None:  # it failed
            return True, "", None
        try:
            done, content, reward, _ = response
            if not (done or isinstance(content, str)):
                raise TypeError
        except (TypeError, ValueError):
            returned = f"{self._name}: generate_response() returned {shown(response)}"
            wanted = "(whether it ends, the user's next message, reward, metrics)"
            raise ToolError(f"{returned}; it must be {wanted}.") from None
        return done, content, reward

    async def rewards(self) -> dict[str, Any]:
        rewards = await asyncio.gather(*(self._of(tool, "calc_reward") for tool in self._tools))
        named = {tool.name: reward for tool, reward in zip(self._tools, rewards, strict=True)}
        return {**named, **await self._of_environment()}

    async def _of_environment(self) -> dict[str, Any]:
        if (environment := self._episode.environment) is None:
            return {}
        try:
            reward = await environment.reward()
        except Exception as failure:
            self._episode.error = self._episode.error or f"{REWARD}: {error_text(failure)}"
            return {}
        return {} if reward is None else {ENVIRONMENT: reward}

    async def end(self) -> None:
        """Release the tools that were created, and finalize the interaction if it was started and
        overrides verl's method, which takes no instance."""
        if self._episode.environment is not None:
            self._episode.environment.end()
        created = [tool for tool in self._tools if tool in self._started]
        await asyncio.gather(*(self._of(tool, "release") for tool in created))
        method = getattr(type(self.interaction), "finalize_interaction", None)
        if self.interaction in self._started and method is not None:
            from verl.interactions.base import BaseInteraction

            if method is not BaseInteraction.finalize_interaction:
                await self._attempt(self.interaction, "finalize_interaction")

    async def _of(self, tool: Any, method: str) -> Any:
        kwargs = self._episode.turns.tool_kwargs(tool.name, method)
        return await self._attempt(tool, method, **kwargs)

    async def _attempt(self, part: Any, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Await a method; if it fails or takes too long, set the row's `error`, return None."""
        try:
            return await self._call(part, method, *args, **kwargs)
        except Exception as failure:
            name = self._name if part is self.interaction else part.name
            self._episode.error = self._episode.error or f"{name}: {error_text(failure)}"
            return None

    async def _call(self, part: Any, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Await a method; one that is not `async` may block, and runs on a thread."""
        call = functools.partial(getattr(part, method), self._episode.name, *args, **kwargs)
        return await with_timeout(call_user_code(call), self._episode.rules.config.tool_timeout)
