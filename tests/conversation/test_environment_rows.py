"""The environment of a row, without an engine: its thread, its columns and what it shows first.

tests/engine/answers/test_environments.py tests it on the real engine.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import pytest

from _inf.conversation.environments import Environment, environment_kinds
from _inf.conversation.episode import PAUSED, Episode
from _inf.conversation.recorder import Recorder
from _inf.conversation.tool_loop import ToolLoop
from _inf.errors import ConfigError, ToolError
from _inf.request.template import Template
from _inf.tools.execution import execute
from _inf.types import Prompt, Request, RequestOutput, SamplingParams, Tool, TurnOptions
from tests.support.conversation_rules import rules
from tests.support.scripts import until
from tests.support.tiny import IM_END, VOCABULARY, tiny_model

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}:"
LIMITS: dict[str, Any] = {"execute_kwargs": {}, "timeout": 5.0, "max_length": 99, "side": "left"}


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


async def unasked(request: Request) -> RequestOutput:
    raise AssertionError("no turn is asked for")


def environment(factory: Callable[[], Any], **columns: Any) -> Environment:
    """The environment of a row with one message."""
    [kind] = environment_kinds([TurnOptions(environment_factory=factory)], 20.0)
    prompt = Prompt([], messages=[{"role": "user", "content": "hi"}])
    params, options = SamplingParams(max_tokens=9), TurnOptions()
    episode = Episode(prompt, params, options, rules(None, None), Recorder(unasked, 0))
    return Environment(episode, kind, columns)


def tools(row: Environment) -> list[Tool]:
    return list(row.episode.rules.tools.values())


def test_methods_of_an_environment_run_on_one_thread_which_ends_with_its_row() -> None:
    async def play() -> tuple[set[str], float | None]:
        row = environment(Table)
        await row.start()
        [add] = tools(row)
        assert row.episode.messages == [{"role": "user", "content": "hiready"}]
        said = [await execute(add, {"x": x}, instance_id="", **LIMITS) for x in range(5)]
        assert [each.error for each in said] == [None] * 5
        reward = await row.rewards()
        await row.end()
        return {each.text for each in said}, reward["environment"]

    threads, reward = asyncio.run(asyncio.wait_for(play(), 60))
    [thread] = map(int, threads)
    assert reward == 5.0 and thread != threading.get_ident()
    assert until(lambda: not runs(thread), 20)


def runs(thread: int) -> bool:
    return any(each.ident == thread for each in threading.enumerate())


def test_environment_of_a_row_that_pause_ended_goes_on_with_one_row_on_its_thread() -> None:
    async def play(before: Any, *, paused: bool) -> tuple[int, Environment, dict[str, Any]]:
        row = environment(Table)
        row.episode.environment = before
        await row.start()
        [add] = tools(row)
        said = await execute(add, {"x": 1}, instance_id="", **LIMITS)
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
    assert thread is not None and runs(thread)
    del row
    gc.collect()
    assert until(lambda: not runs(thread), 20)


class Board:
    def reset(self, **row: Any) -> None: ...

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
        raise ValueError("nothing is drawn")


def test_static_and_class_methods_are_tools_and_properties_are_not_read() -> None:
    async def play() -> list[str]:
        row = environment(Board)
        await row.start()
        [count, name] = tools(row)
        said = [
            await execute(tool, arguments, instance_id="", **LIMITS)
            for tool, arguments in ((count, {"x": "abc"}), (name, {}))
        ]
        await row.end()
        return [each.text for each in said]

    assert asyncio.run(asyncio.wait_for(play(), 60)) == ["3", "Board"]


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
        [_, wait] = tools(row)
        for name in ("first", "second"):
            limits = {**LIMITS, "timeout": 0.2}
            done = await execute(wait, {"name": name}, instance_id="", **limits)
            assert done.error == "it did not answer within 0.2 seconds"
        for _ in range(5):  # turns of the loop, in which the second one's cancellation arrives
            await asyncio.sleep(0)
        release.set()
        done = await execute(wait, {"name": "third"}, instance_id="", **LIMITS)
        assert done.text == "True"

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


def entered(columns: dict[str, Any], content: str) -> tuple[RequestOutput, Any, list[Request]]:
    """Run a row whose environment shows this first; also its tokenizer, and the requests sent."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    tokenizer.chat_template = TEMPLATE
    end = tokenizer.convert_tokens_to_ids(IM_END)
    sent: list[Request] = []

    async def turn(request: Request) -> RequestOutput:
        sent.append(request)
        return RequestOutput([70, end], [-1.0, -1.0], [], "stop", end, 1, 2, 0, [(0, 0)])

    template = Template(tokenizer, eos_token_ids=[end])
    own = rules(template, tokenizer, vocabulary=VOCABULARY, eos=end)
    prompt = Prompt([5], messages=[{"role": "user", "content": content}])
    options = TurnOptions(environment_factory=Shows, environment_kwargs=columns)
    loop = ToolLoop(own, options, *environment_kinds([options], 20.0))
    row = loop.row(prompt, SamplingParams(max_tokens=9), Recorder(turn, 0))
    output = asyncio.run(asyncio.wait_for(row.run(), 60))
    return output, tokenizer, sent


@pytest.mark.parametrize(
    ("content", "shows"), [("hi", f"go{IM_END}user"), ("hi<|im", f"_end|>{IM_END}user")]
)
def test_what_reset_returns_cannot_end_the_turn_that_it_is_put_into(
    content: str, shows: str
) -> None:
    """Two rows of one prompt, which share no values of its columns."""
    columns = {"shows": [shows], "lock": threading.Lock()}
    for _ in range(2):
        row, tokenizer, [request] = entered(columns, content)
        assert row.error is None
        assert tokenizer.convert_tokens_to_ids(IM_END) not in request.token_ids
        assert row.prompt_token_ids == request.token_ids
        assert tokenizer.decode(request.token_ids).startswith("hi")
