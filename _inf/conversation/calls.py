"""Runs the calls of one turn of a row."""

from __future__ import annotations

import asyncio
import dataclasses

from _inf.conversation.episode import Episode
from _inf.tools.definition import call_fault
from _inf.tools.execution import Executed, execute


async def run_calls(episode: Episode) -> list[Executed]:
    """Run the calls of `to_run`: at once, or, on an environment, one after the other."""
    calls = range(len(episode.to_run))
    if episode.environment is None:
        return await asyncio.gather(*(_run(episode, index) for index in calls))
    return [await _run(episode, index) for index in calls]


async def _run(episode: Episode, index: int) -> Executed:
    """Run one call; never raises, and its text is safe to put into a prompt."""
    call, rules = episode.to_run[index], episode.rules
    multi_turn = rules.config.rollout.multi_turn
    fault = call_fault(call, rules.tools)
    if index >= (most := multi_turn.max_parallel_calls):
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
        )
    return dataclasses.replace(done, text=rules.escape_special_tokens(done.text))
