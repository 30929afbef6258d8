"""An MCP server without the package `mcp`, on stdin and stdout: what no such package would send.

It lists its tools on two pages. `say` answers with the given error code, or with its process, after
it has written `noise`; told to `hang`, it notes the call in the file `INF_TEST_CALLS`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def result(method: str, given: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        about = {"protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}}}
        return {"result": {**about, "serverInfo": {"name": "raw", "version": "1"}}}
    if method == "tools/list":
        name, more = ("say2", {}) if given.get("cursor") else ("say", {"nextCursor": "2"})
        return {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}}], **more}}
    if method == "tools/call":
        asked = given.get("arguments", {})
        if "code" in asked:
            token = os.environ.get("TOKEN", "").split()[-1:]
            return {"error": {"code": asked["code"], "message": f"no rights {token}"}}
        if "hang" in asked:
            with Path(os.environ["INF_TEST_CALLS"]).open("a") as calls:
                print("hang", os.getpid(), file=calls, flush=True)
            signal.pause()
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
