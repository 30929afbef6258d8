"""vLLM's form with token ids, which `inf serve` has too."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from _inf.backends.openai.text import Answer, OpenAIAnswer, TextForm, openai_params
from _inf.errors import ConfigError
from _inf.request.keywords import FILTERS, NEUTRAL
from _inf.request.thinking_budget import budget_of
from _inf.types import GRAMMARS, Request, RequestOutput, SamplingParams

# vLLM would take other defaults from the model's generation config.
ALWAYS = ("top_p", "top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos")
ADJUST_LOGITS = (
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("min_tokens", "allowed_token_ids", "bad_words", *GRAMMARS),
)
OWN = (  # of vLLM, sent only if they are set
    *("allowed_token_ids", "bad_words", "logprob_token_ids"),
    *("thinking_token_budget", "repetition_detection"),
)
TOKEN = "token_id:"  # before an id where a token's text would stand
MINUS_INFINITY = -9999.0  # in vLLM's JSON

Tops = dict[int, float]


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
        raw = params.temperature in (0, 1) and _neutral(params, ADJUST_LOGITS)
        free = params.greedy or _neutral(params, FILTERS)
        return (self.tempered or raw) and (free or not self.filtered)


def _neutral(params: SamplingParams, names: Sequence[str]) -> bool:
    return all(getattr(params, name) == NEUTRAL[name] for name in names)


@dataclasses.dataclass(frozen=True)
class TokenForm:
    """/completions with `return_token_ids`. Rows whose log probs are not ours have none. model: its
    name at the server."""

    model: str
    logprobs: ServerLogprobs
    in_stream: ClassVar[Mapping[str, Any]] = TextForm.in_stream

    def sent(self, request: Request) -> tuple[str, dict[str, Any]]:
        params = request.params
        asked = "logprob_token_ids" if params.logprob_token_ids else "logprobs"
        if getattr(params, asked) and not self.logprobs.are_ours(params):
            raise ConfigError.of(
                asked,
                "this server computes log probs from other logits under these parameters "
                "(docs/backends.md); leave it out, or what changes the logits.",
            )
        body = {
            "model": params.adapter or self.model,
            "prompt": request.token_ids,
            "max_tokens": params.max_tokens,
            "logprobs": len(params.logprob_token_ids or ()) or params.logprobs,  # 0: of the sampled
            "return_token_ids": True,
            **openai_params(params),
            **{name: getattr(params, name) for name in ALWAYS},
            **{name: getattr(params, name) for name in OWN if not _neutral(params, [name])},
            "stop_token_ids": list(params.stop_token_ids),
        }
        if params.asks_for_top_logprobs:
            body["return_tokens_as_token_ids"] = True
        if params.prompt_logprobs:
            body["prompt_logprobs"] = params.top_prompt_logprobs
        if params.regex is not None:
            body["structured_outputs"] = {"regex": params.regex}
        if params.constrained:
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
    tops: list[Tops] = dataclasses.field(default_factory=list)
    of_prompt: Sequence[Mapping[str, Any] | None] = ()
    stop: int | str | None = None
    weight_versions: Sequence[tuple[int, int]] = ((0, 0),)  # that `inf serve` names

    def __call__(self, chunk: Mapping[str, Any]) -> RequestOutput:
        choice, params = self.choice(chunk), self.request.params
        if new := choice.get("token_ids"):
            self._add(new, choice)
        if (stop := choice.get("stop_reason")) is not None:
            self.stop = stop
        self.of_prompt = choice.get("prompt_logprobs") or self.of_prompt
        if versions := choice.get("weight_versions"):
            self.weight_versions = [(version, first) for version, first in versions]
        ids, stop = list(self.token_ids), self.stop
        if stop is None and ids and (ids[-1] in params.stop_token_ids or params.constrained):
            stop = ids[-1]  # vLLM does not name the model's own EOS
        row = RequestOutput(
            token_ids=ids,
            logprobs=list(self.logprobs),
            top_logprobs=list(self.tops) if params.asks_for_top_logprobs else None,
            finish_reason=self.finish_reason,
            matched_stop=stop if self.finish_reason == "stop" else None,
            prompt_tokens=len(self.request.token_ids),
            completion_tokens=len(ids),
            cached_tokens=self.cached_tokens,
            weight_versions=list(self.weight_versions),
        )
        if budget := budget_of(_as_vllm_reads(self.request)):
            row = _with_forced(row, budget.forced(ids))
        return self._with_prompt(row) if params.prompt_logprobs else row

    def _add(self, new: Sequence[int], choice: Mapping[str, Any]) -> None:
        params = self.request.params
        tops = choice["logprobs"]["top_logprobs"] if params.asks_for_top_logprobs else []
        logprobs = choice["logprobs"]["token_logprobs"] if self.ours else [math.nan] * len(new)
        if len(logprobs) != len(new):
            raise ValueError("it has not one log prob per token")
        self.token_ids += new
        self.logprobs += logprobs
        for token, logprob, top in zip(new, logprobs, tops, strict=bool(tops)):
            named = {_id(name): value for name, value in top.items()}
            if params.logprob_token_ids:
                found = _likeliest(named, len(named))
                chosen = {each: found[each] for each in params.logprob_token_ids if each in found}
            else:
                chosen = _likeliest(named, params.logprobs)
            self.tops.append({**chosen, token: logprob})

    def _with_prompt(self, row: RequestOutput) -> RequestOutput:
        """Add the log probs of the prompt's tokens, from the raw logits; the first token has
        none."""
        most, logprobs = self.request.params.top_prompt_logprobs, list[float | None]()
        tops: list[Tops | None] = []
        for token, entry in zip(self.request.token_ids, self.of_prompt, strict=True):
            named = {int(name): about["logprob"] for name, about in (entry or {}).items()}
            logprob = named[token] if entry else None
            impossible = logprob is not None and logprob <= MINUS_INFINITY
            logprobs.append(-math.inf if impossible else logprob)
            tops.append(_likeliest(named, most) if entry else None)
        return dataclasses.replace(row, prompt_logprobs=logprobs, top_prompt_logprobs=tops)


def _as_vllm_reads(request: Request) -> Request:
    """The request with the thoughts that vLLM sees: any mark of its prompt counts."""
    params = request.params
    if params.thought_marks is None:
        return request
    marks = dataclasses.replace(params.thought_marks, turn_ends=())
    return dataclasses.replace(request, params=dataclasses.replace(params, thought_marks=marks))


def _with_forced(row: RequestOutput, places: Sequence[int]) -> RequestOutput:
    """Give the tokens at these places, which were not sampled, the log prob 0.0."""
    for place in places:
        row.logprobs[place] = 0.0
        if row.top_logprobs:
            row.top_logprobs[place] = {row.token_ids[place]: 0.0}
    return dataclasses.replace(row, forced_at=places)


def _id(name: str) -> int:
    if not name.startswith(TOKEN):
        raise ValueError("it names tokens by their text")
    return int(name.removeprefix(TOKEN))


def _likeliest(named: Tops, most: int) -> Tops:
    """The `most` likeliest of these tokens, the likeliest first."""
    possible = [item for item in named.items() if item[1] > MINUS_INFINITY]
    return dict(sorted(possible, key=lambda item: -item[1])[:most])
