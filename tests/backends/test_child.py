"""Faults that would end the scheduler's process, tested without a scheduler."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from _inf.backends.verl import environment

pytestmark = [pytest.mark.engine, pytest.mark.verl]  # it imports the whole stack


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
    from _inf.backends.verl.child.grammars import _Backend

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


def rows_of(backend: Any, key: tuple[str, str], count: int) -> list[Any]:
    """Rows that arrive together."""
    asked = [backend.get_cached_or_future_value(key, False) for _ in range(count)]
    return [row if ready else row.result(timeout=60) for row, ready in asked]


def test_rows_of_one_grammar_have_states_of_their_own_and_take_turns_in_matchers(
    tokenizer: Any,
) -> None:
    """A grammar's thread starts no thread but those that compute masks: with a second team of
    OpenMP's, all later steps would be slower."""
    from _inf.backends.verl.child.grammars import MAX_MATCHERS

    width = 100_000  # enough for torch to compute in parallel

    with grammar_backend(tokenizer, width, tokenizer.eos_token_id) as backend:
        torch.zeros(10**6).exp()  # this thread's team is there
        before = len(os.listdir("/proc/self/task"))
        rows = rows_of(backend, ("regex", "[ab]c*"), 2 * MAX_MATCHERS)
        grammar = rows[0]
        new = len(os.listdir("/proc/self/task")) - before
        assert new == grammar.vocabulary.threads + len(backend.executor._threads)
        matchers = min(grammar.vocabulary.threads, MAX_MATCHERS)
        assert [row.number for row in rows] == [i % matchers for i in range(len(rows))]

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


def test_rows_that_arrive_together_compile_their_grammar_once() -> None:
    from _inf.backends.verl.child.compiled_grammars import CompiledGrammar, CompiledGrammars

    compiled: list[str] = []

    def compile(key: tuple[str, str]) -> str:
        compiled.append(key[1])
        go_on.wait(60)
        return f"{key[1]} compiled"

    go_on = threading.Event()
    with ThreadPoolExecutor(4) as threads:
        grammars = CompiledGrammars(threads, compile, CompiledGrammar.take, "invalid")
        together = [grammars.row(("json", "{}")) for _ in range(5)]
        assert [ready for _, ready in together] == [False] * 5
        assert together[1][0].cancel()  # its request was aborted
        go_on.set()
        for row, _ in together[:1] + together[2:]:
            assert row.result(timeout=60) == "{} compiled"
        assert grammars.row(("json", "{}")) == ("{} compiled", True)
    assert compiled == ["{}"]


def test_grammar_that_cannot_be_compiled_is_invalid_and_no_exception() -> None:
    from _inf.backends.verl.child.compiled_grammars import CompiledGrammar, CompiledGrammars

    def compile(key: tuple[str, str]) -> Any:
        raise ValueError(key)

    with ThreadPoolExecutor(1) as threads:
        grammars = CompiledGrammars(threads, compile, CompiledGrammar.take, "invalid")
        row, _ = grammars.row(("regex", "a"))
        assert row.result(timeout=60) == "invalid"


def test_grammars_that_were_used_last_are_kept() -> None:
    from _inf.backends.verl.child import compiled_grammars
    from _inf.backends.verl.child.compiled_grammars import CompiledGrammar, CompiledGrammars

    compiled: list[str] = []
    with ThreadPoolExecutor(1) as threads:
        grammars = CompiledGrammars(
            threads, lambda key: compiled.append(key[1]) or key[1], CompiledGrammar.take, None
        )

        def ask(text: str) -> None:
            row, ready = grammars.row(("json", text))
            assert (row if ready else row.result(timeout=60)) == text

        most = compiled_grammars.MAX_GRAMMARS
        for number in range(3 * most):
            ask("always")
            ask(str(number))
        assert compiled.count("always") == 1 and len(grammars._entries) == most
        ask("0")
        assert compiled.count("0") == 2
        long = "x" * (compiled_grammars.MAX_CHARACTERS // 2)
        for number in range(4):
            ask(f"{long}{number}")
        assert len(grammars._entries) == 1


def test_grammar_has_as_many_matchers_as_rows_use_it_at_once(tokenizer: Any) -> None:
    key = ("json", '{"type": "integer"}')
    with grammar_backend(tokenizer, len(tokenizer), tokenizer.eos_token_id) as backend:
        most = min(8, torch.get_num_threads())
        for _ in range(5):
            [row] = rows_of(backend, key, 1)
            backend.set_cache(key, row.copy())  # as SGLang does
            del row
        shared = backend._grammars._entries[key].value
        assert len(shared._matchers) == 1
        rows = [rows_of(backend, key, 1)[0] for _ in range(2 * most)]
        backend.executor.shutdown()  # what was begun is done
        assert len(shared._matchers) == most and shared.running == len(rows)
