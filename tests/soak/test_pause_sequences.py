"""Random sequences of pauses, new weights, calls, continued rows and sleep: no row is lost, none
waits without end, and no row has a wrong version.

All weights of a test are equal, so that each row is the one that nothing has ended or held up.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from concurrent.futures import Future, wait
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from hypothesis.strategies import booleans, floats, sampled_from

from _inf.runtime.extras import has_verl
from inf import GenerationRow, InferenceEngine
from tests.support.engines import engine_fixture
from tests.support.prompts import as_ids, token_prompts
from tests.support.running import begun
from tests.support.tiny import tiny_model
from tests.support.updates import trained

pytestmark = pytest.mark.soak

SEQUENCES, STEPS = 200, 12
PROMPTS = as_ids(token_prompts(6, longest=60, seed=52))
TOKENS = 60
SAMPLED = {"max_tokens": TOKENS, "ignore_eos": True}
GREEDY = {"temperature": 0, **SAMPLED}
SEEDED = {"temperature": 1.0, "seed": 11, **SAMPLED}
SEEDED |= {"stop_token_ids": [*range(40, 48)]}  # so that rows end at different tokens
END_SECONDS = 60
MODES = ("wait", "abort", "keep")


SLEEPING = {"enforce_eager": True, "free_cache_engine": True} if has_verl() else {}
served = engine_fixture(lambda: tiny_model(layers=4), response_length=200, **SLEEPING)


@pytest.fixture(scope="module")
def model(served):
    return trained(served, 300)


@dataclasses.dataclass
class Asked:
    """A call under way. versions: that were in use since it began. may_fail: whether the engine has
    slept, when calls that come are refused."""

    prompts: list[int]
    greedy: bool
    rows: Future[list[Any]]
    versions: list[int]
    may_fail: bool = False


class Pauses(RuleBasedStateMachine):
    """One sequence; `engine`, `model` and `expected` are set by the test."""

    engine: InferenceEngine
    model: Any
    expected: dict[bool, list[GenerationRow]]
    counts: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Asked] = []
        self.cut: list[tuple[int, bool, GenerationRow]] = []

    def begin(self, prompts: list[int], greedy: bool, forms: list[Any], streams: bool) -> None:
        # Each prompt has the seed that it has in the call of `expected`.
        seeds = [self.expected[False][prompt].seed for prompt in prompts]
        keywords = GREEDY if greedy else {**SEEDED, "seed": seeds[0] if streams else seeds}

        def ask() -> list[Any]:
            if streams:
                return [[*self.engine.stream(forms[0], **keywords)]]
            return self.engine.generate(forms, **keywords).rows

        self.asked.append(Asked(prompts, greedy, begun(ask), [self.engine.weight_version]))

    @rule(first=sampled_from(range(4)), greedy=booleans())
    def generate(self, first: int, greedy: bool) -> None:
        prompts = [first, first + 1, first + 2]
        self.begin(prompts, greedy, [PROMPTS[place] for place in prompts], streams=False)

    @rule(prompt=sampled_from(range(6)), greedy=booleans())
    def stream(self, prompt: int, greedy: bool) -> None:
        self.begin([prompt], greedy, [PROMPTS[prompt]], streams=True)

    @rule(seconds=floats(0, 0.05))
    def let_run(self, seconds: float) -> None:
        wait([each.rows for each in self.asked], seconds)

    @rule(mode=sampled_from(MODES))
    def pause(self, mode: str) -> None:
        self.engine.pause(mode)
        assert self.engine.paused
        if mode != "keep":
            self.check_ended([each for each in self.asked if each.rows.done()])

    @rule()
    def resume(self) -> None:
        self.engine.resume()
        assert not self.engine.paused

    @rule(running=sampled_from(["wait", "keep"]), recompute=booleans())
    def update(self, running: str, recompute: bool) -> None:
        recompute = recompute and (running == "keep" or self.engine.paused)
        new = self.engine.update_weights(self.model, running=running, recompute=recompute)
        for each in self.asked:
            each.versions.append(new)

    @rule(first=sampled_from(range(4)), greedy=booleans(), mode=sampled_from(["abort", "keep"]))
    def change_running_rows(self, first: int, greedy: bool, mode: str) -> None:
        """Chance alone seldom pauses a call while it runs."""
        self.resume()
        self.generate(first, greedy)
        self.let_run(0.05)
        self.pause(mode)
        self.update("keep", recompute=False)
        self.resume()

    @rule()
    def sleep_and_wake_up(self) -> None:
        if "sleep" in self.engine.supports:
            self.engine.sleep()
            self.engine.wake_up()
            for each in self.asked:
                each.may_fail = True

    @rule()
    def reset_prefix_cache(self) -> None:
        self.engine.reset_prefix_cache()

    @rule()
    def continue_rows(self) -> None:
        for greedy in (True, False):
            rows = [(prompt, row) for prompt, one, row in self.cut if one == greedy]
            if rows:
                prompts, forms = [prompt for prompt, _ in rows], [row for _, row in rows]
                self.begin(prompts, greedy, forms, streams=False)
        self.cut = []

    def check_ended(self, asked: list[Asked]) -> None:
        for each in asked:
            self.asked.remove(each)
            wait([each.rows], END_SECONDS)
            assert each.rows.done()
            failure = each.rows.exception()
            if failure is None or not (each.may_fail and "asleep" in str(failure)):
                for prompt, row in zip(each.prompts, each.rows.result(), strict=True):
                    self.check(each, prompt, row)

    def check(self, asked: Asked, prompt: int, row: Any) -> None:
        if isinstance(row, list):  # chunks
            ids = [token for chunk in row for token in chunk.token_ids]
            reason, versions = row[-1].finish_reason, row[-1].metadata["weight_versions"]
        else:
            ids, reason, versions = row.token_ids, row.finish_reason, row.weight_versions
            if reason == "abort":
                self.cut.append((prompt, asked.greedy, row))
        expected = self.expected[asked.greedy][prompt]
        assert ids == expected.token_ids[: len(ids)]
        whole = len(ids) == len(expected.token_ids)
        assert reason == (expected.finish_reason if whole else "abort"), (reason, len(ids))
        numbers, places = [each for each, _ in versions], [place for _, place in versions]
        assert numbers == sorted(set(numbers)) and places == sorted(set(places))
        assert places[0] == 0 and places[-1] <= max(0, len(ids) - 1)
        assert numbers[-1] in asked.versions or reason == "abort"  # a row without a new token
        self.counts[reason] += 1
        self.counts["rows that saw two versions"] += len(numbers) > 1

    def teardown(self) -> None:
        self.engine.resume()
        self.check_ended(list(self.asked))
        for prompt, greedy, row in self.cut:
            keywords = GREEDY if greedy else SEEDED
            [later] = self.engine.generate(row, **keywords)
            assert later.token_ids == self.expected[greedy][prompt].token_ids


def test_random_sequences_lose_no_row(served, model):
    served.update_weights(model)
    Pauses.engine, Pauses.model, Pauses.counts = served, model, Counter()
    Pauses.expected = {
        greedy: served.generate(PROMPTS, **(GREEDY if greedy else SEEDED)).rows
        for greedy in (True, False)
    }
    run_state_machine_as_test(
        Pauses,
        settings=settings(
            max_examples=SEQUENCES,
            stateful_step_count=STEPS,
            derandomize=False,
            phases=[Phase.generate],  # a shorter sequence takes too long to find
            suppress_health_check=[*HealthCheck],
        ),
    )
    for name in ("abort", "length", "stop", "rows that saw two versions"):
        assert Pauses.counts[name]
