"""Makes the responses and events of Anthropic's Messages (anthropic 2.11.0, `types/`)."""

from __future__ import annotations

import json

from _inf.apps.serve.bodies import TranslatedChat
from _inf.apps.serve.calls import ServedCall
from _inf.apps.serve.message_blocks import call_input
from _inf.apps.serve.message_bodies import MessagesBody, MessagesChat
from _inf.apps.serve.responses import event_text
from _inf.apps.serve.translated_responses import Kind, TranslatedResponses
from _inf.parts.reasoning import reasoning_tokens
from _inf.types import JSON

# Clients send it back with a thought; the server does not check it.
SIGNATURE = "unsigned"
BLOCKS: dict[Kind, JSON] = {
    "thought": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}
FIELDS: dict[Kind, str] = {"thought": "thinking", "text": "text"}


class MessagesResponses(TranslatedResponses):
    form, sent_form = MessagesChat, MessagesBody
    prefix = "msg"
    ping = event_text('{"type": "ping"}', "ping")

    def __init__(self, call: ServedCall, body: TranslatedChat, model: str) -> None:
        super().__init__(call, body, model)
        self._content: list[JSON] = []  # the blocks that have ended

    def _message(self, **about: object) -> JSON:
        name = self._head["id"].replace("-", "_")
        head = {"id": name, "type": "message", "role": "assistant", "model": self._head["model"]}
        return {**head, **about}

    def _response(self) -> JSON:
        return self._message(content=self._content, **self._why(), usage=self._counts())

    @property
    def _prompt_tokens(self) -> int:
        return len(self.call.prompts[0])

    def _why(self) -> JSON:
        choice, asked = self._choice, int(self.body.keywords()["max_tokens"])
        stop = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        reason = "end_turn" if stop is None else "stop_sequence"
        if self._was_cut:
            reason = "max_tokens"
        elif choice.finish_reason == "tool_calls":
            reason = "tool_use"
        sampled, total = len(choice.output.token_ids), self.call.engine.model.limits.total
        if (
            choice.finish_reason == "length"
            and sampled < asked
            and sampled + self._prompt_tokens == total
        ):
            reason = "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": stop}

    def _counts(self) -> JSON:
        """Cached tokens are not among `input_tokens`."""
        output = self._choice.output
        cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": output.cached_tokens}
        thought = {"output_tokens_details": {"thinking_tokens": reasoning_tokens(output)}}
        return {
            "input_tokens": self._prompt_tokens - output.cached_tokens,
            **cached,
            "output_tokens": len(output.token_ids),
            **(thought if reasoning_tokens(output) else {}),
        }

    # ─── Streams ───

    def _sent(self, name: str, **fields: object) -> str:
        return event_text(json.dumps({"type": name, **fields}), name)

    def first_events(self) -> list[str]:
        about: JSON = {"content": [], "stop_reason": None, "stop_sequence": None}
        message = self._message(**about, usage=self._counts())
        return [self._sent("message_start", message=message), self._sent("ping")]

    def last_events(self) -> list[str]:
        ended = self._sent("message_delta", delta=self._why(), usage=self._counts())
        return [ended, self._sent("message_stop")]

    def failed(self, error: JSON) -> str:
        return event_text(json.dumps(error), "error")

    def _of_block(self, name: str, **fields: object) -> str:
        return self._sent(f"content_block_{name}", index=len(self._content), **fields)

    def _stop(self, block: JSON) -> str:
        event = self._of_block("stop")
        self._content.append(block)
        return event

    def _begin(self, kind: Kind) -> list[str]:
        return [self._of_block("start", content_block=BLOCKS[kind])]

    def _delta(self, kind: Kind, new: str) -> str:
        name = FIELDS[kind]
        return self._of_block("delta", delta={"type": f"{name}_delta", name: new})

    def _end(self, kind: Kind, text: str) -> list[str]:
        block = {**BLOCKS[kind], FIELDS[kind]: text}
        if kind == "text":
            return [self._stop(block)]
        signed = {"type": "signature_delta", "signature": SIGNATURE}
        return [
            self._of_block("delta", delta=signed),
            self._stop({**block, "signature": SIGNATURE}),
        ]

    def _call_events(self, call: JSON) -> list[str]:
        function, about = call["function"], {"type": "tool_use", "id": call["id"]}
        block = {**about, "name": function["name"], "input": call_input(function["arguments"])}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        begun = self._of_block("start", content_block={**block, "input": {}})
        return [begun, self._of_block("delta", delta=delta), self._stop(block)]
