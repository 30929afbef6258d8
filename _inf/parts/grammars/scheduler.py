"""A corrected version of SGLang's llguidance backend (`constrained/llguidance_backend.py`).

There the mask is reused in the next step, whose rows may differ or have no grammar; logits wider
than the tokenizer, and all end tokens but one, are ruled out; every row compiles its grammar again;
the rows' masks are computed one after the other; PyTorch compiles the kernel that applies the mask,
for which a CPU needs a C++ compiler; a grammar that reaches one of llguidance's limits counts as
finished; no grammar is ever dropped (`compiled.py`); and the tokenizer, which takes seconds,
is read even if no grammar is used.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from operator import itemgetter

import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher
from llguidance.hf import from_tokenizer
from llguidance.torch import allocate_token_bitmask, fill_next_token_bitmask_par
from sglang.srt.constrained.base_grammar_backend import (
    INVALID_GRAMMAR_OBJ,
    BaseGrammarBackend,
    BaseGrammarObject,
)
from sglang.srt.constrained.llguidance_backend import GuidanceBackend
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_MATCHED_TOKEN, Req
from sglang.srt.sampling.penaltylib import BatchedMinNewTokensPenalizer
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils import is_cuda
from xgrammar import apply_token_bitmask_inplace

from _inf.backends.verl.child.compiled_draws import CompiledDraws, fits
from _inf.backends.verl.child.scheduler import CheckedReq, with_tokenizer
from _inf.backends.verl.patch_table import Process, Replace, Wrap
from _inf.parts.grammars.compiled import CompiledGrammars, Key
from _inf.types import Tokenizer

MAX_THREADS = 32  # that compute masks for a GPU
MOST_MATCHERS = 8  # of one grammar


class _Vocabulary:
    """The tokenizer; `ends`: tokens that end an answer; `ends_mask`: a mask row with only those;
    `executor`: threads that compute masks; `rows`: of the next mask, each with its
    `_Grammar.number`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        size: int,
        ends: set[int],
        threads: int,
        compiled: CompiledDraws | None,
    ) -> None:
        self.compiled = compiled
        self.tokenizer = from_tokenizer(tokenizer, size)
        self.ends = frozenset({*ends, self.tokenizer.eos_token})
        # By numpy, as this runs in a thread for grammars: after one parallel operator of torch in
        # a second thread, libgomp's threads sleep at once without work, and steps are a quarter
        # slower until that thread ends.
        bits = np.zeros(((size + 31) // 32) * 32, dtype=np.uint8)
        bits[list(self.ends)] = 1
        self.ends_mask = torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32))
        self.executor = LLExecutor(threads)
        self.rows: list[tuple[int, LLMatcher, int]] = []


