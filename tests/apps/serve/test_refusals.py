"""What a served engine refuses: with which status, naming what, and without dying of it."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _inf.apps.cli import main
from _inf.apps.serve.bodies import ChatBody, CompletionBody
from _inf.apps.serve.connections import MAX_BODY_BYTES
from _inf.apps.serve.responses import ChatResponses
from _inf.apps.serve.server import InferenceServer
from _inf.apps.serve.token_bodies import SglangBody, TokensBody
from _inf.backends.openai.http import httpx
from inf import ConfigError, InferenceEngine
from tests.support.serve_clients import client

ASK = [{"role": "user", "content": "Hi"}]
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
TOKENS, SGLANGS = "/inference/v1/generate", "/generate"
WIDE = {"type": "object", "unevaluatedProperties": False}  # no grammar enforces it
WIDE_TOOL = {"type": "function", "function": {"name": "f", "parameters": WIDE}}
TOOL, OTHER_TOOL = ({"type": "function", "function": {"name": name}} for name in "fg")
# The routes that answer, their bodies, and a right one of each.
FORMS: list[tuple[str, Any, dict[str, Any]]] = [
    (CHAT, ChatBody, {"messages": ASK, "max_tokens": 2}),
    (COMPLETION, CompletionBody, {"prompt": "Hi", "max_tokens": 2}),
    (TOKENS, TokensBody, {"token_ids": [5], "sampling_params": {"max_tokens": 2}}),
    (SGLANGS, SglangBody, {"input_ids": [5]}),
]


def of_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.fixture(scope="module")
def http(tiny_server: InferenceServer) -> httpx.Client:
    return httpx.Client(base_url=tiny_server.base_url.removesuffix("/v1"), timeout=60)


def error(response: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = response.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


# What is wrong with the value of a keyword is in tests/request; here, that its name comes through,
# and what only a body can have.
UNKNOWN = [  # a route, fields of a body, the key that is named, and the hint
    (CHAT, {"tempersture": 1}, "tempersture", "temperature"),
    (CHAT, {"verbosity": "low"}, "verbosity", None),
    (CHAT, {"stream": True, "stream_options": {"include_usag": True}},
     "stream_options.include_usag", "include_usage"),
    (COMPLETION, {"structured_outputs": {"jsn": "{}"}}, "structured_outputs.jsn", "json"),
    (COMPLETION, {"suffix": "x"}, "suffix", None),
    (TOKENS, {"sampling_params": {"best_off": 1}}, "sampling_params.best_off", None),
    (TOKENS, {"features": {}}, "features", None),
    (SGLANGS, {"sampling_params": {"ebnf": "a"}}, "sampling_params.ebnf", None),
]  # fmt: skip
WRONG = [  # a route, fields of a body, the field that is named, and words of the message
    (CHAT, {"temperature": "1"}, "temperature", ""),
    (CHAT, {"n": 129}, "n", ""),
    (CHAT, {"max_tokens": 5, "max_completion_tokens": 5}, "max_completion_tokens", ""),
    (CHAT, {"messages": []}, "messages", ""),
    (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages", ""),
    (CHAT, {"tools": [{"type": "function"}]}, "tools", ""),
    (CHAT, {"tool_choice": "required"}, "tool_choice", ""),
    (CHAT, {"tool_choice": TOOL, "tools": [OTHER_TOOL]}, "tool_choice", ""),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format", ""),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options", ""),
    (CHAT, {"stream": True, "prompt_logprobs": 0}, "prompt_logprobs", ""),
    (CHAT, {"top_logprobs": 2}, "top_logprobs", ""),
    (CHAT, {"logit_bias": {"999999": 1}}, "logit_bias", ""),
    (CHAT, {"stream": True, "seed": -2}, "seed", ""),
    (CHAT, {"chat_template_kwargs": {"chat_template": "Hi"}}, "chat_template_kwargs", ""),
    (CHAT, {"continue_final_message": True, "add_generation_prompt": True},
     "add_generation_prompt", ""),
    (CHAT, {"continue_final_message": True}, "messages", "has the role user"),
    (CHAT, {"allowed_token_ids": []}, "allowed_token_ids", ""),
    (CHAT, {"logprob_token_ids": [5]}, "logprob_token_ids", "it needs logprobs"),
    (CHAT, {"best_of": 2}, "best_of", ""),
    (CHAT, {"cache_salt": ""}, "cache_salt", ""),
    (CHAT, {"max_tokens": 12000}, "max_tokens", ""),
    (CHAT, {"max_tokens": None, "max_completion_tokens": 12000}, "max_completion_tokens", ""),
    (CHAT, {"response_format": of_schema({"minimum": "a"})}, "response_format", ""),
    (CHAT, {"response_format": of_schema({"x": 1}), "stream": True}, "response_format", ""),
    (CHAT, {"structured_outputs": {"json": {"minimum": "a"}}}, "structured_outputs", ""),
    (CHAT, {"json_schema": {"minimum": "a"}}, "json_schema", ""),
    (CHAT, {"tools": [WIDE_TOOL], "tool_choice": "required"}, "tools", ""),
    (CHAT, {"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools", ""),
    (COMPLETION, {"prompt": []}, "prompt", ""),
    (COMPLETION, {"prompt": [[99999]]}, "prompt", ""),
    (COMPLETION, {"prompt": [1, "a"]}, "prompt", ""),
    (COMPLETION, {"prompt": ["a"] * 9, "n": 128}, "n", ""),
    (COMPLETION, {"prompt": [[5] * 500] * 8, "n": 128, "prompt_logprobs": 128}, "prompt_logprobs",
     ""),
    (COMPLETION, {"prompt_logprobs": 129}, "prompt_logprobs", ""),
    (COMPLETION, {"tools": [TOOL]}, "tools", ""),
    (COMPLETION, {"continue_final_message": True}, "continue_final_message", ""),
    (COMPLETION, {"parallel_tool_calls": False}, "parallel_tool_calls", ""),
    (COMPLETION, {"reasoning_effort": "low"}, "reasoning_effort", ""),
    (COMPLETION, {"echo": 1}, "echo", ""),
    (COMPLETION, {"stream": True, "echo": True, "logprobs": 0}, "echo", ""),
    (COMPLETION, {"logprobs": 21}, "logprobs", ""),
    (COMPLETION, {"best_of": 2}, "best_of", ""),
    (COMPLETION, {"top_k": -2}, "top_k", ""),
    (COMPLETION, {"max_tokens": 12000, "stream": True}, "max_tokens", ""),
    (COMPLETION, {"stream": True, "stream_options": {"include_obfuscation": True}},
     "stream_options", ""),
    (COMPLETION, {"structured_outputs": {"regex": "("}}, "structured_outputs", ""),
    (COMPLETION, {"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", ""),
    (COMPLETION, {"structured_outputs": {}}, "structured_outputs", ""),
    (COMPLETION, {"structured_outputs": {"choice": []}}, "structured_outputs", ""),
    (COMPLETION, {"structured_outputs": {"regex": "a"}, "regex": "a"}, "structured_outputs", ""),
    (COMPLETION, {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
     "structured_outputs", ""),
    (TOKENS, {"sampling_params": {"max_tokens": 0}}, "sampling_params", "max_tokens: 0"),
    (TOKENS, {"token_ids": [99999]}, "token_ids", "vocabulary"),
    (TOKENS, {"token_ids": [5] * 513}, "token_ids", "513 tokens"),
    (TOKENS, {"stream_options": {}}, "stream_options", "stream"),
    (SGLANGS, {"text": "Hi"}, "input_ids", "either input_ids or text"),
    (SGLANGS, {"sampling_params": {"max_new_tokens": 0}}, "sampling_params",
     "sampling_params.max_new_tokens: 0"),
    (SGLANGS, {"sampling_params": {"max_new_tokens": 12000}}, "sampling_params",
     "max_tokens=12000"),
    (SGLANGS, {"sampling_params": {"json_schema": '{"minimum": "a"}'}}, "sampling_params",
     "sampling_params.json_schema.minimum"),
    (SGLANGS, {"sampling_params": {"logit_bias": {"999999": 1}}}, "sampling_params",
     "sampling_params.logit_bias: 999999"),
    (SGLANGS, {"input_ids": [[1], [99999]]}, "input_ids", "prompt 1"),
    (SGLANGS, {"logprob_start_len": 0, "return_logprob": True}, "logprob_start_len", "-1"),
]  # fmt: skip


def refused(http: httpx.Client, route: str, fields: dict[str, Any]) -> dict[str, Any]:
    [given] = [given for path, _, given in FORMS if path == route]
    response = http.post(route, json=given | fields)
    found = error(response)
    assert (response.status_code, found["type"]) == (400, "invalid_request_error")
    return found


@pytest.mark.parametrize(("route", "fields", "key", "hint"), UNKNOWN)
def test_unknown_key_is_named_with_its_path(
    route: str, fields: dict[str, Any], key: str, hint: str | None, http: httpx.Client
) -> None:
    found = refused(http, route, fields)
    assert (found["param"], found["code"]) == (key, "unknown_parameter")
    assert found["message"].startswith(f"{key}: unknown")
    assert (f"did you mean {hint!r}" in found["message"]) == (hint is not None)


@pytest.mark.parametrize(("route", "fields", "param", "says"), WRONG)
def test_wrong_field_is_named_in_a_400(
    route: str, fields: dict[str, Any], param: str, says: str, http: httpx.Client
) -> None:
    found = refused(http, route, fields)
    assert found["param"] == param and found["message"] and says in found["message"]
    assert found["code"] in (None, "context_length_exceeded")
    assert not found["message"].startswith("json_schema") or param == "json_schema"


def test_wrong_model_route_or_method_has_openais_error_body(http: httpx.Client) -> None:
    for response in (
        http.post(CHAT, json={"messages": ASK, "model": "gpt-5"}),
        http.post(TOKENS, json={"token_ids": [5], "sampling_params": {}, "model": "gpt-5"}),
        http.get("/v1/models/gpt-5"),
    ):
        assert response.status_code == 404
        assert (error(response)["param"], error(response)["code"]) == ("model", "model_not_found")
    assert http.get("/nothing").status_code == 404 and error(http.get("/nothing"))
    assert http.get(CHAT).status_code == 405 and error(http.get(CHAT))


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_beyond_the_context_is_named_so(
    stream: bool, http: httpx.Client, tiny: InferenceEngine
) -> None:
    limits = tiny.model.limits
    long = [5] * (limits.prompt + 1)
    for fields in ({"prompt": long}, {"prompt": "Hi", "max_tokens": limits.total}):
        response = http.post(COMPLETION, json={**fields, "stream": stream})
        assert response.status_code == 400
        assert error(response)["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"\xff", 400),
        (b'{"prompt": "a", "temperature": 1e400}', 400),
        (b'{"prompt": "a", "temperature": NaN}', 400),
        (b"[" * 100_000, 400),
        (b" " * (MAX_BODY_BYTES + 1), 413),
    ],
)
def test_body_that_cannot_be_read_is_refused(body: bytes, status: int, http: httpx.Client) -> None:
    response = http.post(COMPLETION, content=body)
    assert response.status_code == status and error(response)["message"]


# ─── Random bodies ───

WRONG_VALUES = st.sampled_from([{"?": []}, [{"?": 1}], [[None]]])  # of any field
FIELDS = "messages temperature top_p top_k n max_tokens seed stop stop_token_ids logit_bias "
FIELDS += "response_format tools tool_choice stream stream_options logprobs prompt model echo "
FIELDS += "structured_outputs prompt_logprobs best_of parallel_tool_calls reasoning_effort "
FIELDS += "return_tokens_as_token_ids token_ids input_ids sampling_params return_logprob rid"


@st.composite
def bad_bodies(draw: Any) -> tuple[str, bytes]:
    """A route, and a body that it must refuse."""
    route, form, given = draw(st.sampled_from(FORMS))
    body = dict(given)
    known = sorted(form.model_fields.keys() & FIELDS.split())
    match draw(st.sampled_from(["value", "key", "text", "missing"])):
        case "value":
            body[draw(st.sampled_from(known))] = draw(WRONG_VALUES)
        case "key":
            names = st.text(min_size=1).filter(lambda name: name not in form.model_fields)
            body[draw(names)] = draw(st.integers() | st.text())
        case "missing":
            del body[next(iter(body))]
        case "text":
            text = json.dumps(body).encode()
            return route, text[: draw(st.integers(0, len(text) - 1))]
    return route, json.dumps(body).encode()


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.soak)])
def test_bad_bodies_are_refused_and_then_requests_are_answered(
    count: int, http: httpx.Client
) -> None:
    @settings(max_examples=count, deadline=None)
    @given(case=bad_bodies())
    def refuses(case: tuple[str, bytes]) -> None:
        route, body = case
        response = http.post(route, content=body)
        assert 400 <= response.status_code < 500, (response.status_code, response.text)
        assert error(response)["message"]

    refuses()
    assert http.post(COMPLETION, json={"prompt": "Hi", "max_tokens": 1}).status_code == 200


# ─── Addresses and keys ───


def test_address_beyond_this_machine_needs_a_key_and_a_taken_port_is_named(
    tiny: InferenceEngine, tiny_server: InferenceServer
) -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.com"):
        with pytest.raises(ConfigError, match="api_key"):
            tiny.serve(host=host)
    port = int(tiny_server.base_url.rpartition(":")[2].removesuffix("/v1"))
    with pytest.raises(ConfigError, match=str(port)):
        tiny.serve(port=port)


def test_command_refuses_a_wrong_address_before_an_engine_starts(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INF_TEST_KEY", raising=False)
    assert main(["serve", "--host", "0.0.0.0"]) == 2
    assert "--api-key-env" in capfd.readouterr().err
    assert main(["serve", "--api-key-env", "INF_TEST_KEY"]) == 2
    assert "INF_TEST_KEY" in capfd.readouterr().err
    assert "INF_TEST_KEY" not in os.environ


def test_requests_need_the_key_and_it_is_in_no_log(
    tiny: InferenceEngine,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("httpcore", "httpx", "openai"):  # the client's own logs
        caplog.set_level(logging.CRITICAL, logger=name)
    with tiny.serve(api_key="correct-horse") as server:
        root = server.base_url.removesuffix("/v1")
        for key in (None, "correct-hors", "correct-horsee", "ä"):
            headers = {} if key is None else {"Authorization": f"Bearer {key}".encode()}
            for url in (f"{root}/v1/models", f"{root}/metrics"):
                response = httpx.get(url, headers=headers)
                assert response.status_code == 401
                assert error(response)["code"] == "invalid_api_key"
        health = httpx.get(f"{root}/health", timeout=60)
        assert health.status_code == 200 and tiny.config.model_name not in health.text
        right = client(server, api_key="correct-horse")
        prompt = "a secret prompt"
        right.completions.create(model=tiny.config.model_name, prompt=prompt, max_tokens=1)
    said = caplog.text + "".join(capfd.readouterr())
    assert "correct-horse" not in said and prompt not in said


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("http://evil.example/127.0.0.1", 403),
        ("null", 403),
        ("http://[", 403),
        ("http://localhost:3000", 200),
        ("http://[::1]", 200),
    ],
)
def test_page_of_another_site_may_not_send_requests(
    origin: str, status: int, tiny_server: InferenceServer
) -> None:
    """Browsers send such a request without asking the server first."""
    headers = {"Origin": origin, "Content-Type": "text/plain"}
    text = json.dumps({"prompt": "Hi", "max_tokens": 1})
    for url in (tiny_server.base_url, tiny_server.session_url("of-a-page")):
        response = httpx.post(f"{url}/completions", content=text, headers=headers, timeout=60)
        assert response.status_code == status
        assert status == 200 or error(response)["type"] == "invalid_request_error"
    assert ("of-a-page" in tiny_server.sessions()) == (status == 200)
    httpx.delete(tiny_server.session_url("of-a-page").removesuffix("/v1"))


def test_no_other_origin_may_read_and_no_other_name_of_this_machine_ask(
    http: httpx.Client,
) -> None:
    response = http.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert http.get("/v1/models", headers={"Host": "evil.example"}).status_code == 400
    assert http.get("/v1/models", headers={"Host": "localhost:8000"}).status_code == 200


@pytest.mark.parametrize(("stream", "method"), [(False, "whole"), (True, "events")])
def test_exception_of_a_bug_is_a_500_and_its_message_is_in_no_log(
    stream: bool,
    method: str,
    http: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    secret = "a prompt"

    def fail(*_: Any) -> None:
        raise RuntimeError(secret)

    caplog.set_level(logging.DEBUG)
    with monkeypatch.context() as broken:
        broken.setattr(ChatResponses, method, fail)
        response = http.post(CHAT, json={"messages": ASK, "max_tokens": 1, "stream": stream})
    assert response.status_code == 500 and error(response)["type"] == "server_error"
    said = response.text + caplog.text + "".join(capfd.readouterr())
    assert secret not in said
    assert "RuntimeError" in caplog.text and "in fail" in caplog.text
