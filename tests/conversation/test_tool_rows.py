"""Rows whose verl tools and interactions misbehave, with a model that answers in one turn."""

from __future__ import annotations

import asyncio
import itertools
import threading
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from _inf.config import load_config
from _inf.types import Tool
from tests.support.tool_calling import GREETING, schema


class VerlTool:
    """Logs its calls; a method named in `misbehave` runs that function first."""

    def __init__(self, name: str, log: list[str], **misbehave: Any) -> None:
        self.name = name
        self._log, self._misbehave = log, misbehave

    async def _done(self, method: str) -> None:
        self._log.append(f"{self.name}.{method}")
        if method in self._misbehave:
            await self._misbehave[method]()

    async def create(self, instance_id: str, **kwargs: Any) -> tuple[str, Any]:
        await self._done("create")
        kwargs.get("seen", []).append(self.name)
        self._log.append(f"{self.name} created with {kwargs}" if kwargs else f"{self.name} created")
        return instance_id, SimpleNamespace(text=None, image=None, video=None)

    async def calc_reward(self, instance_id: str) -> float:
        await self._done("calc_reward")
        return 1.0

    async def release(self, instance_id: str) -> None:
        await self._done("release")
        self._log.append(f"{self.name} released")


@pytest.fixture
def held(caller, monkeypatch):
    """Runs one row for each number in `lengths`, which is how many tokens it has."""
    engine = caller

    def run(
        lengths: list[int], *tools: VerlTool, over_sample_rate: float = 0.0, **more: Any
    ) -> Any:
        keys = {"rollout": {"over_sample_rate": over_sample_rate}}
        monkeypatch.setattr(engine, "config", load_config(engine.config.to_dict(), keys))
        of_call = [Tool(tool.name, schema(tool.name), verl=tool) for tool in tools]
        how = {"max_tokens": lengths, "ignore_eos": True, "timeout": 60, **more}
        return engine.generate([GREETING] * len(lengths), tools=of_call, **how).rows

    return run


@pytest.mark.parametrize("method", ["create", "calc_reward", "release"])
def test_tool_that_is_cancelled_from_within_ends_its_own_row_alone(held, method):
    async def cancelled() -> None:
        raise asyncio.CancelledError("from inside the tool")

    for row in held([1, 1], VerlTool("a", [], **{method: cancelled})):
        assert "it was cancelled" in row.error
        assert row.finish_reason == ("abort" if method == "create" else "length")


def test_all_tools_of_a_row_are_released_though_it_is_given_up_meanwhile(held):
    """The first row ends the call while the second one's tools are being released."""
    log = []
    second_begins = asyncio.Event()
    begun = itertools.count(1)

    async def release() -> None:
        if next(begun) == 1:
            await asyncio.wait_for(second_begins.wait(), 30)
        else:
            second_begins.set()
            await asyncio.sleep(0.5)

    slow = VerlTool("slow", log, release=release)
    rows = held([1, 30, 500], slow, VerlTool("quick", log), over_sample_rate=0.34)
    assert sorted(log).count("slow released") == sorted(log).count("quick released") == 3
    assert [row.finish_reason for row in rows] == ["length", "length", "abort"]
    assert rows[2].metadata["limit"] == "over_sample_rate"
    assert rows[1].metadata["tool_rewards"] == {"slow": 1.0, "quick": 1.0}


def test_a_share_that_is_given_up_leaves_at_least_one_row(held):
    """As in verl: of two rows, `int(2 * (1 - 0.7))` are enough, which is none."""
    with warnings.catch_warnings():  # a row that a limit ends has not failed
        warnings.simplefilter("error")
        found = held([1, 400], VerlTool("a", []), over_sample_rate=0.7)
    assert [row.finish_reason for row in found] == ["length", "abort"]
    assert all("the other rows ended first" in row.error for row in found[1:])


def test_tool_that_is_created_beside_one_that_fails_is_released_after_it_is_created(held):
    """A release before the end of `create` would leave a sandbox behind."""
    log = []

    async def fails() -> None:
        raise OSError("no room")

    slow = VerlTool("slow", log, create=lambda: asyncio.sleep(0.1))
    with pytest.warns(UserWarning, match="rows: 1 of 1 failed; the first is row 0: .*no room"):
        [row] = held([1], slow, VerlTool("full", log, create=fails))
    assert row.finish_reason == "abort"
    assert row.error == "ToolError: full: create(): OSError: no room"
    assert log.index("slow created") < log.index("slow.release")
    assert "full released" in log


def test_method_of_a_tool_that_blocks_does_not_hold_the_loop_of_the_other_rows(held):
    both = threading.Barrier(2)

    class Blocks(VerlTool):
        def create(self, instance_id: str) -> Any:
            both.wait(timeout=20)  # for the other row's
            return instance_id, SimpleNamespace(text="", image=None, video=None)

    assert [row.error for row in held([1, 1], Blocks("a", []))] == [None, None]


@pytest.mark.parametrize("returned", [(False, None, 0.0, {}), 3])
def test_interaction_that_returns_something_else_ends_its_row_with_what_it_was(
    held, caller, monkeypatch, returned
):
    class Says:
        async def start_interaction(self, instance_id: str, **kwargs: Any) -> None: ...

        async def generate_response(self, *args: Any, **kwargs: Any) -> Any:
            return returned

    monkeypatch.setattr(caller._configured, "interactions", {"says": Says()})
    [row] = held([50], interaction_kwargs={"name": "says"}, ignore_eos=False)
    assert row.finish_reason == "abort"
    assert f"says: generate_response() returned {returned!r}; it must be" in row.error


def test_rows_of_one_prompt_do_not_share_what_their_tools_get(held):
    log = []
    kwargs = {"a": {"create_kwargs": {"seen": []}}}
    held([1], VerlTool("a", log), tools_kwargs=kwargs, n=2, temperature=1.0)
    assert log.count("a created with {'seen': ['a']}") == 2
    assert kwargs == {"a": {"create_kwargs": {"seen": []}}}
