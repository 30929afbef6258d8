"""pydantic-ai: an agent with a tool, run and streamed, and outputs by a schema and a call."""

from __future__ import annotations

import asyncio

from checks import FACTS, GREETING, KEY, QUESTION, Color, calculator, called_once, equal, seen
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

MODEL = OpenAIChatModel(
    FACTS["model"], provider=OpenAIProvider(base_url=FACTS["base_url"], api_key=KEY)
)
AT_0 = OpenAIChatModelSettings(temperature=0, parallel_tool_calls=False)


async def main() -> None:
    agent = Agent(MODEL, model_settings=AT_0, tools=[calculator])
    result = await agent.run(QUESTION["prompt"])
    equal(result.output, QUESTION["text"])
    called_once()

    async with agent.run_stream(QUESTION["prompt"]) as stream:
        deltas = [delta async for delta in stream.stream_text(delta=True, debounce_by=None)]
    equal("".join(deltas), QUESTION["text"])
    assert len(deltas) > 1
    called_once()

    for form in (NativeOutput(Color), ToolOutput(Color)):
        agent = Agent(MODEL, model_settings=AT_0, output_type=form)
        result = await agent.run(GREETING["prompt"])
        assert isinstance(result.output, Color)


asyncio.run(main())
seen("pydantic-ai-slim")
