"""Tools of MCP servers: real server processes of the package `mcp`, killed in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from _inf.errors import ToolError
from _inf.tools.execution import execute
from _inf.tools.loading import close_tools, load_tools
from _inf.tools.results import Executed
from _inf.types import Tool
from tests.support.mcp_servers import PROGRAM, free_port, http, noted, servers_of, stdio
from tests.support.mcp_sessions import SessionServer
from tests.support.scripts import until

pytest.importorskip("mcp_types", reason="version 2 of the package mcp is not installed (extra mcp)")

SECONDS = 30.0
LIMITS = {"max_length": 2000, "side": "left"}
LOST = "which may have been carried out and is not repeated"
Tools = Mapping[str, Tool]
Load = Callable[..., Tools]


def loader(folder: Path, loaded: list[Tool]) -> Load:
    def load(*entries: Mapping[str, Any]) -> Tools:
        file = folder / "tools.yaml"
        file.write_text(yaml.safe_dump(list(entries)))
        loaded.extend(tools := load_tools(file))
        return {tool.name: tool for tool in tools}

    return load


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Those of a server that no test kills."""
    loaded = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INF_TEST_TOKEN", "token-of-the-caller")
        entry = stdio(env={"GIVEN": "${oc.env:INF_TEST_TOKEN}"})
        yield loader(tmp_path_factory.mktemp("shared"), loaded)(entry, {"name": "own"})
    close_tools(loaded)


@pytest.fixture
def load(tmp_path):
    loaded = []
    yield loader(tmp_path, loaded)
    close_tools(loaded)


def raw(calls: Path | None = None, **fields: Any) -> dict[str, Any]:
    """The entry of a server that starts at once; its tools are `say` and `say2`."""
    return stdio(calls, **fields) | {"args": [str(PROGRAM.with_name("mcp_raw.py"))]}


@pytest.fixture
def calls(tmp_path):
    return tmp_path / "calls"


async def run(tool: Tool, timeout: float = SECONDS, **arguments: Any) -> Executed:
    about = {"instance_id": "row", "execute_kwargs": {}, **LIMITS}
    return await execute(tool, arguments, timeout=timeout, **about)


def result(tool: Tool, **arguments: Any) -> str:
    done = asyncio.run(run(tool, **arguments))
    assert done.error is None, done.error
    return done.text


def together(tool: Tool, calls: int) -> set[str]:
    """What so many calls at once return."""

    async def rows() -> list[Executed]:
        return await asyncio.gather(*(run(tool) for _ in range(calls)))

    return {done.text for done in asyncio.run(rows())}


def pids() -> set[int]:
    return {server.pid for server in servers_of(os.getpid())}


def refusal(load: Load, *entries: Mapping[str, Any]) -> str:
    before = pids()
    with pytest.raises(ToolError) as refused:
        load(*entries)
    assert pids() <= before
    return str(refused.value)


def test_tools_of_a_program_have_its_schema_and_text_from_one_process(shared):
    tools = shared
    names = ["calculator", "hang", "block", "picture", "words", "variables", "pid", "own"]
    assert [*tools] == names
    function = tools["calculator"].schema["function"]
    assert (function["name"], function["description"]) == ("calculator", "The calculator.")
    assert function["parameters"]["properties"]["expression"]["type"] == "string"
    of_server = [tools[name].executable and tools[name].of_server for name in names]
    assert of_server == [True] * 7 + [False]
    assert result(tools["calculator"], expression="12 * 7") == "84"
    assert result(tools["words"]) == "two texts"
    done = asyncio.run(run(tools["picture"]))
    said = "it returned an image, and only text can be shown to the model"
    assert (done.error, done.text) == (said, f"Error: picture failed: {said}")
    about = {"instance_id": "row", "execute_kwargs": {}, "timeout": SECONDS, **LIMITS}
    seen = asyncio.run(execute(tools["picture"], {}, **about, read=list))
    assert [part.get("image", part.get("text")) for part in seen.content] == ["a dot", b"x"]
    failed = asyncio.run(run(tools["calculator"], expression="1"))
    assert str(failed.error).startswith("Error executing tool calculator")

    said = together(shared["pid"], 20) | together(shared["pid"], 20)
    assert said == {*map(str, pids())} and len(said) == 1


