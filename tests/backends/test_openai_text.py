"""The backend on a server that takes and gives text, with a scripted one."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from inf import ConfigError, EngineDeadError, InferenceEngine, PromptError
from tests.support.refusals import refused
from tests.support.running import begun
from tests.support.scripted_server import (
    MODEL,
    Reply,
    call,
    chat,
    connected,
    echo,
)

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def weather(city: str) -> str:
    """
    The weather in a city.

    Args:
        city: The city's name.
    """
    return f"Sunny in {city}"


def test_messages_go_out_and_text_comes_back(server, tmp_path):
    history = [{"role": "system", "content": "Be loud."}, {"role": "user", "content": "so"}]
    with connected(server) as engine:
        assert repr(engine) == f"<InferenceEngine: {MODEL} (openai, {server.base_url})>"
        output = engine.generate(["hi", history], max_tokens=[4, 5], temperature=0.5, stop="END")
        assert engine.tokenizer is None and engine.stats()["completion_tokens"] == 6
        with refused(ConfigError, "^tokenizer_path: it must be set"):
            engine.escape_special_tokens("hi")
        engine.restart()
        assert engine.generate("a").completions == ["A"]
    with pytest.raises(EngineDeadError, match="shut down"):
        engine.generate("a")
    assert repr(object.__new__(InferenceEngine)) == "<InferenceEngine: not started>"
    assert output.completions == ["HI", "SO"]
    assert output.token_ids == output.logprobs == [None, None]
    about = output.metadata[1]
    assert (about["prompt_tokens"], about["completion_tokens"], about["cached_tokens"]) == (7, 3, 2)
    assert about["response_ids"] == [] and about["cumulative_logprob"] is None
    sent = sorted(server.bodies[:2], key=lambda body: body["max_tokens"])
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    assert sent[0] == asked | {"temperature": 0.5, "stop": ["END"]}
    assert sent[1]["messages"] == history
    # Tables and files lack the columns of tokens.
    assert "token_ids" not in output.to_dict()[0] and "logprobs" not in output.to_pandas()
    output.save(tmp_path / "rows.parquet")
    assert "<td" in output._repr_html_() and "(3 tokens, stop)" in repr(output[0])


def test_plain_text_goes_to_completions_and_a_schema_is_the_response_format(server):
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
    assert schema["json_schema"]["schema"] == CITY | {"additionalProperties": False}
    assert set(third) == {"model", "messages", "max_tokens", "temperature"}


def test_newer_name_of_max_tokens_is_used_where_the_server_asks_for_it(server):
    words = "'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
    no = Reply({"error": {"message": words, "param": "max_tokens"}}, status=400)
    server.script = lambda path, body: no if "max_tokens" in (body or {}) else echo(path, body)
    with connected(server) as engine:
        assert engine.generate(["a"], max_tokens=9).completions == ["A"]
        assert engine.generate(["b"], max_tokens=9).completions == ["B"]
    assert [body.get("max_completion_tokens") for body in server.bodies] == [None, 9, 9]


def test_chunks_of_a_stream_are_the_answer(server):
    function = {"name": "weather", "arguments": ""}
    parts = [{"index": 0, "id": "c", "type": "function", "function": function}]
    parts += [{"index": 0, "function": {"arguments": text}} for text in ('{"city":', ' "Rome"}')]
    events = [{"choices": [{"delta": {"tool_calls": [part]}}]} for part in parts]
    events.append({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    schema = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
    with connected(server) as engine:
        chunks = list(engine.stream("hello"))
        assert "".join(chunk.text for chunk in chunks) == "HELLO"
        assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
        assert all(chunk.token_ids == [] for chunk in chunks)
        assert engine.stats()["completion_tokens"] == 3
        server.script = lambda path, body: Reply(events=events)
        *_, last = engine.stream("Rome?", tools=[schema])
    assert last.finish_reason == "tool_calls"


def test_tools_run_between_turns(server):
    """Also where the arguments are broken: the model reads its error, and what it wrote."""

    def script(path: str, body: Any) -> Reply:
        if body["messages"][-1]["role"] == "tool":
            return chat(body["messages"][-1]["content"] + "!")
        calls = [call("weather", '{"city": '), call("weather", '{"city": "Oslo"}', 1)]
        calls = [each | {"index": 0} for each in calls]  # some servers number each so
        return chat(None, calls, "tool_calls")

    server.script = script
    with connected(server) as engine:
        [row] = engine.generate("Rome and Oslo?", tools=[weather])
    assert row.completion == "Sunny in Oslo!" and row.metadata["finish_reason"] == "stop"
    broken, done = row.metadata["tool_calls"]
    assert "not JSON" in broken["error"] and done["result"] == "Sunny in Oslo"
    assert row.metadata["completion_tokens"] == 6 and row.metadata["num_turns"] == 2
    asked, assistant, *results = server.bodies[1]["messages"]
    assert server.bodies[0]["tools"][0]["function"]["name"] == "weather"
    sent = [each["function"]["arguments"] for each in assistant["tool_calls"]]
    assert sent[0] == '{"city": ' and json.loads(sent[1]) == {"city": "Oslo"}
    ids = [each["id"] for each in assistant["tool_calls"]]
    assert [result["tool_call_id"] for result in results] == ids and len(set(ids)) == 2
    assert assistant["content"] is None and "name" not in results[0]
    assert "token_ids" not in row.to_dict() and row.to_dict()["executed_tool_calls"]


def test_answer_without_a_finish_reason_has_stopped(server):
    server.script = lambda path, body: chat("Rome", finish=None)
    with connected(server) as engine:
        [row] = engine.generate("Rome?")
    assert (row.completion, row.finish_reason) == ("Rome", "stop")


def test_max_tokens_is_of_all_turns(server):
    calls = [call("weather", '{"city": "Rome"}')]
    server.script = lambda path, body: chat("", calls, "tool_calls")
    with connected(server) as engine:
        [row] = engine.generate("Rome?", tools=[weather], max_tokens=6)
    assert (row.metadata["limit"], row.metadata["finish_reason"]) == ("max_tokens", "length")
    assert [body["max_tokens"] for body in server.bodies] == [6, 3]


def test_short_call_does_not_wait_for_all_rows_of_a_long_one(server):
    server.script = lambda path, body: Reply(echo(path, body).body, wait=0.02 if body else 0)
    with connected(server, rollout={"max_num_seqs": 1}) as engine:
        long = begun(lambda: engine.generate([f"a{i}" for i in range(20)], tools=[weather]))
        while not server.bodies:
            time.sleep(0.001)
        engine.generate("b")
        assert len(server.bodies) < 10
        assert len(long.result(60)) == 20


def test_what_it_lacks_and_wrong_prompts_are_refused_before_anything_is_sent(server):
    """All features are in `test_registry.py`."""
    says = "the backend openai does not offer it"
    with connected(server) as engine:
        with refused(ConfigError, says, key="top_k"):
            engine.generate("a", top_k=4)
        with refused(ConfigError, rf"\(\): {says}"):
            engine.rollout_batch("a")
        for prompt in ({"prompt_token_ids": [1]}, {"text": ""}, "\ud800", ""):
            with pytest.raises(PromptError, match="^prompt 1[: ]"):
                engine.generate(["a", prompt])
    assert server.bodies == []
