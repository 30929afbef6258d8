"""openai-agents: an agent with a tool, run and streamed, and one with a typed output."""

from __future__ import annotations

import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import FACTS, GREETING, QUESTION, SERVER, Color, calculator, called_once, equal, seen
from openai import AsyncOpenAI

MODEL = OpenAIChatCompletionsModel(FACTS["model"], AsyncOpenAI(**SERVER))
AT_0 = ModelSettings(temperature=0, parallel_tool_calls=False)


async def main() -> None:
    tools = [function_tool(calculator)]
    agent = Agent(name="calculating", model=MODEL, model_settings=AT_0, tools=tools)
    result = await Runner.run(agent, QUESTION["prompt"])
    equal(result.final_output, QUESTION["text"])
    called_once()

    stream = Runner.run_streamed(agent, QUESTION["prompt"])
    events = [event async for event in stream.stream_events()]
    equal(stream.final_output, QUESTION["text"])
    called_once()
    names = [event.name for event in events if event.type == "run_item_stream_event"]
    equal(names, ["tool_called", "tool_output", "message_output_created"])

    agent = Agent(name="typed", model=MODEL, model_settings=AT_0, output_type=Color)
    result = await Runner.run(agent, GREETING["prompt"])
    assert isinstance(result.final_output, Color)


set_tracing_disabled(True)
asyncio.run(main())
seen("openai-agents")
