"""Faults that would end the scheduler's process, tested without a scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from _inf.backends.verl import environment

pytestmark = pytest.mark.engine  # it imports the whole stack


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    environment.prepare("auto")


def test_dropped_weight_in_an_update_is_an_answer_and_another_fault_is_raised() -> None:
    from _inf.backends.verl.child.weight_loading import WeightsNotTaken, answer_a_refused_update

    def update(runner: Any, failure: Exception | None) -> tuple[bool, str]:
        if failure is not None:
            raise failure
        return True, "Success"

    assert answer_a_refused_update(update, None, None) == (True, "Success")
    fault = WeightsNotTaken("SGLang's X has no place for y")
    assert answer_a_refused_update(update, None, fault) == (False, str(fault))
    with pytest.raises(ValueError):
        answer_a_refused_update(update, None, ValueError())


def test_tokenizer_that_llguidance_cannot_read_gives_invalid_grammars() -> None:
    from sglang.srt.constrained.base_grammar_backend import INVALID_GRAMMAR_OBJ

    from _inf.backends.verl.child.grammar_fixes import _Backend

    class Slow:
        """A tokenizer that is not one of Transformers' fast ones."""

        def __len__(self) -> int:
            return 10

    arguments = SimpleNamespace(
        constrained_json_disable_any_whitespace=True, constrained_json_whitespace_pattern=None
    )
    backend = _Backend(arguments, Slow(), 10, {1})
    try:
        assert backend._from_serialized("{}") is INVALID_GRAMMAR_OBJ
    finally:
        backend.executor.shutdown()
