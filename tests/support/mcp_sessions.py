"""An MCP server over HTTP without the package `mcp`, in a thread, as servers were before 2026: it
knows its sessions, has no stream for GET, and forgets a session in its own words."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, Self

FORGOTTEN = {"code": -32001, "message": "Session not found"}  # 404 as the TypeScript SDK's
OWN_ERROR = {"code": -32000, "message": "no rights"}


class SessionServer(ThreadingHTTPServer):
    """`sessions`: those it knows. Its tool `say` says its session. `wait` sets `waits`, and answers
    once `goes_on` is set. refuses_with: the body of its refusals, if any."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sessions: set[str] = set()
        self.begun = 0
        self.refuses_with: str | None = None
        self.waits, self.goes_on = Event(), Event()

    def __enter__(self) -> Self:
        Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def entry(self) -> dict[str, Any]:
        return {"type": "mcp", "url": f"http://127.0.0.1:{self.server_port}/mcp"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: SessionServer

    def do_GET(self) -> None:
        self._send(405)

    def do_DELETE(self) -> None:
        self._send(200)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, session = asked["method"], self.headers.get("mcp-session-id", "")
        if self.server.refuses_with is not None:
            self._send(401, self.server.refuses_with)
        elif method == "server/discover":
            self._send(400)
        elif method == "initialize":
            self.server.begun += 1
            self.server.sessions.add(session := f"session {self.server.begun}")
            about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            about["serverInfo"] = {"name": "sessions", "version": "1"}
            self._answer(asked, {"mcp-session-id": session}, result=about)
        elif session not in self.server.sessions:
            self._answer(asked, status=404, error=FORGOTTEN)
        elif "id" not in asked:
            self._send(202)
        elif method == "tools/list":
            names = ("say", "fail", "wait", "cut")
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
            self._answer(asked, result={"tools": tools})
        elif (tool := asked["params"]["name"]) == "fail":
            self._answer(asked, error=OWN_ERROR)
        elif tool == "cut":
            self._send(200, headers={"Content-Type": "text/event-stream"})
        else:
            if tool == "wait":
                self.server.waits.set()
                self.server.goes_on.wait()
            self._answer(asked, result={"content": [{"type": "text", "text": session}]})

    def _answer(
        self, asked: Any, headers: dict[str, str] | None = None, status: int = 200, **fields: Any
    ) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), **fields})
        self._send(status, body, headers)

    def _send(self, status: int, body: str = "", headers: dict[str, str] | None = None) -> None:
        about = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self.send_response(status)
        for name, value in {**about, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass
