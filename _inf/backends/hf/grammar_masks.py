"""Constrains answers to a JSON schema or a regex, which `_inf.request.grammar` has checked, with
llguidance."""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer

from _inf.errors import InferenceError, RequestFailure, error_text
from _inf.types import ModelInfo, SamplingParams


class Grammar:
    """One row's grammar and its state. ends: tokens that may come where the grammar may end."""

    def __init__(self, matcher: LLMatcher, end: int, ends: Collection[int]) -> None:
        self._matcher, self._end, self.ends = matcher, end, ends

    def allowed(self, vocabulary: int) -> torch.Tensor:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        known = torch.from_numpy(np.unpackbits(bits, bitorder="little")).bool()[:vocabulary]
        mask = torch.zeros(vocabulary, dtype=torch.bool)
        mask[: len(known)] = known
        if mask[self._end]:
            mask[list(self.ends)] = True
        return mask

    def accept(self, token: int) -> None:
        """Take a token; raises `RequestFailure` at one of llguidance's limits."""
        self._matcher.consume_token(self._end if token in self.ends else token)
        if error := self._matcher.get_error():
            reason = str(error).partition("\n")[0]
            raise RequestFailure(f"llguidance cannot continue its grammar: {reason}")


class Grammars:
    """Compiles grammars for a model; each text once. Reads the tokenizer, which takes a second, at
    the first one."""

    def __init__(self, model: ModelInfo) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._compiled = functools.lru_cache(maxsize=64)(self._compile)

    def of(self, params: SamplingParams) -> Grammar | None:
        if params.json_schema is None and params.regex is None:
            return None
        with self._lock:
            matcher = self._compiled(params.json_schema, params.regex or "")
            end = self._vocabulary.eos_token
        return Grammar(matcher.deep_copy(), end, {*self._model.eos_token_ids, end})

    @functools.cached_property
    def _vocabulary(self) -> LLTokenizer:
        tokenizer, vocabulary = self._model.tokenizer, self._model.limits.vocabulary
        try:
            return from_tokenizer(tokenizer, max(vocabulary, len(tokenizer)))
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
