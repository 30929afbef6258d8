"""A local HTTP server that answers as a test says: for what a real server cannot be made to do."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

from inf import InferenceEngine

MODEL = "some-model"


@dataclasses.dataclass(frozen=True)
class Reply:
    """body: JSON, or bytes as they are. events: a stream of them, whole with `done`."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    wait: float = 0.0
    events: list[Any] | None = None
    done: bool = True


@dataclasses.dataclass(frozen=True)
class Seen:
    method: str
    path: str
    body: Any
    headers: Mapping[str, str]
    at: float


Script: TypeAlias = "Callable[[str, Any], Reply]"


class ScriptedServer:
    """`script` is called with each request's path and body; `seen` has all requests in order."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[Seen] = []
        self._connections: list[socket.socket] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @property
    def bodies(self) -> list[Any]:
        """What was posted."""
        return [seen.body for seen in self.seen if seen.body is not None]

    def reply(self, seen: Seen) -> Reply:
        return self.script(seen.path, seen.body)

    def stop_listening(self) -> None:
        """Refuse new connections."""
        self._http.shutdown()
        self._http.server_close()

    def close(self) -> None:
        """Close it; safe to call twice."""
        self.stop_listening()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)

    def _handler(outer) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or a body waits 40 ms for the receipt of its headers

            def setup(self) -> None:
                super().setup()
                outer._connections.append(self.connection)

            def do_GET(self) -> None:
                self._answer(None)

            do_HEAD = do_DELETE = do_GET

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

            def _answer(self, body: Any) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                seen = Seen(self.command, self.path, body, headers, time.monotonic())
                outer.seen.append(seen)
                reply = outer.reply(seen)
                time.sleep(reply.wait)
                kind, content = "application/json", reply.body
                if reply.events is not None:
                    kind, self.close_connection = "text/event-stream", True
                    events = [f"data: {json.dumps(event)}\n\n" for event in reply.events]
                    content = "".join(events + ["data: [DONE]\n\n"] * reply.done).encode()
                elif not isinstance(content, bytes):
                    content = json.dumps(content).encode()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.send_response(reply.status)
                    about = {"content-type": kind, "content-length": str(len(content))}
                    for name, value in {**about, **reply.headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(b"" if self.command == "HEAD" else content)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def scripted(script: Script) -> AbstractContextManager[ScriptedServer]:
    return contextlib.closing(ScriptedServer(script))


def connected(server: ScriptedServer, /, **config: Any) -> InferenceEngine:
    """An engine on this server."""
    rollout = {"name": "openai", "do_sample": False, **config.pop("rollout", {})}
    return InferenceEngine(model_path=MODEL, base_url=server.base_url, rollout=rollout, **config)


def chat(text: str | None, calls: list[Any] | None = None, finish: str = "stop") -> Reply:
    """A whole answer of /chat/completions."""
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    return Reply({"choices": [{"message": message, "finish_reason": finish}], "usage": USAGE})


USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 2},
}


def call(name: str, arguments: str, index: int = 0) -> dict[str, Any]:
    """A tool call as OpenAI answers it."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{index}", "type": "function", "function": function}


def echo(path: str, body: Any) -> Reply:
    """Answers with the last message or the text, in capitals."""
    if path.endswith("/models"):
        return Reply({"object": "list", "data": [{"id": MODEL}]})
    if path.endswith("/chat/completions"):
        text = body["messages"][-1]["content"].upper()
        return streamed(text) if body.get("stream") else chat(text)
    choice = {"text": body["prompt"].upper(), "finish_reason": "length"}
    return Reply({"choices": [choice], "usage": USAGE})


def streamed(text: str, *, finish: str | None = "stop", done: bool = True) -> Reply:
    """`text` letter by letter, as /chat/completions streams it."""
    deltas = [{"role": "assistant", "content": ""}]
    deltas += [{"content": letter} for letter in text]
    events = [{"choices": [{"delta": each, "finish_reason": None}]} for each in deltas]
    if finish:
        events.append({"choices": [{"delta": {}, "finish_reason": finish}]})
        events.append({"choices": [], "usage": USAGE})
    return Reply(events=events, done=done)
