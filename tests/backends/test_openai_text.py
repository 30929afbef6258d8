"""The backend on a server that takes and gives text, with a scripted one."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from inf import ConfigError, EngineDeadError, InferenceEngine, PromptError
from tests.support.refusals import refused
from tests.support.scripted_server import (
    MODEL,
    Reply,
    ScriptedServer,
    call,
    chat,
    connected,
    echo,
    streamed,
)

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
SCHEMA = {"type": "function", "function": {"name": "weather", "parameters": CITY}}


def weather(city: str) -> str:
    """
    The weather in a city.

    Args:
        city: The city's name.
    """
    return f"Sunny in {city}"


# ── Answers ──────────────────────────────────────────────────────────────────────────────────────


def test_messages_go_out_and_text_comes_back(server: ScriptedServer, tmp_path: Any) -> None:
    with connected(server) as engine:
        history = [{"role": "system", "content": "Be loud."}, {"role": "user", "content": "so"}]
        output = engine.generate(["hi", history], max_tokens=[4, 5], temperature=0.5, stop="END")
        assert engine.tokenizer is None and engine.stats()["completion_tokens"] == 6
        with refused(ConfigError, "^tokenizer_path: it must be set"):
            engine.escape_special_tokens("hi")
    assert output.completions == ["HI", "SO"]
    assert output.token_ids == output.logprobs == [None, None]
    about = output.metadata[1]
    assert (about["prompt_tokens"], about["completion_tokens"], about["cached_tokens"]) == (7, 3, 2)
    assert about["response_ids"] == [] and about["cumulative_logprob"] is None
    sent = sorted(server.bodies, key=lambda body: body["max_tokens"])
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    assert sent[0] == asked | {"temperature": 0.5, "stop": ["END"]}
    assert sent[1]["messages"] == history
    # Tables and files lack the columns of tokens.
    assert "token_ids" not in output.to_dict()[0] and "logprobs" not in output.to_pandas()
    output.save(tmp_path / "rows.parquet")
    assert "<td" in output._repr_html_() and "(3 tokens, stop)" in repr(output[0])


def test_plain_text_goes_to_completions_and_a_schema_is_the_response_format(
    server: ScriptedServer,
) -> None:
    with connected(server) as engine:
        [row] = engine.generate({"text": "once upon"}, max_tokens=3)
        assert server.seen[-1].path == "/v1/completions"
        engine.generate("a", json_schema=CITY)
        # These values have no effect.
        engine.generate("a", top_k=-1, min_p=0.0, repetition_penalty=1.0, ignore_eos=False)
    assert row.completion == "ONCE UPON" and row.metadata["finish_reason"] == "length"
    first, second, third = server.bodies
    assert first == {"model": MODEL, "prompt": "once upon", "max_tokens": 3, "temperature": 0.0}
    schema = second["response_format"]
    assert schema["type"] == "json_schema" and schema["json_schema"]["strict"] is True
    assert schema["json_schema"]["schema"] == CITY
    assert set(third) == {"model", "messages", "max_tokens", "temperature"}


def test_each_sample_and_each_prompt_has_its_own_seed(server: ScriptedServer) -> None:
    with connected(server) as engine:
        output = engine.generate(["a", "b"], seed=3, n=2)
    assert {body["seed"] for body in server.bodies} == {row["seed"] for row in output.metadata}
    assert len(server.bodies) == 4 and output.completions == ["A", "A", "B", "B"]


def test_newer_name_of_max_tokens_is_used_where_the_server_asks_for_it(
    server: ScriptedServer,
) -> None:
    def script(path: str, body: Any) -> Reply:
        if "max_tokens" not in (body or {}):
            return echo(path, body)
        words = "'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
        return Reply({"error": {"message": words, "param": "max_tokens"}}, status=400)

    server.script = script
    with connected(server) as engine:
        assert engine.generate(["a"], max_tokens=9).completions == ["A"]
        assert engine.generate(["b"], max_tokens=9).completions == ["B"]
    assert [body.get("max_completion_tokens") for body in server.bodies] == [None, 9, 9]


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────


def test_chunks_of_a_stream_are_the_answer(server: ScriptedServer) -> None:
    with connected(server) as engine:
        chunks = list(engine.stream("hello"))
        assert "".join(chunk.text for chunk in chunks) == "HELLO"
        assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
        assert all(chunk.token_ids == [] for chunk in chunks)
        assert engine.stats()["completion_tokens"] == 3

        async def texts() -> str:
            return "".join([chunk.text async for chunk in engine.astream("hello")])

        assert asyncio.run(texts()) == "HELLO"


def test_stream_ends_with_tool_calls_where_the_server_calls(server: ScriptedServer) -> None:
    function = {"name": "weather", "arguments": ""}
    parts = [{"index": 0, "id": "c", "type": "function", "function": function}]
    parts += [{"index": 0, "function": {"arguments": text}} for text in ('{"city":', ' "Rome"}')]
    events: list[Any] = [{"choices": [{"delta": {"tool_calls": [part]}}]} for part in parts]
    events.append({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    server.script = lambda path, body: Reply(events=events) if body else echo(path, body)
    with connected(server) as engine:
        chunks = list(engine.stream("Rome?", tools=[SCHEMA]))
    assert chunks[-1].finish_reason == "tool_calls"


# ── Tools ────────────────────────────────────────────────────────────────────────────────────────


def test_tools_run_between_turns(server: ScriptedServer) -> None:
    def script(path: str, body: Any) -> Reply:
        if not body:
            return echo(path, body)
        if body["messages"][-1]["role"] == "tool":
            return chat(body["messages"][-1]["content"] + "!")
        calls = [call("weather", '{"city": "Rome"}'), call("weather", '{"city": "Oslo"}', 1)]
        return chat(None, calls, "tool_calls")

    server.script = script
    with connected(server) as engine:
        [row] = engine.generate("Rome and Oslo?", tools=[weather])
    assert row.completion == "Sunny in Oslo!" and row.metadata["finish_reason"] == "stop"
    assert [each["result"] for each in row.metadata["tool_calls"]] == [
        "Sunny in Rome",
        "Sunny in Oslo",
    ]
    assert row.metadata["completion_tokens"] == 6 and row.metadata["num_turns"] == 2
    assert [message["role"] for message in row.messages or ()] == [
        *("user", "assistant", "tool", "tool", "assistant")
    ]
    asked, assistant, *results = server.bodies[1]["messages"]
    assert server.bodies[0]["tools"][0]["function"]["name"] == "weather"
    assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"city": "Rome"}
    ids = [each["id"] for each in assistant["tool_calls"]]
    assert [result["tool_call_id"] for result in results] == ids and len(set(ids)) == 2
    assert assistant["content"] is None and "name" not in results[0]
    assert "token_ids" not in row.to_dict() and row.to_dict()["executed_tool_calls"]


def test_short_call_does_not_wait_for_all_rows_of_a_long_one_with_tools(
    server: ScriptedServer,
) -> None:
    server.script = lambda path, body: Reply(echo(path, body).body, wait=0.02 if body else 0)
    with connected(server, rollout={"max_num_seqs": 1}) as engine:
        asked = [f"a{number}" for number in range(20)]
        long = threading.Thread(target=engine.generate, args=(asked,), kwargs={"tools": [weather]})
        long.start()
        while not server.bodies:
            time.sleep(0.001)
        engine.generate("b")
        assert len(server.bodies) < 10
        long.join(60)
        assert len(server.bodies) == 21


def test_call_of_a_schema_is_returned_to_the_caller(server: ScriptedServer) -> None:
    calls = [call("weather", '{"city": "Rome"}')]
    server.script = lambda path, body: chat("", calls, "tool_calls") if body else echo(path, body)
    with connected(server) as engine:
        [row] = engine.generate("Rome?", tools=[SCHEMA])
    assert row.metadata["finish_reason"] == "tool_calls"
    assert [(each.name, each.arguments) for each in row.tool_calls or ()] == [
        ("weather", {"city": "Rome"})
    ]


def test_broken_arguments_are_an_error_that_the_model_reads(server: ScriptedServer) -> None:
    def script(path: str, body: Any) -> Reply:
        if body and body["messages"][-1]["role"] == "user":
            return chat(None, [call("weather", '{"city": ')], "tool_calls")
        return chat("sorry") if body else echo(path, body)

    server.script = script
    with connected(server) as engine:
        [row] = engine.generate("Rome?", tools=[weather])
    assert row.completion == "sorry"
    assert "not JSON" in row.metadata["tool_calls"][0]["error"]
    [sent] = server.bodies[1]["messages"][1]["tool_calls"]
    assert sent["function"]["arguments"] == '{"city": '


@pytest.mark.parametrize(
    ("params", "turns", "limit", "reason"),
    [({}, 3, "max_assistant_turns", "tool_calls"), ({"max_tokens": 6}, 2, "max_tokens", "length")],
)
def test_limits_end_the_turns(
    server: ScriptedServer, params: dict[str, Any], turns: int, limit: str, reason: str
) -> None:
    calls = [call("weather", '{"city": "Rome"}')]
    server.script = lambda path, body: chat("", calls, "tool_calls") if body else echo(path, body)
    with connected(server, rollout={"multi_turn": {"max_assistant_turns": 3}}) as engine:
        [row] = engine.generate("Rome?", tools=[weather], **params)
    assert row.metadata["num_turns"] == turns == len(server.bodies)
    assert (row.metadata["limit"], row.metadata["finish_reason"]) == (limit, reason)
    lefts = [body["max_tokens"] for body in server.bodies]
    assert lefts == [lefts[0] - 3 * turn for turn in range(turns)]


# ── What is refused ──────────────────────────────────────────────────────────────────────────────


def test_keywords_calls_and_prompts_that_it_lacks_are_refused_before_anything_is_sent(
    server: ScriptedServer,
) -> None:
    keywords: dict[str, Any] = {"top_k": 4, "stop_token_ids": [3], "skip_special_tokens": False}
    keywords |= {"chat_template_kwargs": {"enable_thinking": False}, "truncate_prompt": "left"}
    says = "the backend openai does not offer it"
    with connected(server) as engine:
        for name, value in keywords.items():
            with refused(ConfigError, says, key=name):
                engine.generate("a", **{name: value})
        for call in (
            *(engine.serve, engine.sleep, engine.wake_up),
            *(lambda: engine.score("a", "b"), lambda: engine.get_logits("a", "b")),
            *(lambda: engine.rollout_batch("a"), lambda: engine.update_weights({})),
        ):
            with refused(ConfigError, rf"\(\): {says}"):
                call()
        for prompt in ({"prompt_token_ids": [1]}, {"text": ""}, "\ud800", ""):
            with pytest.raises(PromptError, match="^prompt 1[: ]"):
                engine.generate(["a", prompt])
    assert server.bodies == []


# ── The engine ───────────────────────────────────────────────────────────────────────────────────


def test_engine_says_what_it_is_restarts_and_says_when_it_is_shut_down(
    server: ScriptedServer,
) -> None:
    engine = connected(server)
    assert repr(engine) == f"<InferenceEngine: {MODEL} (openai, {server.base_url})>"
    engine.generate("a")
    engine.restart()
    assert engine.generate("a").completions == ["A"] and engine.stats()["restarts"] == 1
    engine.shutdown()
    assert engine.dead and repr(engine).endswith(", shut down>")
    with pytest.raises(EngineDeadError, match="shut down"):
        engine.generate("a")
    assert repr(object.__new__(InferenceEngine)) == "<InferenceEngine: not started>"


def test_closed_stream_closes_its_connection(server: ScriptedServer) -> None:
    server.script = lambda path, body: streamed("x" * 9999) if body else echo(path, body)
    with connected(server) as engine:
        stream = engine.stream("a")
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        server.script = echo
        assert engine.generate("a").completions == ["A"]
