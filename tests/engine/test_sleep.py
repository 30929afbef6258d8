"""`sleep` and `wake_up`: in order, never twice, and honest on a machine without an accelerator."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripts import in_flight, until
from tiny import tiny_model

from _inf.backends.verl import memory
from inf import ConfigError, InferenceEngine, InferenceError

SETTINGS = {"dtype": "float32", "prompt_length": 64, "response_length": 64, "max_model_len": 1500}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}


def test_engine_without_the_key_cannot_sleep(tiny: InferenceEngine) -> None:
    for verb in (tiny.sleep, tiny.wake_up):
        with pytest.raises(ConfigError, match="^rollout.free_cache_engine: "):
            verb()


def test_cpu_engine_sleeps_frees_nothing_says_so_and_wakes_the_same() -> None:
    settings = SETTINGS | {"free_cache_engine": True}
    with InferenceEngine(model_path=str(tiny_model()), rollout=settings) as engine:
        before = engine.generate("Hi", **GREEDY)
        engine.wake_up()  # it was not asleep
        done: list[Any] = []
        long = threading.Thread(
            target=lambda: done.append(engine.generate("Hi", max_tokens=1200, ignore_eos=True))
        )
        long.start()
        assert until(lambda: in_flight(engine), 30)
        slept = engine.sleep()
        assert not in_flight(engine)
        long.join(30)
        assert done[0].metadata[0]["completion_tokens"] == 1200  # a call in flight finishes first
        assert slept.freed_bytes == 0 and "on a CPU" in slept.note
        assert engine.sleep().freed_bytes == 0
        for ask in (
            lambda: engine.generate("Hi"),
            lambda: list(engine.stream("Hi")),
            lambda: engine.get_logprobs("Hi", "you"),
            lambda: engine.update_weights(engine_weights(engine)),
        ):
            with pytest.raises(InferenceError, match="asleep; wake_up"):
                ask()
        engine.wake_up()
        page = (Path(__file__).parents[2] / "docs/training.md").read_text()
        program = page.split("```python\n")[2].partition("```")[0]
        exec(program, {"InferenceEngine": lambda **settings: engine})
        after = engine.generate("Hi", **GREEDY)
        assert after.token_ids == before.token_ids
        assert after.metadata[0]["weight_version"] == 0


def engine_weights(engine: InferenceEngine) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(engine.model_config.local_path)


class Accelerated:
    """A rollout on an accelerator of which 6 GB come free, and what is done to it in turn."""

    on_cpu = False

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.config = self._engine = self.tokenizer_manager = self
        self.free_cache_engine = True
        self.refusal: str | None = None

    async def flush_cache(self) -> Any:
        """Idle when it is asked a second time."""
        self.log.append("flush")
        return SimpleNamespace(success=len(self.log) == 2)

    async def release(self) -> None:
        assert self.refusal == memory.ASLEEP
        self.log.append("release")

    async def resume(self, tags: list[str]) -> None:
        self.log.append(tags)

    def free_bytes(self) -> int:
        return 7_000_000_000 if self.log[-1] == "release" else 1_000_000_000


def test_accelerators_memory_is_released_once_counted_and_resumed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rollout = Accelerated()
    monkeypatch.setattr(memory, "_free_bytes", rollout.free_bytes)

    async def twice_each() -> list[int]:
        freed = [(await memory.sleep(rollout)).freed_bytes for _ in range(2)]
        for _ in range(2):
            await memory.wake_up(rollout)
        return freed

    assert asyncio.run(twice_each()) == [6_000_000_000, 0]
    assert rollout.log == ["flush", "flush", "release", ["weights", "kv_cache"]]
    assert rollout.refusal is None
