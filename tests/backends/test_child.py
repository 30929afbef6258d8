"""Faults that would end the scheduler's process, tested without a scheduler."""

from __future__ import annotations

import contextlib
import math
import os
import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from _inf.backends.verl import environment
from tests.support.installed import ran

pytestmark = [pytest.mark.engine, pytest.mark.verl]  # it imports the whole stack


@pytest.fixture(scope="module", autouse=True)
def prepared():
    environment.prepare("auto")


def test_failure_of_an_update_is_an_answer_unless_other_ranks_have_taken_it():
    from _inf.backends.verl.child.weight_loading import WeightsNotTaken, answer_a_refused_update

    def update(worker: Any, failure: Exception | None) -> tuple[bool, str]:
        if failure is not None:
            raise failure
        return True, "Success"

    fault, forbidden = WeightsNotTaken("no place for y"), RuntimeError("pidfd_getfd")
    for size in (1, 2):
        worker = SimpleNamespace(tp_size=size)
        assert answer_a_refused_update(update, worker, None) == (True, "Success")
        assert answer_a_refused_update(update, worker, fault) == (False, "no place for y")
    with pytest.raises(RuntimeError, match="pidfd_getfd"):
        answer_a_refused_update(update, worker, forbidden)
    worker.tp_size = 1
    assert answer_a_refused_update(update, worker, forbidden)[0] is False


def test_infinite_weights_are_set_and_nan_is_not():
    from _inf.backends.verl.child.weight_loading import _has_nan

    assert not _has_nan(torch.tensor([math.inf, 1.0, -math.inf]))
    assert not _has_nan(torch.full((4,), 6e4, dtype=torch.float16))
    assert not _has_nan(torch.empty(0))
    assert _has_nan(torch.tensor([math.inf, math.nan]))


def test_log_probs_of_a_prompt_are_the_same_in_pieces_and_as_a_whole():
    """SGLang's two functions for the same numbers, of rows with and without log probs of their
    prompt, on a stand-in for the head of a model."""
    from sglang.srt.layers.logits_processor import LogitsProcessor
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from _inf.backends.verl.child.model_code import list_each_row_once

    draw = random.Random(1)
    for _ in range(100):
        lengths = [draw.randint(1, 9) for _ in range(draw.randint(1, 6))]
        starts = [draw.choice([0, draw.randint(0, n), n]) for n in lengths]
        of_prompts = [n - start for n, start in zip(lengths, starts, strict=True)]
        if not any(of_prompts):
            continue
        states, head = torch.randn(sum(lengths), 8), torch.randn(8, 50)
        piece = SimpleNamespace(
            logprobs_chunk_size=4, _get_logits=lambda rows, *_, h=head: rows @ h
        )
        batch = SimpleNamespace(
            forward_mode=ForwardMode.EXTEND,
            extend_return_logprob=True,
            extend_logprob_start_lens_cpu=starts,
            extend_seq_lens_cpu=lengths,
            extend_logprob_pruned_lens_cpu=of_prompts,
            extend_return_top_logprob=True,
            top_logprobs_nums=[draw.choice([0, 2]) for _ in lengths],
            extend_token_ids_logprob=False,
            extend_input_logprob_token_ids_gpu=torch.randint(50, (sum(of_prompts),)),
            temp_scaled_logprobs=False,
            top_p_normalized_logprobs=False,
            temperature=None,
            top_p=None,
        )
        pruned, _, _, sampled, places, rows = LogitsProcessor._get_pruned_states(
            piece, states, None, None, batch
        )
        whole = LogitsProcessor.process_input_logprobs(piece, (pruned @ head)[places], batch)
        pieces, logits = list_each_row_once(
            LogitsProcessor.process_input_logprobs_by_chunk,
            piece, pruned, sampled, places, rows, None, batch,
        )  # fmt: skip
        assert pieces.input_top_logprobs_idx == whole.input_top_logprobs_idx
        torch.testing.assert_close(pieces.input_token_logprobs, whole.input_token_logprobs)
        torch.testing.assert_close(logits, (pruned @ head)[sampled])


SET_UP = """
import pathlib, sys
from _inf.backends.verl.environment import prepare
prepare("cpu")
from _inf.backends.verl.child import setup
setup.import_all(pathlib.Path(sys.argv[1]))
names = "flashinfer", "torch._inductor.compile_fx", "torchao", "pandas"
assert not [name for name in names if name in sys.modules]
assert "sglang.srt.managers.tokenizer_manager" in sys.modules
import torch
before = torch.get_float32_matmul_precision()
options = dict(cpu_attention=False, pack_weights=False, kernel_library=None, experts=False)
setup.set_up(pathlib.Path(sys.argv[1]), device="cpu", trust_remote_code=False, **options)
print(before, torch.get_float32_matmul_precision())
"""


@pytest.mark.slow
def test_scheduler_imports_no_compiler_and_float32_stays_float32_where_a_variable_asks_for_tf32(
    tmp_path,
):
    """NVIDIA's containers set it."""
    variables = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    said = ran(sys.executable, "-c", SET_UP, tmp_path / "engine.log", **variables)
    assert said.splitlines()[-1] == "high highest"


