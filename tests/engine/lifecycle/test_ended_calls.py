"""Every call whose rows `pause("abort")` or `pause("wait")` ends has returned before `resume()`: a
trainer collects the rows, sends new weights, and only then resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

import pytest

from _inf.runtime.extras import has_verl
from inf import InferenceEngine
from tests.support.pages import blocks
from tests.support.prompts import as_ids, token_prompts
from tests.support.running import begun, calculator_until_paused, calls_run
from tests.support.scripts import until
from tests.support.tool_calling import TOOL_MODEL, question

SECONDS = 20
PROMPTS = as_ids(token_prompts(4, longest=40, seed=47))
RESPONSES = token_prompts(4, longest=400, shortest=300, seed=5)
LONG: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True, "temperature": 1.0, "seed": 7}
ENGINES = ["hf", *(pytest.param(name, marks=pytest.mark.verl) for name in ("serial", "overlapped"))]


def with_tools(engine: InferenceEngine) -> Any:
    calculator, _ = calculator_until_paused(engine)
    asked = [question("12 * 7"), question("3 + 4")]
    return engine.generate(asked, tools=[calculator], max_tokens=400, temperature=0)


CALLS: dict[str, Callable[[InferenceEngine], Any]] = {
    "generate": lambda engine: engine.generate(PROMPTS, **LONG),
    "generate with a timeout": lambda engine: engine.generate(PROMPTS, timeout=30, **LONG),
    "samples": lambda engine: engine.generate(PROMPTS, n=4, **LONG),
    "prompt_logprobs": lambda engine: engine.generate(PROMPTS, n=4, prompt_logprobs=2, **LONG),
    "stream": lambda engine: [*engine.stream(PROMPTS[0], **LONG)],
    "tools": with_tools,
    "score": lambda engine: engine.score(PROMPTS * 40, RESPONSES * 40),
    "get_logits": lambda engine: engine.get_logits(PROMPTS * 10, RESPONSES * 10),
    "rollout_batch": lambda engine: engine.rollout_batch(PROMPTS, n=4, **LONG),
}


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[InferenceEngine]:
    rollout: dict[str, Any] = {"dtype": "float32", "prompt_length": 1024, "response_length": 512}
    if request.param == "hf":
        rollout["name"] = "hf"
    else:
        serial = request.param == "serial"
        rollout["enforce_eager"] = True
        rollout["engine_kwargs"] = {"sglang": {"disable_overlap_schedule": serial}}
    with InferenceEngine(model_path=str(TOOL_MODEL), rollout=rollout) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _goes_on(served: InferenceEngine) -> Iterator[None]:
    yield
    served.resume()


def runs(engine: InferenceEngine, ask: Callable[[], Any]) -> Future[Any]:
    """The result of a call that has begun: one that comes later waits for `resume`."""
    call = begun(ask)
    assert until(lambda: calls_run(engine) or call.done(), SECONDS)
    return call


@pytest.mark.parametrize("mode", ["abort", "wait"])
@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("served", ENGINES, indirect=True)
def test_call_has_returned_before_resume(served: InferenceEngine, kind: str, mode: str) -> None:
    if kind == "get_logits" and "logits" not in served.supports:
        pytest.skip("the backend has no get_logits()")
    if kind == "rollout_batch" and not has_verl():
        pytest.skip("rollout_batch() needs verl")
    expected = served.generate(PROMPTS, **LONG)
    for seconds in (0.0, 0.1, 0.2):
        call = runs(served, lambda: CALLS[kind](served))
        wait([call], seconds)
        served.pause(mode)
        rows = call.result(SECONDS)
        assert served.paused
        served.resume()
        if kind.startswith("generate"):
            for row, other in zip(rows, expected, strict=True):
                assert row.token_ids == other.token_ids[: len(row.token_ids)]
                whole = row.token_ids == other.token_ids
                assert row.finish_reason == ("length" if whole else "abort")
                assert whole or mode == "abort"
    assert served.generate(PROMPTS, **LONG).token_ids == expected.token_ids


@pytest.mark.parametrize("served", ENGINES, indirect=True)
def test_rows_of_ended_calls_are_not_lost_to_a_timeout_that_passes_during_the_pause(
    served: InferenceEngine,
) -> None:
    call = runs(served, lambda: served.generate(PROMPTS, timeout=3, **LONG))
    served.pause("abort")
    time.sleep(3)
    assert len(call.result(SECONDS)) == len(PROMPTS)


@pytest.mark.parametrize("served", ENGINES, indirect=True)
def test_program_of_the_docs_collects_the_rows_updates_and_goes_on(
    served: InferenceEngine,
) -> None:
    from transformers import AutoModelForCausalLM

    pages = blocks("docs/training.md", "python")
    [program] = [each for each in pages if "engine.generate(cut" in each]
    model = AutoModelForCausalLM.from_pretrained(TOOL_MODEL)
    scope = {"engine": served, "prompts": PROMPTS, "sampling": LONG, "model": model}
    expected, version = served.generate(PROMPTS, **LONG), served.weight_version
    ran = runs(served, lambda: exec(program, scope))
    served.pause("abort")
    ran.result(SECONDS)
    assert served.weight_version == version + 1 and not served.paused
    cut, whole = scope["cut"], scope["whole"]
    assert len(cut) == len(PROMPTS)  # else the machine was quicker than the pause
    assert whole.token_ids == expected.token_ids
    assert [row.finish_reason for row in whole] == ["length"] * len(PROMPTS)
