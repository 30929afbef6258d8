"""The `anthropic` package against the server: every method that we serve."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel

from _inf.apps.serve.server import InferenceServer
from inf import InferenceEngine
from tests.support.serve_clients import CHAT, KEY, Http, user
from tests.support.tool_calling import CALCULATOR, GREETED, GREETING, answer, question

anthropic = pytest.importorskip("anthropic", reason="the anthropic package comes with SGLang")
pytestmark = pytest.mark.engine
FUNCTION = CALCULATOR["function"]
TOOL = {"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}
TOOL["description"] = FUNCTION["description"]


def connected(server: InferenceServer, name: str = "") -> Any:
    options = {"base_url": Http(server, name).root, "api_key": KEY, "max_retries": 0}
    return anthropic.Anthropic(**options)


@pytest.fixture
def asked(caller: InferenceEngine) -> dict[str, Any]:
    model = caller.config.model_name
    return {"model": model, "max_tokens": 64, "messages": [user(GREETING)]}


def test_message_is_the_chats_answer(asked: Any, caller_server: InferenceServer) -> None:
    chat = Http(caller_server).post(CHAT, **asked)
    messages = connected(caller_server).messages
    whole = messages.create(**asked)
    [block] = whole.content
    assert block.text == chat["choices"][0]["message"]["content"] == GREETED
    usage = whole.usage
    read = usage.input_tokens + usage.cache_read_input_tokens
    assert (read, usage.output_tokens) == (
        chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"]
    )  # fmt: skip
    with messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == GREETED
        assert stream.get_final_message().usage.output_tokens == usage.output_tokens
    del asked["max_tokens"]
    assert messages.count_tokens(**asked).input_tokens == read


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "any"}])
def test_tool_runs_and_the_conversation_is_one_trace(
    stream: bool, choice: Any, asked: Any, caller_server: InferenceServer
) -> None:
    name = f"anthropic-{stream}-{choice['type']}"
    api = connected(caller_server, name).messages
    asked |= {"messages": [user(question("12 * 7"))], "tools": [TOOL]}

    def ask(**more: Any) -> Any:
        if not stream:
            return api.create(**asked, **more)
        with api.stream(**asked, **more) as events:
            return events.get_final_message()

    message = ask(tool_choice=choice)
    assert message.stop_reason == "tool_use"
    [call] = message.content
    assert (call.name, call.input) == ("calculator", {"expression": "12 * 7"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "84"}
    asked["messages"] += [message.to_param(), {"role": "user", "content": [result]}]
    final = ask()
    assert [block.text for block in final.content] == [answer("84")]
    [trace] = caller_server.traces(name)
    assert len(trace.finish_reasons) == 2
    assert sum(trace.response_mask) == message.usage.output_tokens + final.usage.output_tokens


def test_tool_runner_of_the_package_runs_a_tool(asked: Any, caller_server: InferenceServer) -> None:
    """It asks for a conversation that the server stores, and then sends the whole one."""

    @anthropic.beta_tool
    def calculator(expression: str) -> str:
        """The calculator.

        Args:
            expression: The expression.
        """
        return {"12 * 7": "84"}[expression]

    asked["messages"] = [user(question("12 * 7"))]
    api = connected(caller_server, "runner").beta.messages
    final = api.tool_runner(**asked, tools=[calculator]).until_done()
    assert [block.text for block in final.content] == [answer("84")]
    [trace] = caller_server.traces("runner")
    assert trace.finish_reasons == ["tool_calls", "stop"]


def test_answer_of_a_schema_is_parsed(asked: Any, caller_server: InferenceServer) -> None:
    class Color(BaseModel):
        color: Literal["red", "green"]

    parsed = connected(caller_server).messages.parse(**asked, output_format=Color).parsed_output
    assert parsed.color in ("red", "green")


def test_errors_are_the_packages(asked: Any, caller_server: InferenceServer) -> None:
    messages = connected(caller_server).messages
    with pytest.raises(anthropic.NotFoundError, match="there is only"):
        messages.create(**asked | {"model": "another"})
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        messages.create(**asked | {"messages": [user("Hi " * 3000)]})
