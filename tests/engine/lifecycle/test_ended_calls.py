"""Every call whose rows `pause("abort")` or `pause("wait")` ends has returned before `resume()`: a
trainer collects the rows, sends new weights, and only then resumes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import wait
from typing import Any

import pytest

from inf import InferenceEngine, InferenceError
from tests.support.engines import LONGER, started
from tests.support.pages import blocks
from tests.support.prompts import as_ids, token_prompts
from tests.support.running import begun, calculator_until_paused, under_way
from tests.support.tool_calling import TOOL_MODEL, answer, calculator, question
from tests.support.trained import loaded

SECONDS = 60
PROMPTS = as_ids(token_prompts(3, longest=40, seed=47))
RESPONSES = token_prompts(3, longest=400, shortest=300, seed=5)
LONG = {"max_tokens": 150, "ignore_eos": True, "temperature": 1.0, "seed": 7}
VERLS = [pytest.param(name, marks=pytest.mark.verl) for name in ("serial", "overlapped")]
engines = pytest.mark.parametrize("served", ["hf", *VERLS], indirect=True)


def with_tools(engine: InferenceEngine) -> Any:
    tool, _ = calculator_until_paused(engine)
    asked = [question("12 * 7"), question("3 + 4")]
    return engine.generate(asked, tools=[tool], max_tokens=400, temperature=0)


CALLS = {
    "generate": lambda engine: engine.generate(PROMPTS, **LONG),
    "samples": lambda engine: engine.generate(PROMPTS, n=4, **LONG),
    "prompt_logprobs": lambda engine: engine.generate(PROMPTS, n=8, prompt_logprobs=2, **LONG),
    "stream": lambda engine: [*engine.stream(PROMPTS[0], **LONG)],
    "tools": with_tools,
    "score": lambda engine: engine.score(PROMPTS * 4, RESPONSES * 4, top_logprobs=2),
    "get_logits": lambda engine: engine.get_logits(PROMPTS * 2, RESPONSES * 2),
    "rollout_batch": lambda engine: engine.rollout_batch(PROMPTS, n=4, **LONG),
}
LOGITS, BATCHES = "get_logits", ("rollout_batch",)  # which hf alone has; which need verl
OVERLAPPED = ("generate", "stream", "tools", "score")  # steps of each kind
# Keywords whose fields a row has that was ended before it began.
FIELDS = [
    {"prompt_logprobs": True},
    {"prompt_logprobs": 2},
    {"logprobs": 2},
    {"logprob_token_ids": [5, 6]},
    {"sampling_mask": True, "top_k": 5},
    {"regex": "[ab]+"},
    {"stop": ["a"], "ignore_eos": False},
    {"bad_words": ["a"]},
    {"on_error": "row", "prompt_logprobs": 2},
    {"n": 3, "logprobs": 1, "prompt_logprobs": 1},
]


@pytest.fixture(scope="module")
def served(request):
    schedule = {"sglang": {"disable_overlap_schedule": request.param == "serial"}}
    rollout = {"enforce_eager": True, "engine_kwargs": schedule}
    rollout = {"name": "hf"} if request.param == "hf" else rollout
    with started(TOOL_MODEL, **LONGER, **rollout) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _goes_on(served):
    yield
    served.resume()


@pytest.mark.parametrize(
    ("served", "kind"),
    [
        *(pytest.param("hf", kind, marks=[pytest.mark.verl] * (kind in BATCHES)) for kind in CALLS),
        *(pytest.param("serial", kind, marks=pytest.mark.verl) for kind in CALLS if kind != LOGITS),
        *(pytest.param("overlapped", kind, marks=pytest.mark.verl) for kind in OVERLAPPED),
    ],
    indirect=["served"],
)
def test_call_has_returned_before_resume(served, kind):
    expected = CALLS[kind](served) if kind in ("generate", "samples", "score") else None
    for mode, seconds in [("abort", 0.0), ("abort", 0.1), ("wait", 0.0)]:
        call = under_way(served, lambda: CALLS[kind](served))
        wait([call], seconds)
        served.pause(mode)
        rows = call.result(SECONDS)
        assert served.paused
        served.resume()
        if kind == "score":
            for row, other in zip(rows, expected, strict=True):
                assert row.logprobs == pytest.approx(other.logprobs, abs=1e-3)
                assert len(row.top_logprobs) == len(row.token_ids)
        elif expected:
            for row, other in zip(rows, expected, strict=True):
                ids, whole = row.token_ids, row.token_ids == other.token_ids
                assert ids == other.token_ids[: len(ids)]
                assert row.logprobs == pytest.approx(other.logprobs[: len(ids)], abs=1e-3)
                assert row.finish_reason == ("length" if whole else "abort")
                assert whole or mode == "abort"
        elif kind == "prompt_logprobs":
            for row in rows:
                assert row.prompt_logprobs is not None or row.finish_reason == "abort"


@pytest.mark.parametrize("asked", FIELDS, ids=str)
@pytest.mark.parametrize("served", ["hf", *VERLS[:1]], indirect=True)
def test_row_that_never_began_has_its_fields_without_values(served, asked):
    with served._backend.ending():
        rows = served.generate(PROMPTS, **{**LONG, **asked})
    for row in rows:
        assert (row.finish_reason, row.token_ids, row.logprobs) == ("abort", [], [])
        assert row.error is None and row.completion == "" and row.prompt_tokens
        assert not (row.top_logprobs or row.sampling_mask or row.sampling_logprobs)
        for values in (row.prompt_logprobs, row.top_prompt_logprobs):  # computed on `hf`
            assert values is None or len(values) == len(row.prompt_token_ids)


@pytest.mark.parametrize("served", ["hf", *VERLS[:1]], indirect=True)
def test_rows_of_ended_calls_are_not_lost_to_a_timeout_that_passes_during_the_pause(served):
    call = under_way(served, lambda: served.generate(PROMPTS, timeout=1, **LONG))
    served.pause("abort")
    time.sleep(1)
    assert len(call.result(SECONDS)) == len(PROMPTS)


@pytest.mark.parametrize("fails", [False, True], ids=["whole", "half way"])
@pytest.mark.parametrize("served", VERLS[:1], indirect=True)
def test_turn_that_begins_while_weights_are_sent_waits_for_all_of_them(served, monkeypatch, fails):
    model = loaded(TOOL_MODEL)
    engine, entered, sending = served.rollout.engine(), threading.Event(), threading.Event()
    upstream = engine.update_weights_from_tensor

    async def slow(request: Any) -> Any:
        sending.set()
        await asyncio.sleep(0.5)
        if fails:
            raise OSError("no shared memory left")
        return await upstream(request)

    def result(expression: str) -> str:
        entered.set()
        assert sending.wait(SECONDS)
        return "84"

    asked = {"tools": [calculator(result)], "max_tokens": 200, "temperature": 0}
    call = begun(lambda: served.generate(question("12 * 7"), **asked))
    assert entered.wait(SECONDS)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "update_weights_from_tensor", slow)
        with pytest.raises(InferenceError, match="half") if fails else contextlib.nullcontext():
            served.update_weights(model, running="keep")
    if fails:
        with pytest.raises(InferenceError, match="halfway.*call update_weights"):
            call.result(SECONDS)
        served.update_weights(model)
        return
    [row] = call.result(SECONDS)
    assert row.completion == answer("84")
    [_, (version, first)] = row.weight_versions
    assert version == served.weight_version and row.response[1][first - 1] == 0


@engines
def test_program_of_the_docs_collects_the_rows_updates_and_goes_on(served):
    pages = blocks("docs/training.md", "python")
    [program] = [each for each in pages if "engine.generate(cut" in each]
    longer = LONG | {"max_tokens": 300}
    scope = {"engine": served, "prompts": PROMPTS, "sampling": longer}
    scope["model"] = loaded(TOOL_MODEL)
    expected, version = served.generate(PROMPTS, **longer), served.weight_version
    ran = under_way(served, lambda: exec(program, scope))
    served.pause("abort")
    ran.result(SECONDS)
    assert served.weight_version == version + 1 and not served.paused
    assert len(scope["cut"]) == len(PROMPTS)  # else the machine was quicker than the pause
    assert scope["whole"].token_ids == expected.token_ids
    assert [row.finish_reason for row in scope["whole"]] == ["length"] * len(PROMPTS)
