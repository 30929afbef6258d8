"""A call that changes the engine is interrupted where it waits: afterwards the engine answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from inf import InferenceEngine
from tests.support.engines import started
from tests.support.interrupts import interrupted
from tests.support.prompts import as_ids, token_prompts
from tests.support.running import begun, running
from tests.support.scripts import until
from tests.support.tiny import tiny_model
from tests.support.trained import adapter, loaded

SECONDS = 30
MOST_WAITS = 60
PROMPTS = as_ids(token_prompts(1, longest=40, seed=47))
GREEDY = {"temperature": 0, "ignore_eos": True}
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras_per_batch": 3}
SGLANG = pytest.param("sglang", marks=pytest.mark.verl)
CHANGES = ["pause keep", "pause abort", "pause wait", "resume", "update", "update keep"]
CHANGES += ["recompute", "reset", "sleep", "load"]


@pytest.fixture(scope="module")
def served(request):
    rollout = {"name": "hf"}
    if request.param != "hf":
        rollout = {"enforce_eager": True, "free_cache_engine": True}
        rollout["engine_kwargs"] = {"sglang": LORA}
    with started(response_length=700, **rollout) as engine:
        yield engine


@pytest.fixture(scope="module")
def changes(served, tmp_path_factory):
    """Weights are those that the engine has, so that all answers stay the same."""
    weights = dict(loaded(tiny_model()).state_dict())
    lora = adapter(tiny_model(), tmp_path_factory.mktemp("lora") / "adapter", scale=0.4)
    update = partial(served.update_weights, weights)
    calls: list[Callable[[], object]] = [
        *(partial(served.pause, mode) for mode in ("keep", "abort", "wait")),
        *(served.resume, update, partial(update, running="keep")),
        *(partial(update, running="keep", recompute=True), served.reset_prefix_cache),
        *(served.sleep, partial(served.load_adapter, "one", lora)),
    ]
    return dict(zip(CHANGES, calls, strict=True))


@pytest.fixture(scope="module")
def expected(served):
    return served.generate(PROMPTS, max_tokens=20, **GREEDY).token_ids[0]


def assert_answers(engine: InferenceEngine, expected: list[int]) -> None:
    answer = begun(lambda: engine.generate(PROMPTS, max_tokens=20, **GREEDY).token_ids)
    assert answer.result(SECONDS) == [expected]


@pytest.mark.parametrize("held", [False, True], ids=["running", "held"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("served", ["hf", SGLANG], indirect=True)
def test_engine_answers_after_a_change_that_was_interrupted_at_any_await(
    served, changes, expected, change, held
):
    if change == "sleep" and "sleep" not in served.supports:
        pytest.skip("the backend cannot sleep")
    for place in range(1, MOST_WAITS):
        if held and "one" in served.adapters:  # frozen rows may use it
            served.unload_adapter("one")
        [row] = running(served, PROMPTS, 1, max_tokens=50, **GREEDY)
        if held:
            served.pause("keep")
        waited = interrupted(served, place, changes[change])
        if change == "sleep":
            served.wake_up()
        if change.startswith("pause") and waited and not held:
            assert until(lambda: not served.paused, SECONDS)
        elif served.paused:
            served.resume()
        assert_answers(served, expected)
        assert row.end(SECONDS).token_ids[:20] == expected[: len(row.token_ids)]
        assert row.finish_reason in ("length", "abort")
        if not waited:
            return
    pytest.fail(f"it waited {MOST_WAITS} times")


FAILS = {
    "freeze": ("pause keep", "update keep", "reset"),
    "thaw": ("pause wait", "resume", "update keep", "reset"),
}


@pytest.mark.parametrize(
    ("part", "change"), [(part, change) for part in FAILS for change in FAILS[part]]
)
@pytest.mark.parametrize("served", [SGLANG], indirect=True)
def test_rows_are_held_by_a_known_pause_or_not_at_all_where_a_change_fails(
    served, changes, expected, change, part, monkeypatch
):
    [row] = running(served, PROMPTS, 1, max_tokens=120, **GREEDY)
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
            changes[change]()
    assert served.paused == (part == "thaw")
    served.resume()
    assert_answers(served, expected)
    row.end(SECONDS)
