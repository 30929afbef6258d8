"""`sleep` and `wake_up`: in order, never twice, and honest on a machine without an accelerator."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from _inf.backends.verl import changes
from _inf.backends.verl.changes import PrefixCache
from inf import ConfigError, InferenceError
from tests.support.pages import blocks
from tests.support.refusals import refused
from tests.support.running import begun, running
from tests.support.schedulers import in_flight
from tests.support.scripts import GONE_SECONDS, until
from tests.support.tiny import tiny_model
from tests.support.trained import loaded

pytestmark = pytest.mark.verl

GREEDY = {"temperature": 0, "max_tokens": 8}


def test_engine_without_the_key_cannot_sleep(tiny):
    for verb in (tiny.sleep, tiny.wake_up):
        with refused(ConfigError, key="rollout.free_cache_engine"):
            verb()


def assert_asleep(*asks: Callable[[], object]) -> None:
    for ask in asks:
        with pytest.raises(InferenceError, match="asleep; wake_up"):
            ask()


def test_cpu_engine_sleeps_frees_nothing_says_so_and_wakes_the_same(mortal):
    before = mortal.generate("Hi", **GREEDY)
    mortal.wake_up()  # it was not asleep
    long = begun(lambda: mortal.generate("Hi", max_tokens=2000, ignore_eos=True))
    assert until(lambda: in_flight(mortal), 30)
    slept = mortal.sleep()
    assert not in_flight(mortal)
    # A call in flight finishes first.
    assert long.result(30).metadata[0]["completion_tokens"] == 2000
    assert slept.freed_bytes == 0 and "on a CPU" in slept.note
    assert mortal.sleep().freed_bytes == 0
    assert_asleep(lambda: list(mortal.stream("Hi")), lambda: mortal.get_logprobs("Hi", "you"))
    mortal.wake_up()
    [program] = [each for each in blocks("docs/training.md", "python") if "engine.sleep()" in each]
    exec(program, {"InferenceEngine": lambda **settings: mortal})
    after = mortal.generate("Hi", **GREEDY)
    assert after.token_ids == before.token_ids
    assert after.metadata[0]["weight_version"] == before.metadata[0]["weight_version"]


@pytest.mark.parametrize("held", [False, True], ids=["", "paused"])
def test_what_an_engine_refuses_in_its_sleep_leaves_nothing_held_up(mortal, held):
    before, weights = mortal.generate("Hi", **GREEDY).token_ids, loaded(tiny_model())
    mortal.sleep()
    if held:
        mortal.pause("keep")
    else:
        assert_asleep(lambda: mortal.update_weights(weights))
    assert_asleep(lambda: mortal.update_weights(weights, running="keep"))
    mortal.reset_prefix_cache()
    assert mortal.paused == held
    mortal.resume()  # no row is there that would need the memory
    assert not mortal.paused
    assert_asleep(lambda: mortal.generate("Hi", timeout=30, **GREEDY))
    mortal.wake_up()
    assert mortal.generate("Hi", timeout=30, **GREEDY).token_ids == before


def test_rows_that_sleep_stay_held_until_the_engine_is_awake(mortal):
    asked = {"temperature": 0, "max_tokens": 400, "ignore_eos": True}
    expected = mortal.generate("Hi", **asked).token_ids
    [row] = running(mortal, ["Hi"], 5, **asked)
    mortal.pause("keep")
    mortal.sleep()
    assert_asleep(mortal.resume, mortal.pause, lambda: mortal.pause("abort"))
    assert mortal.paused and not row.ended
    mortal.wake_up()
    mortal.resume()
    assert [row.end(60).token_ids] == expected


def test_engine_killed_in_its_sleep_is_dead_at_once_and_leaves_its_log_to_the_user_alone(mortal):
    host = mortal.rollout.host
    mortal.sleep()
    os.kill(host.children[0].pid, signal.SIGKILL)
    # Also where nobody waits for an answer.
    assert until(lambda: host.death is not None, GONE_SECONDS)
    assert stat.S_IMODE(host.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(host.log.stat().st_mode) == 0o600
    mortal.shutdown()
    assert list(host.folder.iterdir()) == [host.log]


class Accelerated:
    """A rollout on an accelerator of which 6 GB come free, and what is done to it in turn."""

    on_cpu = False

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.config = self._engine = self.tokenizer_manager = self
        self.free_cache_engine = True
        self.host = SimpleNamespace(lock=SimpleNamespace(frozen=False))
        self.refusal: str | None = None
        self.prefix_cache = PrefixCache(self.flush_cache)

    async def flush_cache(self) -> Any:
        """Idle when it is asked a second time."""
        self.log.append("flush")
        return SimpleNamespace(success=len(self.log) == 2)

    async def release(self) -> None:
        assert self.refusal == changes.ASLEEP
        self.log.append("release")

    async def resume(self, tags: list[str]) -> None:
        self.log.append(tags)

    def free_bytes(self) -> int:
        return 7_000_000_000 if self.log[-1] == "release" else 1_000_000_000


def test_accelerators_memory_is_released_once_counted_and_resumed_once(monkeypatch):
    rollout = Accelerated()
    monkeypatch.setattr(changes, "_free_bytes", rollout.free_bytes)

    async def twice_each() -> list[int]:
        freed = [(await changes.sleep(rollout)).freed_bytes for _ in range(2)]
        for _ in range(2):
            await changes.wake_up(rollout)
        return freed

    assert asyncio.run(twice_each()) == [6_000_000_000, 0]
    assert rollout.log == ["flush", "flush", "release", ["weights", "kv_cache"]]
    assert rollout.refusal is None
