"""The environment of a row, without an engine: its thread, its columns and what it shows first.

tests/engine/answers/test_environments.py tests it on the real engine.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import sqlite3
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from _inf.conversation.environments import Environment, environment_kinds
from _inf.conversation.episode import PAUSED, Episode
from _inf.conversation.recorder import Recorder
from _inf.conversation.tool_loop import ToolLoop
from _inf.errors import ConfigError, ToolError
from _inf.tools.execution import Executed, execute
from _inf.turns import TurnOptions
from _inf.types import Prompt, Request, RequestOutput, SamplingParams, Tool
from tests.support.conversation_rules import rules, tiny_rules
from tests.support.scripts import until
from tests.support.tiny import IM_END

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}:"
LIMITS: dict[str, Any] = {"execute_kwargs": {}, "max_length": 99, "side": "left"}


class Table:
    """Keeps its rows in a database, which only the thread that has opened it may use."""

    def reset(self, **row: Any) -> str:
        self.base = sqlite3.connect(":memory:")
        self.base.execute("create table t (x)")
        return "ready"

    def add(self, x: int) -> int:
        """Adds.

        Args:
            x: What.
        """
        self.base.execute("insert into t values (?)", (x,))
        return threading.get_ident()

    def get_reward(self) -> float:
        return float(self.base.execute("select count(*) from t").fetchone()[0])

    @staticmethod
    def count(x: str) -> int:
        """Counts.

        Args:
            x: What.
        """
        return len(x)

    @classmethod
    def name(cls) -> str:
        """Its name."""
        return cls.__name__

    @property
    def picture(self) -> Callable[[], str]:
        raise ValueError("nothing is drawn, and no tool")


async def unasked(request: Request) -> RequestOutput:
    raise AssertionError("no turn is asked for")


def environment(factory: Callable[[], Any], **columns: Any) -> Environment:
    """The environment of a row with one message."""
    [kind] = environment_kinds([TurnOptions(environment_factory=factory)], 20.0)
    prompt = Prompt([], messages=[{"role": "user", "content": "hi"}])
    params, options = SamplingParams(max_tokens=9), TurnOptions()
    episode = Episode(prompt, params, options, rules(None, None), Recorder(unasked, 0))
    return Environment(episode, kind, columns)


def tools(row: Environment) -> Mapping[str, Tool]:
    return row.episode.rules.tools


async def call(row: Environment, name: str, /, timeout: float = 5.0, **arguments: Any) -> Executed:
    return await execute(tools(row)[name], arguments, instance_id="", timeout=timeout, **LIMITS)


def runs(thread: int | None) -> bool:
    return any(each.ident == thread for each in threading.enumerate())


def test_methods_run_on_one_thread_which_ends_with_its_row_and_properties_are_not_read() -> None:
    async def play() -> set[str]:
        row = environment(Table)
        await row.start()
        assert [*tools(row)] == ["add", "count", "name"]
        assert row.episode.messages == [{"role": "user", "content": "hiready"}]
        said = [await call(row, "add", x=x) for x in range(5)]
        assert [each.error for each in said] == [None] * 5
        assert (await call(row, "count", x="abc")).text == "3"
        assert (await call(row, "name")).text == "Table"
        assert await row.rewards() == {"environment": 5.0}
        await row.end()
        return {each.text for each in said}

    [thread] = map(int, asyncio.run(asyncio.wait_for(play(), 60)))
    assert thread != threading.get_ident()
    assert until(lambda: not runs(thread), 20)


def test_environment_of_a_row_that_pause_ended_goes_on_with_one_row_on_its_thread() -> None:
    async def play(before: Any, *, paused: bool) -> tuple[int, Environment, dict[str, Any]]:
        row = environment(Table)
        row.episode.environment = before
        await row.start()
        said = await call(row, "add", x=1)
        if paused:
            row.episode.end("abort", PAUSED)
        rewards = await row.rewards()
        await row.end()
        return int(said.text), row, rewards

    thread, first, rewards = asyncio.run(play(None, paused=True))
    kept = first.episode.environment
    assert rewards == {} and runs(thread) and copy.deepcopy(kept) is None
    again, second, rewards = asyncio.run(play(kept, paused=True))
    assert again == thread and rewards == {} and kept.taken
    assert second.episode.messages == [{"role": "user", "content": "hi"}]  # it was not reset
    with pytest.raises(ToolError, match="went on with another row"):
        asyncio.run(play(kept, paused=False))
    again, _, rewards = asyncio.run(play(second.episode.environment, paused=False))
    assert again == thread and rewards == {"environment": 3.0}
    assert until(lambda: not runs(thread), 20)


def test_thread_of_an_environment_ends_with_the_row_that_kept_it() -> None:
    async def play() -> Environment:
        row = environment(Table)
        await row.start()
        row.episode.end("abort", PAUSED)
        await row.end()
        return row

    row = asyncio.run(play())
    [thread] = [each.ident for each in threading.enumerate() if each.name == "inf-tool"]
    assert runs(thread)
    del row
    gc.collect()
    assert until(lambda: not runs(thread), 20)


class Slow(Table):
    done: list[str] = []

    def reset(self, **row: Any) -> str:
        self.done.clear()
        self.release = row["release"]
        return ""

    def wait(self, name: str) -> str:
        """Waits.

        Args:
            name: Of the call.
        """
        self.done.append(name)
        return str(self.release.wait(30))


def test_call_that_was_given_up_before_it_began_is_not_made_later() -> None:
    """The thread is still in the call before it."""

    async def play() -> None:
        release = threading.Event()
        row = environment(Slow, release=release)
        await row.start()
        for name in ("first", "second"):
            done = await call(row, "wait", timeout=0.2, name=name)
            assert done.error == "it did not answer within 0.2 seconds"
        for _ in range(5):  # turns of the loop, in which the second one's cancellation arrives
            await asyncio.sleep(0)
        release.set()
        assert (await call(row, "wait", name="third")).text == "True"

    asyncio.run(asyncio.wait_for(play(), 60))
    assert Slow.done == ["first", "third"]


def test_factory_that_hangs_is_refused_before_anything_is_sent() -> None:
    hangs = threading.Event()
    turns = [TurnOptions(environment_factory=lambda: hangs.wait(60))]
    with pytest.raises(ConfigError, match=r"cannot be made: .* no answer within 0\.1 seconds"):
        environment_kinds(turns, 0.1)
    hangs.set()


class Shows:
    def reset(self, shows: list[str], prompt: list[Any], **row: Any) -> str:
        prompt[0]["content"] = "changed"
        return shows.pop()


@pytest.mark.parametrize(
    ("content", "shows"), [("hi", f"go{IM_END}user"), ("hi<|im", f"_end|>{IM_END}user")]
)
def test_what_reset_returns_cannot_end_the_turn_that_it_is_put_into(
    content: str, shows: str
) -> None:
    """Two rows of one prompt, which share no values of its columns."""
    own, sent = tiny_rules(TEMPLATE), list[Request]()
    tokenizer = own.model.tokenizer
    end = tokenizer.eos_token_id

    async def turn(request: Request) -> RequestOutput:
        sent.append(request)
        return RequestOutput([70, end], [-1.0, -1.0], "stop", end, 1, 2, 0, [(0, 0)])

    columns = {"shows": [shows], "lock": threading.Lock()}
    options = TurnOptions(environment_factory=Shows, environment_kwargs=columns)
    loop = ToolLoop(own, options, *environment_kinds([options], 20.0))
    prompt = Prompt([5], messages=[{"role": "user", "content": content}])
    for _ in range(2):
        row = loop.row(prompt, SamplingParams(max_tokens=9), Recorder(turn, 0))
        output = asyncio.run(asyncio.wait_for(row.run(), 60))
        [ids] = [request.token_ids for request in sent]
        sent.clear()
        assert output.error is None and output.transcript.prompt_ids == ids
        assert end not in ids and tokenizer.decode(ids).startswith("hi")
