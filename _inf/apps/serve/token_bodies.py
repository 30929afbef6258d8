"""The bodies of the routes that take token ids, in the forms of vLLM (main at 00388f6,
`entrypoints/serve/disagg/protocol.py`, `sampling_params.py`) and SGLang (0.5.9,
`managers/io_struct.py`, `sampling/sampling_params.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from _inf.apps.openai_requests import RequestBody, with_keywords
from _inf.apps.serve.bodies import Choices, Likeliest, Streamed, VllmFields
from _inf.apps.serve.completion_bodies import as_prompts
from _inf.errors import ConfigError
from _inf.parts.grammars import Grammar
from _inf.request.keywords import KEYWORDS
from _inf.types import JSON

# Their names of `generate`'s keywords. vLLM's are the same; a grammar is in `structured_outputs`.
_OF_IDS = {name for name, row in KEYWORDS.items() if row.kind and row.in_body and not row.of_chats}
VLLM = {name: name for name in KEYWORDS if name in _OF_IDS - Grammar.keywords.keys()}
SGLANG = {row.sglang: name for name, row in KEYWORDS.items() if row.sglang}


class _Sampling(RequestBody):
    """Sampling parameters. names: `generate`'s of the fields that it has."""

    names: ClassVar[Mapping[str, str]]

    def keywords(self) -> JSON:
        """Return `generate`'s keywords."""
        pairs = ((self.names.get(name), value) for name, value in self)
        return {name: value for name, value in pairs if name and value is not None}


@with_keywords(VLLM)
class VllmSampling(_Sampling, VllmFields):
    names = VLLM
    # They concern the text and the experts, which are not in the response, the ids, which always
    # are, and how the engine sends rows.
    without_effect = {"return_token_ids", "detokenize", "spaces_between_special_tokens"}
    without_effect |= {"output_kind", "routed_experts_prompt_start"}
    logprobs: Likeliest | None = None

    def keywords(self) -> JSON:
        given = super().keywords()
        if self.logprobs and not self.logprob_token_ids:
            given["logprobs"] = self.logprobs
        return given | self.of_vllm()


@with_keywords(SGLANG)
class SglangSampling(_Sampling):
    names = SGLANG
    n: Choices | None = None
    # Accepted only at the value without effect.
    spaces_between_special_tokens: Literal[True] | None = None


class _TokensIn(RequestBody):
    """What `ServedKeywords` has and these routes do not."""

    tool_choice: ClassVar[None] = None
    parallel_tool_calls: ClassVar[None] = None
    return_token_ids: ClassVar[bool] = True
    return_tokens_as_token_ids: ClassVar[bool] = True
    sampling_params: _Sampling

    @property
    def fields(self) -> dict[str, str]:
        """The names of the fields that give `generate`'s keywords."""
        inside = {ours: theirs for theirs, ours in self.sampling_params.names.items()}
        if isinstance(self.sampling_params, VllmFields) and self.sampling_params.structured_outputs:
            inside |= self.sampling_params.structured_outputs.fields
        return {name: f"sampling_params.{field}" for name, field in inside.items()}


class TokensBody(Streamed, _TokensIn):
    """The body of vLLM's `/inference/v1/generate`. The prefix cache is emptied with each update of
    the weights, and there is one queue."""

    without_effect = {"cache_salt", "priority"}
    token_ids: list[int]
    sampling_params: VllmSampling
    model: str | None = None
    request_id: str | None = None

    @property
    def likeliest(self) -> int | None:
        return self.sampling_params.listed(self.sampling_params.logprobs)

    @property
    def prompt_logprobs(self) -> int | None:
        return self.sampling_params.prompt_logprobs

    def prompts(self) -> list[Any]:
        return as_prompts([self.token_ids])

    def keywords(self) -> JSON:
        return self.sampling_params.keywords()


class SglangBody(_TokensIn):
    """The body of SGLang's `/generate`."""

    fits: ClassVar[bool] = False
    model: ClassVar[None] = None
    stream: bool = False
    stream_options: ClassVar[None] = None
    prompt_logprobs: ClassVar[None] = None
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
    def fields(self) -> dict[str, str]:
        return super().fields | {"prompt": "input_ids" if self.text is None else "text"}

    @property
    def is_batch(self) -> bool:
        return isinstance(self.text, list) or isinstance(next(iter(self.input_ids or ()), 0), list)

    def prompts(self) -> list[Any]:
        return as_prompts(self.input_ids if self.text is None else self.text)

    @property
    def likeliest(self) -> int | None:
        return self.top_logprobs_num if self.return_logprob else None

    def keywords(self) -> JSON:
        listed = {"logprobs": self.likeliest} if self.likeliest else {}
        return self.sampling_params.keywords() | listed
