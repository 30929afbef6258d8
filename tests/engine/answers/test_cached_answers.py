"""`generation_cache` on a real engine: an answer from memory is the computed one."""

from __future__ import annotations

from inf import InferenceEngine
from tests.support.engines import LONGER, engine_fixture, started
from tests.support.prompts import as_ids, token_prompts
from tests.support.tiny import tiny_model
from tests.support.tool_calling import TOOL_MODEL, calculator, question
from tests.support.trained import loaded

SETTINGS = {"name": "hf", "config": {"generation_cache": 50}}
IDS = as_ids(token_prompts(4, 60, seed=61))
GREEDY = {"temperature": 0, "max_tokens": 12, "logprobs": 2}


def hits(engine: InferenceEngine) -> float:
    return engine.stats()["generation_cache_hits"]


hf = engine_fixture(**SETTINGS)


def test_new_weights_restart_and_clear_cache_empty_it(hf):
    def asked_again() -> float:
        """How many of the first answers come from memory."""
        before = hits(hf)
        assert hf.generate(IDS, **GREEDY).to_dict() == first
        return hits(hf) - before

    first = hf.generate(IDS, **GREEDY).to_dict()
    assert asked_again() == len(IDS)
    hf.clear_cache()
    assert asked_again() == 0
    hf.update_weights(loaded(tiny_model(seed=5)))
    before, updated = hits(hf), hf.generate(IDS, **GREEDY)
    assert updated.token_ids != [row["token_ids"] for row in first] and hits(hf) == before
    assert {row.weight_version for row in updated} == {1}
    hf.restart()
    assert [asked_again(), asked_again()] == [0, len(IDS)]


def test_turns_of_a_conversation_are_kept_and_tools_run_each_time():
    runs: list[str] = []

    def result(expression: str) -> str:
        runs.append(expression)
        return str(eval(expression, {"__builtins__": {}}))

    with started(TOOL_MODEL, **LONGER, **SETTINGS) as engine:
        asked = {"tools": [calculator(result)], "temperature": 0}
        prompts = [question("12 * 7"), question("30 - 41")]
        first = engine.generate(prompts, **asked)
        assert hits(engine) == 0 and len(runs) == 2
        again = engine.generate(prompts, **asked)
        assert hits(engine) == 4 and len(runs) == 4
        assert again.token_ids == first.token_ids and again.logprobs == first.logprobs
        assert again.completions == ["The answer is 84.", "The answer is -11."]
