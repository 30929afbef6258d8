"""The built-in loop of a conversation: the model answers, then tools or a user reply, and so on.

No prompt is rendered again after its first turn, so the returned ids are those that were sampled.
What a row has in addition to its tools is called through its hooks (`hooks.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from _inf.conversation.episode import Episode
from _inf.conversation.recorder import Recorder
from _inf.conversation.rules import Rules
from _inf.errors import (
    ConfigError,
    EngineDeadError,
    EngineRefusal,
    RequestFailure,
    error_text,
)
from _inf.parts.continued import Continued
from _inf.tools.definition import call_fault
from _inf.tools.execution import execute
from _inf.tools.results import Executed, copied
from _inf.turns import TurnOptions
from _inf.types import Prompt, RequestOutput, SamplingParams

if TYPE_CHECKING:
    from _inf.conversation.environments import EnvironmentKind
    from _inf.conversation.hooks import Hook


@dataclasses.dataclass(frozen=True)
class ToolLoop:
    """The loop of one prompt's rows. environment: makes theirs, if they have one."""

    rules: Rules
    turns: TurnOptions
    environment: EnvironmentKind | None = None
    adds, text_only = "tools and interactions add", False

    @property
    def renders(self) -> bool:
        return self.environment is not None

    def row(self, prompt: Prompt, params: SamplingParams, recorder: Recorder) -> ToolRow:
        episode = Episode(prompt, params, self.turns, self.rules, recorder)
        if (continued := params.of(Continued)) is not None:
            from _inf.conversation.continued import take_up

            take_up(episode, continued.so_far)
        return ToolRow(episode, self._hooks(episode))

    def _hooks(self, episode: Episode) -> list[Hook]:
        """The row's hooks, in the order in which they start."""
        hooks: list[Hook] = []
        if self.environment is not None:
            from _inf.conversation.environments import Environment

            hooks.append(Environment(episode, self.environment, self.turns.environment_kwargs))
        if any(tool.verl for tool in self.rules.tools.values()):
            from _inf.conversation.verl_tools import VerlTools

            hooks.append(VerlTools(episode))
        if self.turns.interaction_kwargs:
            from _inf.conversation.interactions import Interaction

            hooks.append(Interaction(episode))
        return hooks


class ToolRow:
    """One row while the tool loop runs it."""

    def __init__(self, episode: Episode, hooks: Sequence[Hook] = ()) -> None:
        self.episode, self.recorder, self._hooks = episode, episode.recorder, hooks

    async def prepare(self) -> None:
        """Nothing: what the row needs is made when it runs."""

    def aborted(self, limit: str | None, error: str) -> RequestOutput:
        return self.episode.aborted(limit, error)

    async def run(self) -> RequestOutput:
        episode, rewards, failed = self.episode, dict[str, object](), ""
        try:
            kwargs = copied(episode.turns.tools_kwargs)
            episode.turns = dataclasses.replace(episode.turns, tools_kwargs=kwargs)
            for hook in self._hooks:
                await hook.start()
            episode.render_prompt()
            of_turns = await self._turns()
            for hook in self._hooks:
                rewards |= await hook.rewards()
            rewards["user_turn_rewards"] = of_turns
        except (ConfigError, EngineDeadError, EngineRefusal):  # no row can be answered
            raise
        except Exception as failure:
            failed = error_text(failure)
        finally:
            ending = asyncio.ensure_future(self._end())
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:  # the row is whole: its tools are released all the same
                await ending
        return self.aborted(None, failed) if failed else episode.output(rewards)

    async def _end(self) -> None:
        for hook in self._hooks:
            await hook.end()

    async def _turns(self) -> list[float | None]:
        """Run turns until the conversation ends; return the rewards of the user's messages."""
        episode, rewards = self.episode, list[float | None]()
        user = next((hook for hook in self._hooks if hook.replies), None)
        while not episode.over:
            await self._answer()
            if episode.over:
                break
            if episode.to_run:
                episode.add_tool_results(await self._run_calls())
            elif user is None:
                break
            elif not episode.may_add_user_message(len(rewards)):
                episode.end_by_turns()
                break
            else:
                reply = await user.reply()
                rewards.append(reply.reward)
                if reply.ends:
                    break
                episode.add_user_message(reply.content)
        return rewards

    async def _answer(self) -> None:
        episode, request = self.episode, self.episode.next_request()
        try:
            answer = await self.recorder.sample(request)
        except RequestFailure as failure:
            turn = len(self.recorder.sampled) + 1
            raise RequestFailure(f"turn {turn}: {failure}") from failure
        episode.add_answer(answer)

    async def _run_calls(self) -> list[Executed]:
        """Run the calls of the last answer: at once, or, on an environment, one after the other."""
        numbers = range(len(self.episode.to_run))
        if any(hook.one_call_at_a_time for hook in self._hooks):
            return [await self._run_call(number) for number in numbers]
        return await asyncio.gather(*map(self._run_call, numbers))

    async def _run_call(self, number: int) -> Executed:
        """Run one call; never raises, and its text is safe to put into a prompt."""
        episode, rules = self.episode, self.episode.rules
        call, multi_turn = episode.to_run[number], rules.config.rollout.multi_turn
        fault = call_fault(call, rules.tools)
        if number >= (most := multi_turn.max_parallel_calls):
            fault = f"Error: at most {most} calls may be made in one turn; this was not run."
        if fault is not None:
            done = Executed(text=fault, error=fault)
        else:
            tool = rules.tools[call.name]
            done = await execute(
                tool,
                call.arguments,
                instance_id=episode.name,
                execute_kwargs=episode.turns.tool_kwargs(call.name, "execute"),
                timeout=tool.timeout or rules.config.tool_timeout,
                max_length=multi_turn.max_tool_response_length,
                side=multi_turn.tool_response_truncate_side,
                read=rules.read,
            )
        return done.with_texts(rules.escape_special_tokens)