class _Grammar(BaseGrammarObject):
    """One row's grammar and its state; `number`: of the matcher that it is a copy of."""

    def __init__(self, vocabulary: _Vocabulary, matcher: LLMatcher, number: int) -> None:
        super().__init__()
        self.vocabulary, self.matcher, self.number = vocabulary, matcher, number

    def copy(self) -> _Grammar:
        return _Grammar(self.vocabulary, self.matcher.deep_copy(), self.number)

    def accept_token(self, token: int) -> None:
        ended = token in self.vocabulary.ends
        self.matcher.consume_token(self.vocabulary.tokenizer.eos_token if ended else token)

    def allocate_vocab_mask(
        self, vocab_size: int, batch_size: int, device: torch.device
    ) -> torch.Tensor:
        return allocate_token_bitmask(batch_size, self.vocabulary.tokenizer.vocab_size)

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        """Only notes the row: `move_vocab_mask`, which SGLang calls next, fills all."""
        self.vocabulary.rows.append((self.number, self.matcher, idx))

    def move_vocab_mask(self, vocab_mask: torch.Tensor, device: torch.device) -> torch.Tensor:
        ordered = sorted(self.vocabulary.rows, key=itemgetter(0))  # a thread takes adjacent rows
        rows = [(matcher, row) for _, matcher, row in ordered]
        if rows:  # none: in the overlap schedule, the step after the end of all of them
            fill_next_token_bitmask_par(self.vocabulary.executor, rows, vocab_mask)
        self.vocabulary.rows.clear()
        if len(self.vocabulary.ends) > 1:
            ends = self.vocabulary.ends_mask
            may_end = (vocab_mask & ends).any(dim=1, keepdim=True)  # rows without a grammar may too
            vocab_mask |= torch.where(may_end, ends, 0)
        return vocab_mask.to(device, non_blocking=True)

    def apply_vocab_mask(self, logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
        if self.vocabulary.compiled is not None and fits(logits):
            self.vocabulary.compiled.apply_bits(logits, vocab_mask)
        else:
            apply_token_bitmask_inplace(logits, vocab_mask)


class _Backend(GuidanceBackend):
    def __init__(
        self,
        server_args: ServerArgs,
        tokenizer: Tokenizer,
        vocab_size: int,
        eos_token_ids: set[int] | None,
        compiled: CompiledDraws | None = None,
    ) -> None:
        BaseGrammarBackend.__init__(self)
        self.tokenizer = tokenizer
        self.any_whitespace = not server_args.constrained_json_disable_any_whitespace
        self.whitespace_pattern = server_args.constrained_json_whitespace_pattern
        self._size = max(vocab_size, len(tokenizer))
        self._ends = set(eos_token_ids or ())
        self._compiled_draws = compiled
        self._lock = threading.Lock()
        self._vocabulary: _Vocabulary | None = None
        # On a GPU SGLang leaves PyTorch one thread (`model_runner.py`).
        cores = min(MAX_THREADS, len(os.sched_getaffinity(0)))
        self.threads = cores if is_cuda() else torch.get_num_threads()
        self._grammars = CompiledGrammars(
            self.executor,
            self._compiled,
            lambda matcher, number: _Grammar(self._known(), matcher, number),
            INVALID_GRAMMAR_OBJ,
            min(self.threads, MOST_MATCHERS),
        )

    def get_cached_or_future_value(self, key: Key, require_reasoning: bool) -> tuple[object, bool]:
        return self._grammars.row(key)

    def set_cache(self, key: Key, value: BaseGrammarObject) -> None:
        """SGLang calls it with a row's copy, which needs no place, and after a time limit."""
        if value is INVALID_GRAMMAR_OBJ:
            self._grammars.refuse(key)

    def reset(self) -> None:
        self._grammars.clear()

    def _compiled(self, key: Key) -> object:
        kind, text = key
        compile_of = {
            "json": self.dispatch_json,
            "regex": self.dispatch_regex,
            "ebnf": self.dispatch_ebnf,
            "structural_tag": self.dispatch_structural_tag,
        }
        return compile_of[kind](text)

    def _from_serialized(self, serialized_grammar: str) -> object:
        """Raises for a tokenizer that llguidance cannot read."""
        return LLMatcher(self._known().tokenizer, serialized_grammar, log_level=0)

    def _known(self) -> _Vocabulary:
        with self._lock:
            if self._vocabulary is None:
                own = self.tokenizer, self._size, self._ends, self.threads, self._compiled_draws
                self._vocabulary = _Vocabulary(*own)
            return self._vocabulary


def end_with_its_grammar(check: Callable[..., None], req: Req, *args: object) -> None:
    """Check whether a row ends; it ends when its grammar ends or cannot continue. The token that
    ends a grammar is no text, in which SGLang would look for stop strings."""
    grammar = req.grammar if isinstance(req.grammar, _Grammar) else None
    if grammar is not None and not req.finished():
        if error := grammar.matcher.get_error():
            reason = error.partition("\n")[0]
            req.finished_reason = FINISH_ABORT(f"llguidance cannot continue its grammar: {reason}")
        elif req.output_ids and (token := req.output_ids[-1]) in grammar.vocabulary.ends:
            req.finished_reason = FINISH_MATCHED_TOKEN(matched=token)
    check(req, *args)


def leave_a_token(update: Callable[[object], None], info: SamplingBatchInfo) -> None:
    """Ignore `min_new_tokens` if it rules out every token that a row's grammar allows."""
    update(info)
    lengths = info.penalizer_orchestrator.penalizers.get(BatchedMinNewTokensPenalizer)
    if info.vocab_mask is None or lengths is None or not lengths.is_prepared():
        return
    ends = lengths.stop_token_penalties.isneginf()
    short = (lengths.len_output_tokens < lengths.min_new_tokens)[:, 0]
    # In other rows more tokens are allowed than are ruled out, or none is ruled out.
    few = info.vocab_mask.count_nonzero(dim=1) <= ends.sum(dim=1)
    for row in (few & short).nonzero()[:, 0].tolist():
        mask = info.vocab_mask[row].cpu().numpy()
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        if ends[row, np.flatnonzero(bits[: ends.shape[1]])].all():
            lengths.min_new_tokens[row] = 0


def patches(process: Process) -> list[Replace]:
    ours = {"llguidance": partial(_Backend, compiled=process.compiled_draws)}
    # fmt: off
    return [
        Replace("sglang.srt.constrained.base_grammar_backend:GRAMMAR_BACKEND_REGISTRY", ours,
                "its own backend has the faults that this module's docstring names"),
        Wrap("sglang.srt.constrained.grammar_manager:GrammarManager.__init__", with_tokenizer,
             "without a tokenizer there are no grammars"),
        Wrap(f"{CheckedReq.__module__}:CheckedReq.check_all", end_with_its_grammar,
             "under ignore_eos it continues a row after the end of its grammar"),
        Wrap("sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo.update_regex_vocab_mask",
             leave_a_token,
             "sampling/penaltylib/min_new_tokens.py rules out the only tokens that a grammar has "
             "left"),
    ]
    # fmt: on
