"""The `openai` package: what is answered plainly, streamed, parsed and read as events."""

from __future__ import annotations

from typing import Any

from checks import (
    CALL,
    FACTS,
    GREETING,
    QUESTION,
    SCORED,
    SERVER,
    Color,
    calculator,
    called_once,
    close,
    equal,
    seen,
)
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel

client = OpenAI(**SERVER)
MODEL = client.models.list().data[0].id
GREET = [{"role": "user", "content": GREETING["prompt"]}]
ASK = [{"role": "user", "content": QUESTION["prompt"]}]
AT_0: dict[str, Any] = {"model": MODEL, "temperature": 0}


class Calculator(BaseModel):
    expression: str


def answered() -> None:
    more = {"return_token_ids": True}
    whole = client.chat.completions.create(messages=GREET, extra_body=more, **AT_0)
    [choice] = whole.choices
    equal(choice.message.content, GREETING["text"])
    equal(choice.token_ids, GREETING["token_ids"])
    equal(whole.prompt_token_ids, GREETING["prompt_ids"])
    chunks = client.chat.completions.create(messages=GREET, stream=True, **AT_0)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    equal(text, GREETING["text"])
    other = client.with_options(base_url=FACTS["scored_url"])
    model = other.models.list().data[0].id
    settings = {"max_tokens": len(SCORED["token_ids"]), "logprobs": 0, "extra_body": more}
    choice = other.completions.create(
        model=model, prompt=SCORED["prompt_ids"], temperature=0, **settings
    ).choices[0]
    equal(choice.token_ids, SCORED["token_ids"])
    close(choice.logprobs.token_logprobs, SCORED["logprobs"])


def streamed_events() -> None:
    """A call as the events of `.stream()`, its result sent back, and the answer that follows."""
    tools = [pydantic_function_tool(Calculator, name="calculator")]
    with client.chat.completions.stream(messages=ASK, tools=tools, **AT_0) as stream:
        events = list(stream)
        message = stream.get_final_completion().choices[0].message
    done = [each for each in events if each.type == "tool_calls.function.arguments.done"]
    equal([(each.name, each.arguments) for each in done], [CALL])
    assert any(each.type == "tool_calls.function.arguments.delta" for each in events)
    [call] = message.tool_calls
    result = calculator(call.function.parsed_arguments.expression)
    called_once()
    later = [*ASK, message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    with client.chat.completions.stream(messages=later, tools=tools, **AT_0) as stream:
        events = list(stream)
    equal("".join(each.delta for each in events if each.type == "content.delta"), QUESTION["text"])
    equal([each.content for each in events if each.type == "content.done"], [QUESTION["text"]])


def parsed() -> None:
    whole = client.chat.completions.parse(messages=GREET, response_format=Color, **AT_0)
    message = whole.choices[0].message
    assert isinstance(message.parsed, Color)
    later = [*GREET, message, *GREET]  # the message itself goes back, with what was parsed
    client.chat.completions.parse(messages=later, response_format=Color, **AT_0)
    tool = pydantic_function_tool(Calculator, name="calculator")
    forced = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    whole = client.chat.completions.parse(messages=ASK, max_tokens=128, **forced, **AT_0)
    [call] = whole.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Calculator)
    with client.chat.completions.stream(messages=GREET, response_format=Color, **AT_0) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Color)


answered()
streamed_events()
parsed()
seen("openai")
