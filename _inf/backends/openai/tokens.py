"""vLLM's form with token ids, which `inf serve` has too."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from _inf.backends.openai.text import Answer, OpenAIAnswer, TextForm, openai_params
from _inf.backends.openai.translation import translations
from _inf.parts.grammars import is_constrained
from _inf.types import Request, RequestOutput, SamplingParams


@dataclasses.dataclass(frozen=True)
class ServerLogprobs:
    """Which log probs of sampled tokens a server gives: vLLM's `--logprobs-mode`.

    tempered: of the logits after penalties and temperature, as ours are; vLLM's own default is of
    the raw logits, which is the same only at temperature 1 (or 0) without penalties.
    filtered: after `top_k`, `top_p` and `min_p` too, so that ours are those without filters.
    """

    tempered: bool
    filtered: bool

    def are_ours(self, params: SamplingParams) -> bool:
        changed = params.min_tokens > 0 or any(part.adjusts for part in params.parts)
        raw = params.temperature in (0, 1) and not changed
        free = params.greedy or not params.filtered
        return (self.tempered or raw) and (free or not self.filtered)


@dataclasses.dataclass(frozen=True)
class TokenForm:
    """/completions with `return_token_ids`. Rows whose log probs are not ours have none. model: its
    name at the server."""

    model: str
    logprobs: ServerLogprobs
    in_stream: ClassVar[Mapping[str, object]] = TextForm.in_stream

    def sent(self, request: Request) -> tuple[str, dict[str, object]]:
        params, ours = request.params, self.logprobs.are_ours(request.params)
        for part in translations(request):
            part.check(ours=ours)
        body = {
            "model": self.model,
            "prompt": request.token_ids,
            "max_tokens": params.max_tokens,
            "logprobs": 0,  # of the sampled token
            "return_token_ids": True,
            # Without them vLLM would take other defaults from the model's generation config.
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
            "repetition_penalty": 1.0,
            "min_tokens": params.min_tokens,
            "ignore_eos": params.ignore_eos,
            **openai_params(params),
            "stop_token_ids": list(params.stop_token_ids),
        }
        if is_constrained(params):
            body["ignore_eos"] = False  # with it vLLM's row goes on, freely, when the grammar ends
        return "/completions", body

    def answer(self, request: Request) -> Answer:
        return TokenAnswer(request=request, ours=self.logprobs.are_ours(request.params))


@dataclasses.dataclass(kw_only=True)
class TokenAnswer(OpenAIAnswer):
    """An answer of token ids. ours: whether its log probs are by our definition."""

    request: Request
    ours: bool
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    stop: int | str | None = None
    weight_versions: Sequence[tuple[int, int]] = ((0, 0),)  # that `inf serve` names

    def __post_init__(self) -> None:
        self.parts = translations(self.request)

    def __call__(self, chunk: Mapping[str, Any]) -> RequestOutput:
        choice, params = self.choice(chunk), self.request.params
        new = choice.get("token_ids") or []
        if new:
            self._add(new, choice)
        for part in self.parts:
            part.take(choice, new)
        if (stop := choice.get("stop_reason")) is not None:
            self.stop = stop
        if versions := choice.get("weight_versions"):
            self.weight_versions = [(version, first) for version, first in versions]
        ids, stop = list(self.token_ids), self.stop
        if stop is None and ids and (ids[-1] in params.stop_token_ids or is_constrained(params)):
            stop = ids[-1]  # vLLM does not name the model's own EOS
        records = [part.record(ids, self.logprobs) for part in self.parts]
        row = RequestOutput(
            token_ids=ids,
            logprobs=list(self.logprobs),
            finish_reason=self.finish_reason,
            matched_stop=stop if self.finish_reason == "stop" else None,
            prompt_tokens=len(self.request.token_ids),
            completion_tokens=len(ids),
            cached_tokens=self.cached_tokens,
            weight_versions=list(self.weight_versions),
            parts=tuple(record for record in records if record is not None),
        )
        for part in self.parts:
            row = part.corrected(row)
        return row

    def _add(self, new: Sequence[int], choice: Mapping[str, Any]) -> None:
        logprobs = choice["logprobs"]["token_logprobs"] if self.ours else [math.nan] * len(new)
        if len(logprobs) != len(new):
            raise ValueError("it does not have one log prob per token")
        self.token_ids += new
        self.logprobs += logprobs
