"""What a served engine refuses: with which status, naming what, and without dying of it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from _inf.apps.serve.bodies import ChatBody
from _inf.apps.serve.completion_bodies import CompletionBody
from _inf.apps.serve.connections import MAX_BODY_BYTES
from _inf.apps.serve.responses import ChatResponses
from _inf.apps.serve.token_bodies import SglangBody, TokensBody
from _inf.backends.openai.http import httpx
from inf import ConfigError
from tests.support.serve_clients import CHAT, COMPLETION, SGLANGS, TOKENS, Http, client, user

ASK = [user("Hi")]
WIDE = {"type": "object", "unevaluatedProperties": False}  # no grammar enforces it
WIDE_TOOL = {"type": "function", "function": {"name": "f", "parameters": WIDE}}
TOOL, OTHER_TOOL = ({"type": "function", "function": {"name": name}} for name in "fg")
BAD_SCHEMA = {"minimum": "a"}
# The routes that answer, their bodies, and a right one of each.
FORMS = {
    CHAT: (ChatBody, {"messages": ASK, "max_tokens": 2}),
    COMPLETION: (CompletionBody, {"prompt": "Hi", "max_tokens": 2}),
    TOKENS: (TokensBody, {"token_ids": [5], "sampling_params": {"max_tokens": 2}}),
    SGLANGS: (SglangBody, {"input_ids": [5]}),
}


def of_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def error(response: httpx.Response) -> dict[str, Any]:
    found = response.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


# What is wrong with the value of a keyword is in tests/request; here, that its name comes through,
# and what only a body can have.
WRONG = [  # a route, fields, and how the message begins
    (CHAT, {"tempersture": 1}, "tempersture: unknown key; did you mean 'temperature'?"),
    (CHAT, {"stop_regex": 1}, "stop_regex: unknown"),  # not "stop"
    (CHAT, {"prompt_token_ids": 1}, "prompt_token_ids: unknown key; /v1/completions takes"),
    (SGLANGS, {"sampling_params": {"ebnf": "a"}}, "sampling_params.ebnf: unknown"),
    (CHAT, {"n": 129}, "n: 129"),
    (CHAT, {"max_tokens": 5, "max_completion_tokens": 5}, "max_completion_tokens: max_tokens is"),
    (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "the prompt, message 0"),
    (CHAT, {"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type: 'custom' too"),
    (CHAT, {"tool_choice": TOOL, "tools": [OTHER_TOOL]}, "tool_choice: there is no tool 'f'"),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format: {'type': 'xml'} is none of"),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options: it needs"),
    (CHAT, {"stream": True, "prompt_logprobs": 0}, "prompt_logprobs: a stream does not"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs: it needs"),
    (CHAT, {"chat_template_kwargs": {"chat_template": "Hi"}}, "chat_template_kwargs"),
    (CHAT, {"continue_final_message": True, "add_generation_prompt": True},
     "add_generation_prompt: continue_final_message is set"),
    (CHAT, {"logprob_token_ids": [5]}, "logprob_token_ids: it needs logprobs"),
    (CHAT, {"best_of": 2}, "best_of: answers are not ranked"),
    (CHAT, {"cache_salt": ""}, "cache_salt"),
    (CHAT, {"temperature": 2.5}, "temperature: 2.5"),
    (CHAT, {"echo": True, "messages": [*ASK, {"role": "assistant", "content": "A"}]}, "echo: "),
    (CHAT, {"response_format": of_schema(BAD_SCHEMA)}, "response_format.json_schema.schema.min"),
    (CHAT, {"json_schema": {}, "response_format": of_schema({})}, "response_format: json_schema"),
    (CHAT, {"tools": [WIDE_TOOL], "tool_choice": "required"}, "tools[0].function.parameters"),
    (COMPLETION, {"prompt": [1, "a"]}, "prompt: "),
    (COMPLETION, {"prompt": ["a"] * 9, "n": 128}, "n: 9 prompts with 128"),
    (COMPLETION, {"prompt": [[5] * 500] * 8, "n": 128, "prompt_logprobs": 128}, "prompt_logprobs"),
    (COMPLETION, {"tools": [TOOL]}, "tools: only /v1/chat/completions has it"),
    (COMPLETION, {"stream": True, "echo": True, "logprobs": 0}, "echo: a stream does not"),
    (COMPLETION, {"logprobs": 21}, "logprobs: 21"),
    (COMPLETION, {"structured_outputs": {"regex": "a", "choice": ["b"]}},
     "structured_outputs.choice: regex and choice are set"),
    (COMPLETION, {"structured_outputs": {"regex": "a"}, "regex": "a"}, "structured_outputs: regex"),
    (COMPLETION, {"structured_outputs": {}}, "structured_outputs.json: it is missing"),
    (TOKENS, {"sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens: 0"),
    (SGLANGS, {"text": "Hi"}, "input_ids: give either input_ids or text"),
    (SGLANGS, {"sampling_params": {"json_schema": '{"minimum": "a"}'}},
     "sampling_params.json_schema.minimum"),
    (SGLANGS, {"input_ids": [[1], [99999]]}, "prompt 1"),
    (SGLANGS, {"logprob_start_len": 0, "return_logprob": True}, "logprob_start_len: only -1"),
]  # fmt: skip
# Of an error about a prompt, whose message begins with the prompt's number.
OF_PROMPTS = {CHAT: "messages", COMPLETION: "prompt", TOKENS: "token_ids", SGLANGS: "input_ids"}


@pytest.mark.parametrize(("route", "fields", "says"), WRONG)
def test_wrong_field_is_named_in_a_400(route, fields, says, http):
    response = http.send(route, **FORMS[route][1] | fields)
    found = error(response)
    assert (response.status_code, found["type"]) == (400, "invalid_request_error")
    assert found["message"].startswith(says)
    if ": unknown" in says:
        assert found["message"].startswith(f"{found['param']}: unknown")
        assert found["code"] == "unknown_parameter" and ("; " in says) == ("; " in found["message"])
    else:
        assert found["param"] in {OF_PROMPTS[route], *fields}
        assert found["code"] in (None, "context_length_exceeded")


def test_wrong_model_has_openais_error_body(http):
    for response in (
        http.send(CHAT, messages=ASK, model="gpt-5"),
        http.send(TOKENS, token_ids=[5], sampling_params={}, model="gpt-5"),
        http.send("/tokenize", prompt="a", model="gpt-5"),
        http.client.get("/v1/models/gpt-5"),
    ):
        assert response.status_code == 404
        assert (error(response)["param"], error(response)["code"]) == ("model", "model_not_found")


def test_body_that_cannot_be_read_is_refused(http):
    for body, status in (
        (b"", 400),
        (b"[]", 400),
        (b'{"prompt": "a", "temperature": 1e400}', 400),
        (b" " * (MAX_BODY_BYTES + 1), 413),
    ):
        response = http.client.post(COMPLETION, content=body)
        assert response.status_code == status and error(response)["message"]


# ─── Every field ───


def test_wrong_value_of_any_field_is_refused_and_then_requests_are_answered(http):
    for route, (form, body) in FORMS.items():
        checked = [name for name, field in form.model_fields.items() if field.annotation != Any]
        bodies = [{**body, name: [[None]]} for name in [*checked, "?"]]
        bodies.append(dict([*body.items()][1:]))
        for text in (json.dumps(body)[:-1], *map(json.dumps, bodies)):
            response = http.client.post(route, content=text)
            assert 400 <= response.status_code < 500, (response.status_code, text)
            assert error(response)["message"]
    http.post(COMPLETION, prompt="Hi", max_tokens=1)


# ─── Addresses and keys ───


def test_address_beyond_this_machine_needs_a_key_and_a_taken_port_is_named(tiny, tiny_server):
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.com"):
        with pytest.raises(ConfigError, match="api_key"):
            tiny.serve(host=host)
    port = int(tiny_server.base_url.rpartition(":")[2].removesuffix("/v1"))
    with pytest.raises(ConfigError, match=str(port)):
        tiny.serve(port=port)


def test_command_refuses_a_wrong_address_before_an_engine_starts(command):
    for option, value, says in (
        ("--host", "0.0.0.0", "--api-key-env"),
        ("--api-key-env", "INF_NO_KEY", "INF_NO_KEY"),
    ):
        code, _, err = command("serve", option, value)
        assert code == 2 and says in err


def test_requests_need_the_key_and_it_is_in_no_log(tiny, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    for name in ("httpcore", "httpx", "openai"):  # the client's own logs
        caplog.set_level(logging.CRITICAL, logger=name)
    with tiny.serve(api_key="correct-horse") as server:
        http = Http(server).client
        for key in (None, "correct-hors", "correct-horsee", "ä"):
            headers = {} if key is None else {"Authorization": f"Bearer {key}".encode()}
            for path in ("/v1/models", "/metrics"):
                response = http.get(path, headers=headers)
                assert response.status_code == 401
                assert response.headers["WWW-Authenticate"] == "Bearer"
                assert error(response)["code"] == "invalid_api_key"
        health = http.get("/health")
        assert health.status_code == 200 and tiny.config.model_name not in health.text
        right = client(server, api_key="correct-horse")
        prompt = "a secret prompt"
        right.completions.create(model=tiny.config.model_name, prompt=prompt, max_tokens=1)
    said = caplog.text + "".join(capfd.readouterr())
    assert "correct-horse" not in said and prompt not in said


def test_page_of_another_site_may_not_send_requests(tiny_server):
    """Browsers send such a request without asking the server first."""
    text, http = json.dumps({"prompt": "Hi", "max_tokens": 1}), Http(tiny_server, "of-a-page")
    for origin, status in {
        "https://evil.example": 403,
        "http://localhost.evil.example": 403,
        "http://evil.example/127.0.0.1": 403,
        "null": 403,
        "http://[": 403,
        "http://localhost:3000": 200,
        "http://[::1]": 200,
    }.items():
        headers = {"Origin": origin, "Content-Type": "text/plain"}
        response = http.client.post(COMPLETION, content=text, headers=headers)
        assert response.status_code == status
        assert status == 200 or error(response)["type"] == "invalid_request_error"
        assert bool(tiny_server.sessions()) == (status == 200)


def test_no_other_origin_may_read_and_no_other_name_of_this_machine_ask(http):
    response = http.client.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    for host, status in (("evil.example", 400), ("localhost:8000", 200)):
        assert http.client.get("/v1/models", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(("stream", "method"), [(False, "whole"), (True, "events")])
def test_exception_of_a_bug_is_a_500_and_its_message_is_in_no_log(
    stream, method, http, monkeypatch, caplog, capfd
):
    secret = "a prompt"

    def fail(*_: Any) -> None:
        raise RuntimeError(secret)

    caplog.set_level(logging.DEBUG)
    with monkeypatch.context() as broken:
        broken.setattr(ChatResponses, method, fail)
        response = http.send(CHAT, messages=ASK, max_tokens=1, stream=stream)
    assert response.status_code == 500 and error(response)["type"] == "server_error"
    said = response.text + caplog.text + "".join(capfd.readouterr())
    assert secret not in said
    assert "RuntimeError" in caplog.text and "in fail" in caplog.text
