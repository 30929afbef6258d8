"""The bodies of the routes that take token ids, in the forms of vLLM (main at 00388f6,
`entrypoints/serve/disagg/protocol.py`, `sampling_params.py`) and SGLang (0.5.9,
`managers/io_struct.py`, `sampling/sampling_params.py`)."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from _inf.apps.openai_requests import RequestBody, with_keywords
from _inf.apps.serve.bodies import (
    Choices,
    Likeliest,
    Scored,
    StreamOptions,
    StructuredOutputs,
    Translated,
)
from _inf.apps.serve.completion_bodies import CompletionBody
from _inf.errors import ConfigError
from _inf.parts.grammars import Grammar
from _inf.request.keywords import KEYWORDS
from _inf.types import JSON

# Their names of `generate`'s keywords. vLLM's are the same; a grammar is in `structured_outputs`.
_OF_IDS = {name for name, row in KEYWORDS.items() if row.kind and row.in_body and not row.of_chats}
VLLM = {name: name for name in KEYWORDS if name in _OF_IDS - Grammar.keywords.keys()}
SGLANG = {row.sglang: name for name, row in KEYWORDS.items() if row.sglang}


SAMPLING = "sampling_params."
LISTED = ("n", "logprobs", "prompt_logprobs", "structured_outputs")  # completions' own


@with_keywords(VLLM)
class VllmSampling(RequestBody):
    # They concern the text and the experts, which are not in the response, the ids, which always
    # are, and how the engine sends rows.
    without_effect = {"return_token_ids", "detokenize", "spaces_between_special_tokens"}
    without_effect |= {"output_kind", "routed_experts_prompt_start"}
    n: Choices | None = None
    logprobs: Likeliest | None = None
    prompt_logprobs: Scored | None = None
    structured_outputs: StructuredOutputs | None = None


@with_keywords(SGLANG)
class SglangSampling(RequestBody):
    n: Choices | None = None
    # Accepted only at the value without effect.
    spaces_between_special_tokens: Literal[True] | None = None


class TokensBody(RequestBody):
    """The body of vLLM's `/inference/v1/generate`. The prefix cache is emptied with each update of
    the weights, and there is one queue."""

    without_effect = {"cache_salt", "priority"}
    token_ids: list[int]
    sampling_params: VllmSampling
    model: str | None = None
    request_id: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    def said(self, template: str) -> JSON:
        """The body of the completion that it says."""
        given = dict(self.sampling_params)
        if given.get("logprob_token_ids") and self.sampling_params.logprobs is None:
            given["logprobs"] = 0
        about = {"model": self.model, "stream": self.stream, "stream_options": self.stream_options}
        as_ids = {"return_token_ids": True, "return_tokens_as_token_ids": True}
        return {"prompt": self.token_ids, **given, **about, **as_ids}


class TokensCompletion(Translated, CompletionBody):
    names = {"prompt": "token_ids"} | {name: SAMPLING + name for name in (*VLLM, *LISTED)}


class SglangBody(RequestBody):
    """The body of SGLang's `/generate`."""

    stream: bool = False
    input_ids: list[int] | list[list[int]] | None = None
    text: str | list[str] | None = None  # in their place
    sampling_params: SglangSampling = SglangSampling()
    return_logprob: bool = False
    logprob_start_len: int | None = None  # -1: only of the answer
    top_logprobs_num: Likeliest = 0
    return_text_in_logprobs: bool = False
    rid: str | None = None

    @model_validator(mode="after")
    def _refuse_two_prompts(self) -> SglangBody:
        if (self.text is None) == (self.input_ids is None):
            raise ConfigError.of("input_ids", "give either input_ids or text")
        if self.return_logprob and self.logprob_start_len not in (None, -1):
            raise ConfigError.of("logprob_start_len", "only -1: the prompt has no log probs here")
        return self

    @property
    def is_batch(self) -> bool:
        return isinstance(self.text, list) or isinstance(next(iter(self.input_ids or ()), 0), list)

    def said(self, template: str) -> JSON:
        """The body of the completion that it says."""
        given = {SGLANG.get(name, name): value for name, value in self.sampling_params}
        del given["spaces_between_special_tokens"]
        prompt = self.input_ids if self.text is None else self.text
        listed = {"logprobs": self.top_logprobs_num, "stream": self.stream}
        return {"prompt": prompt, **listed, **given}


class SglangCompletion(Translated, CompletionBody):
    names = {ours: SAMPLING + theirs for theirs, ours in SGLANG.items()}

    @property
    def fields(self) -> dict[str, str]:
        return super().fields | {"prompt": "input_ids" if self._sent.text is None else "text"}
