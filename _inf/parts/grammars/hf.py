"""Constrains answers to a JSON schema or a regex, which `schemas.py` has checked, with
llguidance."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from typing import ClassVar
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer

from _inf.backends.hf import translation
from _inf.errors import InferenceError, RequestFailure, error_text
from _inf.parts.grammars import Grammar
from _inf.types import ModelInfo, Request, Tokenizer


class Grammars:
    """Compiles grammars for a model; each text once. Reads the tokenizer, which takes a second, at
    the first one."""

    of_tokenizers: ClassVar[WeakKeyDictionary[Tokenizer, Grammars]] = WeakKeyDictionary()

    @classmethod
    def of(cls, model: ModelInfo) -> Grammars:
        return cls.of_tokenizers.setdefault(model.tokenizer, cls(model))

    def __init__(self, model: ModelInfo) -> None:
        self._vocabulary_size = model.limits.vocabulary
        self._tokenizer = ref(model.tokenizer)
        self._lock = threading.Lock()
        self._compiled = functools.lru_cache(maxsize=64)(self._compile)

    def state(self, grammar: Grammar) -> tuple[LLMatcher, int]:
        """A new state of a grammar, and llguidance's own EOS."""
        with self._lock:
            matcher = self._compiled(grammar.json_schema, grammar.regex or "")
            end = self._vocabulary.eos_token
        return matcher.deep_copy(), end

    @functools.cached_property
    def _vocabulary(self) -> LLTokenizer:
        tokenizer: Tokenizer = self._tokenizer()
        try:
            return from_tokenizer(tokenizer, max(self._vocabulary_size, len(tokenizer)))
        except Exception as failure:
            raise InferenceError(
                f"llguidance cannot read this model's tokenizer: {error_text(failure)}."
            ) from failure

    def _compile(self, schema: str | None, regex: str) -> LLMatcher:
        text = (
            LLMatcher.grammar_from_regex(regex)
            if schema is None
            else LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_flexible": False})
        )
        return LLMatcher(self._vocabulary, text, log_level=0)


class Translation(translation.Translation[Grammar]):
    """A row's grammar and its state. ends: tokens that may come where the grammar may end."""

    masks = True

    @classmethod
    def prepare(cls, part: Grammar, model: ModelInfo) -> None:
        Grammars.of(model).state(part)

    def __init__(self, part: Grammar, request: Request, model: ModelInfo) -> None:
        super().__init__(part, request, model)
        self._matcher, self._end = Grammars.of(model).state(part)
        self.ends = {*model.eos_token_ids, self._end}

    def adjust(self, scores: torch.Tensor, ids: Sequence[int]) -> None:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        known = torch.from_numpy(np.unpackbits(bits, bitorder="little")).bool()[: len(scores)]
        mask = torch.zeros(len(scores), dtype=torch.bool)
        mask[: len(known)] = known
        if mask[self._end]:
            mask[list(self.ends)] = True
        scores[~mask.to(scores.device)] = -math.inf

    def chosen(self, token: int, logprob: float, logprobs: torch.Tensor) -> None:
        """Raises `RequestFailure` at one of llguidance's limits."""
        self._matcher.consume_token(self._end if token in self.ends else token)
        if error := self._matcher.get_error():
            reason = str(error).partition("\n")[0]
            raise RequestFailure(f"llguidance cannot continue its grammar: {reason}")
