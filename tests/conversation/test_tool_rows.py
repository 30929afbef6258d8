"""The loop of a conversation with misbehaving tools and a stub as the backend.

tests/engine/answers/test_tool_loop.py tests it on the real engine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from _inf.conversation.recorder import Recorder
from _inf.conversation.row import answered_rows
from _inf.conversation.tool_loop import ToolLoop
from _inf.parts.failures import failures
from _inf.turns import TurnOptions
from _inf.types import Prompt, Request, RequestOutput, SamplingParams, Tool
from tests.support.conversation_rules import rules


class Backend:
    """Answers each turn with one token, after as many short sleeps as the first prompt id says."""

    weight_version = 3

    async def turn(self, request: Request) -> RequestOutput:
        for _ in range(request.token_ids[0]):
            await asyncio.sleep(0.005)
        return RequestOutput([7], [-1.0], "stop", 7, 1, 1, 0, [(3, 0)])


class VerlTool:
    """Logs its calls; a method named in `misbehave` runs that function first. says: the text of
    `create`."""

    def __init__(
        self, name: str, log: list[str], says: str | None = None, **misbehave: Any
    ) -> None:
        self.name = name
        self._log, self._says, self._misbehave = log, says, misbehave

    async def _done(self, method: str, instance_id: str) -> None:
        self._log.append(f"{self.name}.{method}")
        if method in self._misbehave:
            await self._misbehave[method]()

    async def create(self, instance_id: str, **kwargs: Any) -> tuple[str, Any]:
        await self._done("create", instance_id)
        kwargs.get("seen", []).append(self.name)
        self._log.append(f"{self.name} created with {kwargs}" if kwargs else f"{self.name} created")
        return instance_id, SimpleNamespace(text=self._says, image=None, video=None)

    async def calc_reward(self, instance_id: str) -> float:
        await self._done("calc_reward", instance_id)
        return 1.0

    async def release(self, instance_id: str) -> None:
        await self._done("release", instance_id)
        self._log.append(f"{self.name} released")


def held(
    turns: list[int],
    tools: list[VerlTool],
    over_sample_rate: float = 0.0,
    options: TurnOptions | None = None,
    interactions: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Run one row for each number in `turns`, which is how long its turn takes."""
    own = rules(
        SimpleNamespace(),  # the template, which only a second turn would need
        SimpleNamespace(decode=lambda ids, **kwargs: "a" * len(ids)),
        tools={tool.name: Tool(tool.name, {}, verl=tool) for tool in tools},
    )
    own = dataclasses.replace(own, interactions=interactions or {})
    loop = ToolLoop(own, options or TurnOptions())
    rows = [
        loop.row(
            Prompt([turn], messages=[{"role": "user", "content": "hi"}]),
            SamplingParams(max_tokens=5),
            Recorder(Backend().turn, Backend.weight_version),
        )
        for turn in turns
    ]
    return asyncio.run(answered_rows(rows, None, over_sample_rate))


@pytest.mark.parametrize("method", ["create", "calc_reward", "release"])
def test_tool_that_is_cancelled_from_within_ends_its_own_row_alone(method):
    async def cancelled() -> None:
        raise asyncio.CancelledError("from inside the tool")

    rows = held([1, 1], [VerlTool("a", [], **{method: cancelled})])
    for row in rows:
        assert "it was cancelled" in row.error
        assert row.finish_reason == ("abort" if method == "create" else "stop")
        assert row.weight_version == 3


def test_all_tools_of_a_row_are_released_though_it_is_given_up_meanwhile():
    """The first row ends the call while the second one's tools are being released."""
    log: list[str] = []
    slow = VerlTool("slow", log, release=lambda: asyncio.sleep(0.1))
    rows = held([1, 2, 400], [slow, VerlTool("quick", log)], over_sample_rate=0.34)
    assert sorted(log).count("slow released") == sorted(log).count("quick released") == 3
    assert [row.finish_reason for row in rows] == ["stop", "stop", "abort"]
    assert rows[2].transcript.limit == "over_sample_rate"
    rewards = {"slow": 1.0, "quick": 1.0, "user_turn_rewards": []}
    assert rows[1].transcript.reward_scores == rewards


@pytest.mark.parametrize("rows", [1, 3])
def test_a_share_that_is_given_up_leaves_at_least_one_row(rows):
    """As in verl: of one row, `int(1 * (1 - 0.7))` are enough, which is none."""
    reasons = [row.finish_reason for row in held([1, 400, 400][:rows], [], over_sample_rate=0.7)]
    assert reasons == ["stop", "abort", "abort"][:rows]


def test_tool_that_is_created_beside_one_that_fails_is_released_after_it_is_created():
    """A release before the end of `create` would leave a sandbox behind."""
    log: list[str] = []

    async def fails() -> None:
        raise OSError("no room")

    slow = VerlTool("slow", log, create=lambda: asyncio.sleep(0.1))
    [row] = held([0], [slow, VerlTool("full", log, create=fails)])
    assert row.finish_reason == "abort"
    assert row.error == "ToolError: full: create(): OSError: no room"
    assert log.index("slow created") < log.index("slow.release")
    assert "full released" in log


def test_method_of_a_tool_that_blocks_does_not_hold_the_loop_of_the_other_rows():
    both = threading.Barrier(2)

    class Blocks(VerlTool):
        def create(self, instance_id: str) -> Any:  # type: ignore[override]
            both.wait(timeout=20)  # for the other row's
            return instance_id, SimpleNamespace(text="", image=None, video=None)

    rows = held([0, 0], [Blocks("a", [])])
    assert [row.error for row in rows] == [None, None]


@pytest.mark.parametrize("returned", [(False, None, 0.0, {}), 3])
def test_interaction_that_returns_something_else_ends_its_row_with_what_it_was(returned):
    class Says:
        async def start_interaction(self, instance_id: str, **kwargs: Any) -> None: ...

        async def generate_response(self, *args: Any, **kwargs: Any) -> Any:
            return returned

    options = TurnOptions(interaction_kwargs={"name": "says"})
    [row] = held([0], [], options=options, interactions={"says": Says()})
    assert row.finish_reason == "abort"
    assert f"says: generate_response() returned {returned!r}; it must be" in row.error


def test_rows_of_one_prompt_do_not_share_what_their_tools_get():
    log: list[str] = []
    kwargs = {"a": {"create_kwargs": {"seen": []}}}
    held([0, 0], [VerlTool("a", log)], options=TurnOptions(tools_kwargs=kwargs))
    assert log.count("a created with {'seen': ['a']}") == 2
    assert kwargs == {"a": {"create_kwargs": {"seen": []}}}


def test_rows_that_failed_are_warned_of_and_rows_given_up_by_a_limit_are_not():
    async def fails() -> None:
        raise OSError("no room")

    rows = held([0, 0], [VerlTool("full", [], create=fails)])
    [said] = failures(rows)
    assert said.startswith("rows: 2 of 2 failed; the first is row 0: ") and "no room" in said
    *_, given_up = held([0, 400], [], over_sample_rate=0.5)
    assert given_up.finish_reason == "abort"
    assert given_up.transcript.limit == "over_sample_rate"
    assert "the other rows ended first" in given_up.error
    assert [*failures([given_up])] == []