def test_a_program_gets_no_variables_but_those_of_its_entry(shared):
    variables = json.loads(result(shared["variables"]))
    assert variables["GIVEN"] == "token-of-the-caller"
    from mcp.client.stdio import DEFAULT_INHERITED_ENV_VARS

    python = {"LC_CTYPE"}  # set by Python itself
    assert {*variables} - python <= {*DEFAULT_INHERITED_ENV_VARS, "PYTHONPATH", "GIVEN"}


def test_names_that_are_unknown_or_taken_are_refused(load):
    for entries, says in (
        ([raw(include=["sayy"])], "include[0]: the server has no tool 'sayy'; did you mean 'say'"),
        ([raw(include=["say"]), {"name": "say"}], "tools[1]: the name 'say' is taken by"),
    ):
        assert says in refusal(load, *entries)


def test_a_call_over_its_time_is_stopped_at_the_server(load, calls):
    tools = load(stdio(calls, timeout=3, include=["hang", "calculator"]))
    assert [*tools] == ["calculator", "hang"] and tools["hang"].timeout == 3
    done = asyncio.run(run(tools["hang"], timeout=3))
    assert done.error == "it did not answer within 3 seconds"
    assert until(lambda: [call for call, _ in noted(calls)] == ["hang", "stopped"], SECONDS)
    assert result(tools["calculator"], expression="3 + 4") == "7"


def kill_in_the_middle(tool: Tool, calls: Path, **arguments: Any) -> str:
    """Call it, kill the server while it runs, and return the error."""

    async def both() -> Executed:
        call = asyncio.ensure_future(run(tool, **arguments))
        async with asyncio.timeout(SECONDS):
            while not (pids := [pid for name, pid in noted(calls) if name == "hang"]):
                await asyncio.sleep(0.05)
        os.kill(pids[0], signal.SIGKILL)
        return await call

    return str(asyncio.run(both()).error)


def test_a_program_killed_in_the_middle_fails_that_call_and_is_started_again(load, calls):
    tools = load(raw(calls, include=["say"]))
    assert [*tools] == ["say"]
    say = tools["say"]
    first = int(result(say))
    error = kill_in_the_middle(say, calls, hang=True)
    assert LOST in error and "was lost during the call" in error
    assert len(noted(calls)) == 1  # it was not repeated
    again = together(say, 5)
    assert len(again) == 1 and again != {str(first)}
    second = int(again.pop())
    assert second in pids() and first not in pids()
    os.kill(second, signal.SIGKILL)  # while no call runs: the next one does not notice
    server = say.function.server
    assert until(lambda: server._session.lost and not psutil.pid_exists(second), SECONDS)
    assert result(say) != str(second)


def test_a_program_that_is_gone_is_an_error_of_each_call(load, tmp_path, calls):
    entry, program = raw(calls), tmp_path / "server"
    program.write_text(f"#!/bin/sh\nexec {entry['command']} {entry['args'][0]}\n")
    program.chmod(0o700)
    say = load({**entry, "command": str(program), "args": []})["say"]
    program.unlink()
    assert "is not repeated" in kill_in_the_middle(say, calls, hang=True)
    for _ in range(2):
        done = asyncio.run(run(say))
        gone = "the MCP server server is gone, and cannot be connected to again: FileNotFoundError"
        assert done.error is not None and done.error.startswith(gone)


def test_a_url_is_lost_and_found_again(load, calls):
    port = free_port()
    entry = {"type": "mcp", "url": f"http://127.0.0.1:{port}/mcp?key=of-a-user"}
    process = http(port, calls)
    try:
        tools = load(entry)
        assert result(tools["calculator"], expression="12 * 7") == "84"
        assert LOST in kill_in_the_middle(tools["hang"], calls)
        process.wait(SECONDS)
        done = asyncio.run(run(tools["pid"]))
        assert done.error == "ConnectError: All connection attempts failed"
        process = http(port, calls)
        assert int(result(tools["pid"])) == process.pid
    finally:
        process.kill()
        process.wait(SECONDS)


