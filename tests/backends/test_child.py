"""Faults that would end the scheduler's process, tested without a scheduler."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

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


@contextlib.contextmanager
def grammar_backend(tokenizer: Any, width: int, end: int) -> Iterator[Any]:
    """`width`: tokens of the model's vocabulary; `end`: the one that ends an answer."""
    from _inf.backends.verl.child.grammar_fixes import _Backend

    arguments = SimpleNamespace(
        constrained_json_disable_any_whitespace=True, constrained_json_whitespace_pattern=None
    )
    backend = _Backend(arguments, tokenizer, width, {end})
    try:
        yield backend
    finally:
        backend.executor.shutdown()


def test_tokenizer_that_llguidance_cannot_read_gives_invalid_grammars() -> None:
    from sglang.srt.constrained.base_grammar_backend import INVALID_GRAMMAR_OBJ

    class Slow:
        """A tokenizer that is not one of Transformers' fast ones."""

        def __len__(self) -> int:
            return 10

    with grammar_backend(Slow(), 10, end=1) as backend:
        assert backend._from_serialized("{}") is INVALID_GRAMMAR_OBJ


def test_rows_of_one_grammar_have_states_of_their_own_and_take_turns_in_matchers(
    tokenizer: Any,
) -> None:
    """A grammar's thread starts no thread but those that compute masks: with a second team of
    OpenMP's, all later steps would be slower."""
    from _inf.backends.verl.child.grammar_fixes import MAX_MATCHERS

    width = 100_000  # enough for torch to compute in parallel

    def compiled_with_new_threads(backend: Any) -> tuple[Any, int]:
        before = len(os.listdir("/proc/self/task"))
        grammar = backend.dispatch_regex("[ab]c*")
        return grammar, len(os.listdir("/proc/self/task")) - before

    with grammar_backend(tokenizer, width, tokenizer.eos_token_id) as backend:
        torch.zeros(10**6).exp()  # this thread's team is there
        with ThreadPoolExecutor(1) as threads:
            grammar, new = threads.submit(compiled_with_new_threads, backend).result()
        assert new == grammar.vocabulary.threads
        rows = [grammar.copy() for _ in range(2 * MAX_MATCHERS)]
        matchers = min(new, MAX_MATCHERS)
        assert [row.number for row in rows] == [(1 + i) % matchers for i in range(len(rows))]

        [a, c] = tokenizer.convert_tokens_to_ids(["a", "c"])
        for row in rows[::2]:
            row.accept_token(a)
        mask = grammar.allocate_vocab_mask(width, len(rows), torch.device("cpu"))
        for number, row in enumerate(rows):
            row.fill_vocab_mask(mask, number)
        logits = torch.zeros(len(rows), width)
        grammar.apply_vocab_mask(logits, grammar.move_vocab_mask(mask, torch.device("cpu")))
        began = [number % 2 == 0 for number in range(len(rows))]
        assert logits[:, c].isfinite().tolist() == began
        assert logits[:, a].isneginf().tolist() == began
