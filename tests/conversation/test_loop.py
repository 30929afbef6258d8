"""The loop of a conversation with misbehaving tools and a stub as the backend.

tests/engine/answers/test_tool_loop.py tests it on the real engine.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from _inf.conversation.episode import Episode
from _inf.conversation.loop import run_episode, run_rows
from _inf.types import Prompt, Request, RequestOutput, SamplingParams, Tool, TurnOptions
from tests.support.conversation_rules import rules


class Backend:
    """Answers each turn with one token, after as many short sleeps as the first prompt id says."""

    interactions: dict[str, Any] = {}
    weight_version = 3

    async def turn(self, request: Request) -> RequestOutput:
        for _ in range(request.token_ids[0]):
            await asyncio.sleep(0.005)
        return RequestOutput([7], [-1.0], [], "stop", 7, 1, 1, 0, 3)


class VerlTool:
    """Logs its calls; a method named in `misbehave` runs that function first."""

    def __init__(self, name: str, log: list[str], **misbehave: Any) -> None:
        self.name = name
        self._log, self._misbehave = log, misbehave

    async def _done(self, method: str, instance_id: str) -> None:
        self._log.append(f"{self.name}.{method}")
        if method in self._misbehave:
            await self._misbehave[method]()

    async def create(self, instance_id: str) -> tuple[str, Any]:
        await self._done("create", instance_id)
        return instance_id, SimpleNamespace(is_empty=lambda: True)

    async def calc_reward(self, instance_id: str) -> float:
        await self._done("calc_reward", instance_id)
        return 1.0

    async def release(self, instance_id: str) -> None:
        await self._done("release", instance_id)
        self._log.append(f"{self.name} released")


def held(turns: list[int], tools: list[VerlTool], over_sample_rate: float = 0.0) -> list[Any]:
    """Run one row for each number in `turns`, which is how long its turn takes."""
    own = rules(
        None,  # the template, which only a second turn would need
        SimpleNamespace(decode=lambda ids, **kwargs: "a" * len(ids)),
        tools={tool.name: Tool(tool.name, {}, verl=tool) for tool in tools},
        over_sample_rate=over_sample_rate,
    )
    episodes = [
        Episode(
            Prompt([turn], messages=[{"role": "user", "content": "hi"}]),
            SamplingParams(max_tokens=5),
            TurnOptions(),
            own,
        )
        for turn in turns
    ]
    turn = Backend().turn
    return asyncio.run(
        run_rows(
            episodes,
            lambda episode, progressed: run_episode(episode, turn, progressed),
            None,
            over_sample_rate=over_sample_rate,
            weight_version=Backend.weight_version,
        )
    )


@pytest.mark.parametrize("method", ["create", "calc_reward", "release"])
def test_tool_that_is_cancelled_from_within_ends_its_own_row_alone(method: str) -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError("from inside the tool")

    rows = held([1, 1], [VerlTool("a", [], **{method: cancelled})])
    for row in rows:
        assert "it was cancelled" in row.transcript.error
        assert row.finish_reason == ("abort" if method == "create" else "stop")
        assert row.weight_version == 3


def test_all_tools_of_a_row_are_released_though_it_is_given_up_meanwhile() -> None:
    """The first row ends the call while the second one's tools are being released."""
    log: list[str] = []
    slow = VerlTool("slow", log, release=lambda: asyncio.sleep(0.1))
    rows = held([1, 2, 400], [slow, VerlTool("quick", log)], over_sample_rate=0.34)
    assert sorted(log).count("slow released") == sorted(log).count("quick released") == 3
    assert [row.finish_reason for row in rows] == ["stop", "stop", "abort"]
    assert rows[2].transcript.limit == "over_sample_rate"
    rewards = {"slow": 1.0, "quick": 1.0, "user_turn_rewards": []}
    assert rows[1].transcript.reward_scores == rewards
