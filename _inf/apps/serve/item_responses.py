"""Makes the responses and events of OpenAI's Responses (openai 2.6.1, `types/responses/`)."""

from __future__ import annotations

import functools
import json

from _inf.apps.serve.bodies import TranslatedChat
from _inf.apps.serve.calls import ServedCall
from _inf.apps.serve.item_bodies import ENCRYPTED, LEFT_OUT, ItemsBody, ItemsChat
from _inf.apps.serve.items import INPUT, UNENCRYPTED
from _inf.apps.serve.message_blocks import call_input
from _inf.apps.serve.responses import event_text
from _inf.apps.serve.translated_responses import Kind, TranslatedResponses
from _inf.parts.reasoning import reasoning_tokens
from _inf.types import JSON

NAMES: dict[Kind, str] = {"thought": "reasoning_text", "text": "output_text"}
MORE: dict[Kind, JSON] = {"thought": {}, "text": {"logprobs": []}}  # clients read the field
CALLS = {"function_call": "arguments", "custom_tool_call": INPUT}


class ItemsResponses(TranslatedResponses):
    form, sent_form = ItemsChat, ItemsBody
    prefix = "resp"

    def __init__(self, call: ServedCall, body: TranslatedChat, model: str) -> None:
        super().__init__(call, body, model)
        self._asked: ItemsBody = body._sent
        self._output: list[JSON] = []  # the finished items
        self._events = 0
        self._functions = dict(self._asked.functions())
        if any(tool.type == LEFT_OUT for tool in self._asked.tools):
            reason = f"tools: {LEFT_OUT}: left out, because this server has no such tool"
            self.headers = {"Warning": f'299 inf "{reason}"'}

    # ─── Items ───

    def _id(self, prefix: str) -> str:
        """The id of the item that comes next."""
        return f"{prefix}_{self._head['id'].partition('-')[2]}_{len(self._output)}"

    def _item(self, kind: Kind, text: str, status: str = "completed") -> JSON:
        content = [] if status == "in_progress" else [_part(kind, text)]
        if kind == "text":
            about = {"id": self._id("msg"), "type": "message", "role": "assistant"}
            return {**about, "status": status, "content": content}
        item: JSON = {"id": self._id("rs"), "type": "reasoning", "summary": [], "content": content}
        if ENCRYPTED in self._asked.include:
            item["encrypted_content"] = UNENCRYPTED + text
        return item

    def _call_item(self, call: JSON) -> JSON:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        namespace, tool = self._functions[name]
        head: JSON = {"call_id": call["id"], "name": tool.name, "status": "completed"}
        if tool.type == "custom":
            given = _input(arguments)
            return {"id": self._id("ctc"), "type": "custom_tool_call", INPUT: given, **head}
        if namespace is not None:
            head["namespace"] = namespace
        about = {"id": self._id("fc"), "type": "function_call"}
        return {**about, "arguments": arguments, **head}

    # ─── The response ───

    def _response(self, status: str | None = None) -> JSON:
        """status: None: that of the finished answer."""
        cut = status is None and self._was_cut
        asked = self._echoed
        same = "instructions max_output_tokens temperature top_p reasoning text metadata user"
        return {
            "id": self._head["id"].replace("-", "_"),
            "object": "response",
            "created_at": self._head["created"],
            "model": self._head["model"],
            "status": status or ("incomplete" if cut else "completed"),
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._output,
            "usage": self._counts() if status is None else None,
            "tools": asked["tools"],
            "tool_choice": asked.get("tool_choice", "auto"),
            "parallel_tool_calls": self._asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            **{name: asked.get(name) for name in same.split()},
        }

    @functools.cached_property
    def _echoed(self) -> JSON:
        """What a response repeats of its request, among other fields."""
        return self._asked.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude={"input"}
        )

    def _counts(self) -> JSON:
        output, prompt = self._choice.output, len(self.call.prompts[0])
        sampled = len(output.token_ids)
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": output.cached_tokens},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": reasoning_tokens(output)},
            "total_tokens": prompt + sampled,
        }

    # ─── Streams ───

    def _sent(self, name: str, /, **fields: object) -> str:
        self._events += 1
        about = {"type": name, "sequence_number": self._events - 1}
        return event_text(json.dumps({**about, **fields}), name)

    def first_events(self) -> list[str]:
        response = self._response("in_progress")
        names = ("created", "in_progress")
        return [self._sent(f"response.{name}", response=response) for name in names]

    def last_events(self) -> list[str]:
        response = self._response()
        return [self._sent(f"response.{response['status']}", response=response)]

    def failed(self, error: JSON) -> str:
        about = error["error"]
        fault = {"code": "server_error", "message": about["message"]}
        response = self._response("failed") | {"error": fault}
        details = {name: about[name] for name in ("code", "message", "param")}
        failed = self._sent("response.failed", response=response)
        return failed + self._sent("error", **details)

    def _of_item(self, name: str, item_id: str, /, **fields: object) -> str:
        place = {"output_index": len(self._output), "item_id": item_id}
        return self._sent(f"response.{name}", **place, **fields)

    def _begin(self, kind: Kind) -> list[str]:
        item = self._item(kind, "", "in_progress")
        part = {"content_index": 0, "part": _part(kind, "")}
        return [self._added(item), self._of_item("content_part.added", item["id"], **part)]

    def _delta(self, kind: Kind, new: str) -> str:
        fields = {"content_index": 0, "delta": new, **MORE[kind]}
        return self._of_item(f"{NAMES[kind]}.delta", self._item(kind, "")["id"], **fields)

    def _end(self, kind: Kind, text: str) -> list[str]:
        item = self._item(kind, text)
        about = {"content_index": 0, "text": text, **MORE[kind]}
        part = {"content_index": 0, "part": _part(kind, text)}
        return [
            self._of_item(f"{NAMES[kind]}.done", item["id"], **about),
            self._of_item("content_part.done", item["id"], **part),
            self._done(item),
        ]

    def _call_events(self, call: JSON) -> list[str]:
        item = self._call_item(call)
        field = CALLS[item["type"]]
        name = "function_call_arguments" if field != INPUT else "custom_tool_call_input"
        done = {field: item[field]} | ({"name": item["name"]} if field != INPUT else {})
        return [
            self._added({**item, "status": "in_progress", field: ""}),
            self._of_item(f"{name}.delta", item["id"], delta=item[field]),
            self._of_item(f"{name}.done", item["id"], **done),
            self._done(item),
        ]

    def _added(self, item: JSON) -> str:
        return self._sent("response.output_item.added", output_index=len(self._output), item=item)

    def _done(self, item: JSON) -> str:
        self._output.append(item)
        index = len(self._output) - 1
        return self._sent("response.output_item.done", output_index=index, item=item)


def _part(kind: Kind, text: str) -> JSON:
    more: JSON = {"annotations": [], "logprobs": []} if kind == "text" else {}
    return {"type": NAMES[kind], "text": text, **more}


def _input(arguments: str) -> str:
    """The text that a custom tool is called with."""
    given = call_input(arguments).get(INPUT)
    return given if isinstance(given, str) else arguments
