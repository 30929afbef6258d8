"""A call that changes the engine is interrupted where it waits: afterwards the engine answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inf import InferenceEngine
from tests.support.interrupts import interrupted
from tests.support.prompts import as_ids, token_prompts
from tests.support.running import begun, running
from tests.support.scripts import until
from tests.support.tiny import tiny_model
from tests.support.trained import adapter, loaded

SECONDS = 30
MOST_WAITS = 60
[PROMPT] = as_ids(token_prompts(1, longest=40, seed=47))
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 20}
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras_per_batch": 3}
ENGINES = ["hf", pytest.param("sglang", marks=pytest.mark.verl)]


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[InferenceEngine]:
    rollout: dict[str, Any] = {"dtype": "float32", "prompt_length": 256, "response_length": 700}
    if request.param == "hf":
        rollout["name"] = "hf"
    else:
        rollout |= {"enforce_eager": True, "free_cache_engine": True}
        rollout["engine_kwargs"] = {"sglang": LORA}
    with InferenceEngine(model_path=str(tiny_model()), rollout=rollout) as engine:
        yield engine


@pytest.fixture(scope="module")
def weights() -> dict[str, Any]:
    """Those that the engine has, so that all answers stay the same."""
    return dict(loaded(tiny_model()).state_dict())


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adapter(tiny_model(), tmp_path_factory.mktemp("lora") / "adapter", scale=0.4)


CHANGES: dict[str, Callable[[InferenceEngine, dict[str, Any], Path], object]] = {
    "pause keep": lambda engine, weights, lora: engine.pause("keep"),
    "pause abort": lambda engine, weights, lora: engine.pause("abort"),
    "pause wait": lambda engine, weights, lora: engine.pause("wait"),
    "resume": lambda engine, weights, lora: engine.resume(),
    "update": lambda engine, weights, lora: engine.update_weights(weights),
    "update keep": lambda engine, weights, lora: engine.update_weights(weights, running="keep"),
    "recompute": lambda engine, weights, lora: engine.update_weights(
        weights, running="keep", recompute=True
    ),
    "reset": lambda engine, weights, lora: engine.reset_prefix_cache(),
    "sleep": lambda engine, weights, lora: engine.sleep(),
    "load": lambda engine, weights, lora: engine.load_adapter("one", lora),
}


@pytest.mark.parametrize("held", [False, True], ids=["running", "held"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("served", ENGINES, indirect=True)
def test_engine_answers_after_a_change_that_was_interrupted_at_any_await(
    served: InferenceEngine, weights: dict[str, Any], lora: Path, change: str, held: bool
) -> None:
    if change == "sleep" and "sleep" not in served.supports:
        pytest.skip("the backend cannot sleep")
    expected = served.generate(PROMPT, **GREEDY).token_ids[0]
    for place in range(1, MOST_WAITS):
        if held and "one" in served.adapters:  # frozen rows may use it
            served.unload_adapter("one")
        [row] = running(served, [PROMPT], 1, **{**GREEDY, "max_tokens": 120})
        if held:
            served.pause("keep")
        waited = interrupted(served, place, lambda: CHANGES[change](served, weights, lora))
        if change == "sleep":
            served.wake_up()
        if change.startswith("pause") and waited and not held:
            assert until(lambda: not served.paused, SECONDS)
        elif served.paused:
            served.resume()
        answer = begun(lambda: served.generate(PROMPT, **GREEDY).token_ids[0])
        assert answer.result(SECONDS) == expected
        assert row.end(SECONDS).token_ids[:20] == expected[: len(row.token_ids)]
        assert row.finish_reason in ("length", "abort")
        if not waited:
            return
    pytest.fail(f"it waited {MOST_WAITS} times")


@pytest.mark.parametrize(
    ("part", "change"),
    [
        *(("freeze", change) for change in ("pause keep", "update keep", "reset")),
        *(("thaw", change) for change in ("pause wait", "resume", "update keep", "reset")),
    ],
)
@pytest.mark.parametrize("served", [pytest.param("sglang", marks=pytest.mark.verl)], indirect=True)
def test_rows_are_held_by_a_known_pause_or_not_at_all_where_a_change_fails(
    served: InferenceEngine,
    weights: dict[str, Any],
    lora: Path,
    change: str,
    part: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = served.generate(PROMPT, **GREEDY).token_ids[0]
    [row] = running(served, [PROMPT], 1, **{**GREEDY, "max_tokens": 120})
    if change in ("pause wait", "resume"):
        served.pause("keep")
    freeze = served._backend.freeze

    async def fails() -> None:
        if part == "freeze":
            await freeze()
        raise OSError("no more buffers")

    with monkeypatch.context() as patch:
        patch.setattr(served._backend, part, fails)
        with pytest.raises(OSError, match="no more buffers"):
            CHANGES[change](served, weights, lora)
    assert served.paused == (part == "thaw")
    served.resume()
    answer = begun(lambda: served.generate(PROMPT, **GREEDY).token_ids[0])
    assert answer.result(SECONDS) == expected
    row.end(SECONDS)
