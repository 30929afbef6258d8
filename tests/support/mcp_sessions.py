"""An MCP server over HTTP without the package `mcp`, in a thread, as servers were before 2026: it
knows its sessions, has no stream for GET, and forgets a session in its own words."""

from __future__ import annotations

from threading import Event
from typing import Any

from tests.support.scripted_server import Reply, ScriptedServer, Seen

FORGOTTEN = {"code": -32001, "message": "Session not found"}  # 404 as the TypeScript SDK's
OWN_ERROR = {"code": -32000, "message": "no rights"}
TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}} for name in ("say", "fail", "wait", "cut")
]


class SessionServer(ScriptedServer):
    """`sessions`: those it knows. Its tool `say` says its session. `wait` sets `waits`, and answers
    once `goes_on` is set. refuses_with: the body of its refusals, if any."""

    def __init__(self) -> None:
        super().__init__(lambda path, body: Reply())
        self.sessions: set[str] = set()
        self.begun = 0
        self.refuses_with: str | None = None
        self.waits, self.goes_on = Event(), Event()

    @property
    def entry(self) -> dict[str, Any]:
        return {"type": "mcp", "url": self.base_url.replace("/v1", "/mcp")}

    def reply(self, seen: Seen) -> Reply:
        asked, session = seen.body, seen.headers.get("mcp-session-id", "")
        if asked is None:
            return Reply(b"", 200 if seen.method == "DELETE" else 405)
        if self.refuses_with is not None:
            return Reply(self.refuses_with.encode(), 401)
        match asked["method"]:
            case "server/discover":
                return Reply(b"", 400)
            case "initialize":
                self.begun += 1
                self.sessions.add(session := f"session {self.begun}")
                about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                about["serverInfo"] = {"name": "sessions", "version": "1"}
                return said(asked, {"mcp-session-id": session}, result=about)
        if session not in self.sessions:
            return said(asked, status=404, error=FORGOTTEN)
        if "id" not in asked:
            return Reply(b"", 202)
        if asked["method"] == "tools/list":
            return said(asked, result={"tools": TOOLS})
        match asked["params"]["name"]:
            case "fail":
                return said(asked, error=OWN_ERROR)
            case "cut":
                return Reply(b"", headers={"content-type": "text/event-stream"})
            case "wait":
                self.waits.set()
                self.goes_on.wait()
        return said(asked, result={"content": [{"type": "text", "text": session}]})


def said(
    asked: Any, headers: dict[str, str] | None = None, status: int = 200, **fields: Any
) -> Reply:
    body = {"jsonrpc": "2.0", "id": asked.get("id"), **fields}
    return Reply(body, status, headers or {})