@contextlib.contextmanager
def grammar_backend(tokenizer: Any, width: int, end: int) -> Iterator[Any]:
    """`width`: tokens of the model's vocabulary; `end`: the one that ends an answer."""
    from _inf.parts.grammars.scheduler import _Backend

    arguments = SimpleNamespace(
        constrained_json_disable_any_whitespace=True, constrained_json_whitespace_pattern=None
    )
    backend = _Backend(arguments, tokenizer, width, {end})
    try:
        yield backend
    finally:
        backend.executor.shutdown()


def rows_of(backend: Any, key: tuple[str, str], count: int) -> list[Any]:
    """Rows that arrive together."""
    asked = [backend.get_cached_or_future_value(key, False) for _ in range(count)]
    return [row if ready else row.result(timeout=60) for row, ready in asked]


def test_tokenizer_that_llguidance_cannot_read_gives_invalid_grammars():
    from sglang.srt.constrained.base_grammar_backend import INVALID_GRAMMAR_OBJ

    class Slow:
        """A tokenizer that is not one of Transformers' fast ones."""

        def __len__(self) -> int:
            return 10

    with grammar_backend(Slow(), 10, end=1) as backend:
        assert rows_of(backend, ("regex", "a"), 1) == [INVALID_GRAMMAR_OBJ]


def test_rows_of_one_grammar_take_turns_in_matchers(tokenizer):
    """A grammar's thread starts no thread but those that compute masks: with a second team of
    OpenMP's, all later steps would be slower."""
    width = 100_000  # enough for torch to compute in parallel
    with grammar_backend(tokenizer, width, tokenizer.eos_token_id) as backend:
        torch.zeros(10**6).exp()  # this thread's team is there
        before = len(os.listdir("/proc/self/task"))
        key, most = ("regex", "[ab]c*"), backend._grammars._most
        # Each of the first has a matcher to compile; the next ones find them.
        rows = [*rows_of(backend, key, most), *rows_of(backend, key, 16 - most)]
        new = len(os.listdir("/proc/self/task")) - before
        assert new == backend.threads + len(backend.executor._threads)
        assert [row.number for row in rows] == [i % most for i in range(len(rows))]

        row = rows[0]
        mask = row.allocate_vocab_mask(width, len(rows), torch.device("cpu"))
        for number, row in enumerate(rows):
            row.fill_vocab_mask(mask, number)
        row.move_vocab_mask(mask, torch.device("cpu"))
        del row, rows
        for _ in range(5):  # one after the other they share one matcher
            [row] = rows_of(backend, key, 1)
            assert row.number == 0
            backend.set_cache(key, row.copy())  # as SGLang does
            del row


@pytest.mark.parametrize("works", [True, False])
def test_rows_that_arrive_together_compile_their_grammar_once(works):
    """One that cannot be compiled is invalid, and no exception."""
    from _inf.parts.grammars.compiled import CompiledGrammars

    compiled: list[str] = []

    def compile(key: tuple[str, str]) -> Any:
        compiled.append(key[1])
        go_on.wait(60)
        if not works:
            raise ValueError(key)
        return SimpleNamespace(deep_copy=Row)

    class Row:
        """It can be referred to weakly."""

    go_on = threading.Event()
    with ThreadPoolExecutor(4) as threads:
        grammars = CompiledGrammars(threads, compile, lambda copy, _: copy, "invalid", 1)
        together = [grammars.row(("json", "{}")) for _ in range(5)]
        assert [ready for _, ready in together] == [False] * 5
        assert together[1][0].cancel()  # its request was aborted
        go_on.set()
        for row, _ in together[:1] + together[2:]:
            answer = row.result(timeout=60)
            assert isinstance(answer, Row) if works else answer == "invalid"
        assert grammars.row(("json", "{}"))[1]
        assert compiled == ["{}"]
        grammars.refuse(("json", "{}"))
        assert grammars.row(("json", "{}")) == ("invalid", True)


def test_grammars_that_were_used_last_are_kept():
    from _inf.parts.grammars import compiled as compiled_grammars
    from _inf.parts.grammars.compiled import CompiledGrammars

    compiled: list[str] = []
    with ThreadPoolExecutor(1) as threads:
        grammars = CompiledGrammars(
            threads, lambda key: compiled.append(key[1]), lambda copy, _: copy, None, 1
        )

        def ask(text: str) -> None:
            row, ready = grammars.row(("json", text))
            assert (row if ready else row.result(timeout=60)) is None

        most = compiled_grammars.MAX_MATCHERS
        for number in range(3 * most):
            ask("always")
            ask(str(number))
        assert compiled.count("always") == 1 and len(grammars._matchers) == most
        ask("0")
        assert compiled.count("0") == 2
        long = "x" * (compiled_grammars.MAX_CHARACTERS // 2)
        for number in range(4):
            ask(f"{long}{number}")
        assert len(grammars._matchers) == 1
