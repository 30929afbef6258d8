"""An MCP server without the package `mcp`, on stdin and stdout: what no such package would send.

INF_TEST_RAW is "pages", to list tools without end, or "dies", to end when it should list them. Its
tool `say` answers with the given error code, with so many characters (`long`), or with its process,
after it has written `noise`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

KIND = os.environ.get("INF_TEST_RAW", "")
pages = 0


def result(method: str, given: dict[str, Any]) -> dict[str, Any]:
    global pages
    if method == "initialize":
        about = {"protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}}}
        return {"result": {**about, "serverInfo": {"name": "raw", "version": "1"}}}
    if method == "tools/list":
        if KIND == "dies":
            sys.exit("no tools today")
        pages += 1
        name = "say" if pages == 1 else f"say{pages}"
        more = {"nextCursor": str(pages)} if KIND == "pages" else {}
        return {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}}], **more}}
    if method == "tools/call":
        asked = given.get("arguments", {})
        if "code" in asked:
            token = os.environ.get("TOKEN", "").split()[-1:]
            return {"error": {"code": asked["code"], "message": f"no rights {token}"}}
        if "long" in asked:
            return {"result": {"content": [{"type": "text", "text": "x" * asked["long"]}]}}
        if "noise" in asked:
            os.write(1, b"\xff not UTF-8\n")
        return {"result": {"content": [{"type": "text", "text": str(os.getpid())}]}}
    return {"error": {"code": -32601, "message": "no such method"}}


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            answer = {"jsonrpc": "2.0", "id": request["id"]}
            answer |= result(request["method"], request.get("params", {}))
            os.write(1, f"{json.dumps(answer)}\n".encode())
