"""Makes the responses and events of Anthropic's Messages (anthropic 2.11.0, `types/`)."""

from __future__ import annotations

import json
from typing import Any

from _inf.apps.serve.message_blocks import call_input
from _inf.apps.serve.message_bodies import MessagesBody, MessagesChat
from _inf.apps.serve.responses import JSON, event_text
from _inf.apps.serve.translated_responses import Kind, TranslatedResponses

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

    def _message(self, **about: Any) -> JSON:
        name = self._head["id"].replace("-", "_")
        head = {"id": name, "type": "message", "role": "assistant", "model": self._head["model"]}
        return {**head, **about}

    def _whole_text(self) -> str:
        content = [
            {**BLOCKS[kind], FIELDS[kind]: text}
            | ({"signature": SIGNATURE} if kind == "thought" else {})
            for kind, text in self._texts().items()
        ]
        content += [_tool_use(call) for call in self._calls]
        return json.dumps(self._message(content=content, **self._why(), usage=self._counts()))

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
        thought = {"output_tokens_details": {"thinking_tokens": output.reasoning_tokens}}
        return {
            "input_tokens": self._prompt_tokens - output.cached_tokens,
            **cached,
            "output_tokens": len(output.token_ids),
            **(thought if output.reasoning_tokens else {}),
        }

    # ─── Streams ───

    def _sent(self, name: str, **fields: Any) -> str:
        return event_text(json.dumps({"type": name, **fields}), name)

    def first_events(self) -> list[str]:
        self._index = 0
        about: JSON = {"content": [], "stop_reason": None, "stop_sequence": None}
        message = self._message(**about, usage=self._counts())
        return [self._sent("message_start", message=message), self._sent("ping")]

    def last_events(self) -> list[str]:
        ended = self._sent("message_delta", delta=self._why(), usage=self._counts())
        return [ended, self._sent("message_stop")]

    def failed(self, error: JSON) -> str:
        return event_text(json.dumps(error), "error")

    def _start(self, block: JSON) -> str:
        return self._sent("content_block_start", index=self._index, content_block=block)

    def _grow(self, **delta: Any) -> str:
        return self._sent("content_block_delta", index=self._index, delta=delta)

    def _stop(self) -> str:
        self._index += 1
        return self._sent("content_block_stop", index=self._index - 1)

    def _begin(self, kind: Kind) -> list[str]:
        return [self._start(BLOCKS[kind])]

    def _delta(self, kind: Kind, new: str) -> str:
        name = FIELDS[kind]
        return self._grow(type=f"{name}_delta", **{name: new})

    def _end(self, kind: Kind, text: str) -> list[str]:
        signed = self._grow(type="signature_delta", signature=SIGNATURE)
        return [*([signed] if kind == "thought" else []), self._stop()]

    def _call_events(self, call: JSON) -> list[str]:
        block = _tool_use(call)
        arguments = json.dumps(block["input"])
        begin = self._start({**block, "input": {}})
        return [begin, self._grow(type="input_json_delta", partial_json=arguments), self._stop()]


def _tool_use(call: JSON) -> JSON:
    function = call["function"]
    about = {"type": "tool_use", "id": call["id"], "name": function["name"]}
    return {**about, "input": call_input(function["arguments"])}
