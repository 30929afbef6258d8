"""OpenAI's form of requests and answers: messages to /chat/completions, text to /completions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from _inf.backends.openai.translation import sent_by_parts
from _inf.parts.reasoning import Said
from _inf.tools.call_values import call_of
from _inf.types import Message, Request, RequestOutput, SamplingParams

# Other servers' names for `stop`. Whether calls end the row is decided above.
STOPPED = ("tool_calls", "function_call", "eos")
NEWER_LIMIT = "max_completion_tokens"  # OpenAI's reasoning models refuse max_tokens

# Takes a whole answer, or the next chunk of a stream, and returns the row as far as it has arrived.
Answer: TypeAlias = Callable[[Mapping[str, Any]], RequestOutput]


class TextForm:
    """The form for a server that takes and gives text. model: its name at the server."""

    in_stream: Mapping[str, object] = {"stream_options": {"include_usage": True}}

    def __init__(self, model: str) -> None:
        self._model = model
        self._limit = "max_tokens"

    def sent(self, request: Request) -> tuple[str, dict[str, object]]:
        """The path and the body of a request; `in_stream` is added for a stream."""
        body = {"model": self._model, **openai_params(request.params)}
        if request.tools:
            body["tools"] = list(request.tools)
        if request.messages is None:
            text = {"prompt": request.text, "max_tokens": request.params.max_tokens}
            return "/completions", body | text
        messages = [_sent(message) for message in request.messages]
        return "/chat/completions", {
            **body,
            "messages": messages,
            self._limit: request.params.max_tokens,
        }

    def answer(self, request: Request) -> Answer:
        return TextAnswer()

    def corrected(self, refusal: Exception) -> bool:
        """Whether the server asks for the newer name of `max_tokens`, which is used then on."""
        if NEWER_LIMIT not in str(refusal):
            return False
        self._limit = NEWER_LIMIT
        return True


def openai_params(params: SamplingParams) -> dict[str, object]:
    """Return OpenAI's parameters, without `max_tokens`; those without effect are left out, because
    some servers refuse the names."""
    sent: dict[str, object] = {"temperature": params.temperature}
    if params.top_p < 1:
        sent["top_p"] = params.top_p
    if params.stop:
        sent["stop"] = list(params.stop)
    if params.seed is not None:
        sent["seed"] = params.seed
    return sent | sent_by_parts(params)


def _sent(message: Message) -> Message:
    """A message as OpenAI takes it: arguments as JSON text, no content where there are calls, and
    no name of a tool, which the id of its call tells."""
    sent = dict(message)
    if message["role"] == "tool":
        sent.pop("name", None)
    if calls := message.get("tool_calls"):
        sent["content"] = message["content"] or None
        sent["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _json(call["function"])}}
            for call in calls
        ]
    return sent


def _json(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


@dataclasses.dataclass(kw_only=True)
class OpenAIAnswer:
    """What both forms of OpenAI's answers have, as far as it has arrived."""

    finish_reason: str | None = None
    usage: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def choice(self, chunk: Mapping[str, Any]) -> Mapping[str, Any]:
        choice: Mapping[str, Any] = next(iter(chunk["choices"]), {})
        self.usage = chunk.get("usage") or self.usage
        reason = choice.get("finish_reason") or self.finish_reason
        self.finish_reason = "stop" if reason in STOPPED else reason
        return choice

    @property
    def cached_tokens(self) -> int:
        """How many tokens of the prompt were cached; 0 if a server does not count them."""
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens of the answer are its thought; 0 if a server does not count them."""
        return (self.usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0


@dataclasses.dataclass
class TextAnswer(OpenAIAnswer):
    """An answer of text and calls."""

    text: str = ""
    reasoning: str = ""
    matched_stop: str | None = None
    calls: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def __call__(self, chunk: Mapping[str, Any]) -> RequestOutput:
        choice = self.choice(chunk)
        part = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        self.text += part.get("content") or part.get("refusal") or ""
        # vLLM's and OpenRouter's newer name, and DeepSeek's, SGLang's and vLLM's older one
        self.reasoning += part.get("reasoning") or part.get("reasoning_content") or ""
        for place, call in enumerate(part.get("tool_calls") or ()):
            self._add_call(call, call.get("index", place))
        stop = choice.get("stop_reason") or choice.get("matched_stop")  # vLLM's and SGLang's
        self.matched_stop = stop if isinstance(stop, str) else self.matched_stop
        calls = [
            call_of(call["name"], call["arguments"].strip() or None, call["arguments"], 0, 0)
            for call in self.calls
        ]
        return RequestOutput(
            finish_reason=self.finish_reason,
            matched_stop=self.matched_stop,
            prompt_tokens=self.usage.get("prompt_tokens") or 0,
            completion_tokens=self.usage.get("completion_tokens") or 0,
            cached_tokens=self.cached_tokens,
            text=self.text,
            parts=(Said(calls, self.reasoning, self.reasoning_tokens),),
        )

    def _add_call(self, call: Mapping[str, Any], index: int) -> None:
        """Add a call or a part of one, which has the index of the call and maybe its id."""
        call_id, function = call.get("id"), call["function"]
        same = [c for c in self.calls if c["index"] == index and call_id in (None, "", c["id"])]
        if not same:
            same = [{"index": index, "id": call_id, "name": "", "arguments": ""}]
            self.calls += same
        for key in ("name", "arguments"):
            same[-1][key] += function.get(key) or ""