def test_a_server_that_cannot_start_is_named_and_no_secret_is_shown(load, monkeypatch):
    token = "a-secret-token"
    says = refusal(load, stdio(env={"TOKEN": token, "INF_TEST_START": f"no license for {token}"}))
    assert "tools.yaml: tools[0]: the MCP server python" in says.replace(sys.executable, "python")
    assert "cannot be used: Connection closed; its stderr ends with '***'" in says or (
        "no license for ***" in says
    )
    assert token not in says
    says = refusal(load, {"type": "mcp", "command": "no-such-program"})
    assert "the MCP server no-such-program cannot be used: FileNotFoundError" in says
    url = f"http://user:password@127.0.0.1:{free_port()}/mcp?key=of-a-user"
    says = refusal(load, {"type": "mcp", "url": url})
    assert "cannot be used: ConnectError" in says and "password" not in says and "key" not in says
    monkeypatch.setattr("_inf.tools.mcp_server.CONNECT_SECONDS", 1.0)
    says = refusal(load, stdio(env={"INF_TEST_START": "hang"}))
    assert "cannot be used: it did not answer within 1 seconds" in says


def test_a_secret_of_the_wrong_type_is_not_shown(load):
    says = refusal(load, stdio(env={"PIN": 918273645}))
    assert "tools[0].env.PIN: Input should be a valid string" in says and "918" not in says
    url = {"url": "http://127.0.0.1:1/mcp"}
    says = refusal(load, {"type": "mcp", "headers": "Bearer of-a-user", **url})
    assert "tools[0].headers: Input should be" in says and "of-a-user" not in says


@pytest.mark.slow
def test_close_ends_a_program_that_is_busy_and_a_call_during_it_or_later_starts_one(
    load, calls, capfd
):
    tools = load(stdio(calls, exclude=["calculator"]))
    assert "calculator" not in tools
    assert asyncio.run(run(tools["block"], timeout=3)).error is not None
    assert until(lambda: noted(calls), SECONDS)
    [(_, server)] = noted(calls)
    connection = tools["pid"].function.server
    ending = threading.Thread(target=connection.close)
    ending.start()  # for two seconds, as the tool blocks
    assert until(lambda: connection._session is None, SECONDS)
    during = result(tools["pid"])
    ending.join(SECONDS)
    assert not psutil.pid_exists(server) and result(tools["pid"]) == during
    for _ in range(2):
        close_tools([*tools.values()])
    assert result(tools["words"]) == "two texts"
    assert capfd.readouterr().out == ""


def test_a_fork_leaves_the_server_alone(shared):
    before = result(shared["pid"])
    fork = os.fork()
    if fork == 0:
        close_tools([*shared.values()])
        os._exit(0)
    os.waitpid(fork, 0)
    assert result(shared["pid"]) == before


def test_an_error_that_is_the_servers_own_and_a_wrong_byte_end_no_session(load):
    tools = load(raw(env={"TOKEN": "Bearer secret-of-a-user"}))
    assert [*tools] == ["say", "say2"]  # of two pages
    say = tools["say"]
    before = result(say)
    for code in (-32000, -32001):  # the first is also the package's own, of a lost connection
        assert asyncio.run(run(say, code=code)).error == "no rights ['***']"
    assert result(say, noise=True) == before and result(say) == before  # in the same process


def test_what_fails_at_a_url_is_an_error_of_its_own_call(load):
    async def rows() -> list[Executed]:
        waiting = asyncio.ensure_future(run(tools["wait"]))
        await asyncio.to_thread(server.waits.wait, SECONDS)
        cut = await run(tools["cut"])
        server.goes_on.set()
        return [cut, await waiting]

    with contextlib.closing(SessionServer()) as server:
        tools = load(server.entry)
        cut, waited = asyncio.run(rows())
        assert LOST in str(cut.error) and waited.text == "session 1"
        assert asyncio.run(run(tools["fail"])).error == "no rights"
        for body in ('{"detail": "who are you?"}', "who are you?"):
            server.refuses_with = body
            assert asyncio.run(run(tools["say"])).error == "HTTP 401 Unauthorized"
        assert "cannot be used: HTTP 401 Unauthorized" in refusal(load, server.entry)
        server.refuses_with = None
        assert result(tools["say"]) == "session 1"
        server.sessions.clear()
        assert asyncio.run(run(tools["say"])).error == "Session not found"
        assert [result(tools["say"]) for _ in range(2)] == ["session 2"] * 2
