"""langchain-openai: a bound tool, streams, log probs, and both forms of structured output."""

from __future__ import annotations

from checks import (
    FACTS,
    GREETING,
    QUESTION,
    SERVER,
    Color,
    calculator,
    called_once,
    close,
    equal,
    seen,
)
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model=FACTS["model"], temperature=0, **SERVER)
bound = model.bind_tools([tool(calculator)], parallel_tool_calls=False)

asked = [HumanMessage(QUESTION["prompt"])]
said = bound.invoke(asked)
[call] = said.tool_calls
equal((call["name"], call["args"]), ("calculator", {"expression": "12 * 7"}))
result = calculator(**call["args"])
called_once()
later = [*asked, said, ToolMessage(result, tool_call_id=call["id"])]
equal(bound.invoke(later).content, QUESTION["text"])

joined = None
for chunk in bound.stream(asked):
    joined = chunk if joined is None else joined + chunk
equal([(each["name"], each["args"]) for each in joined.tool_calls], [(call["name"], call["args"])])
chunks = [chunk.content for chunk in bound.stream(later)]
equal("".join(chunks), QUESTION["text"])
assert len(chunks) > 1

said = model.bind(logprobs=True, top_logprobs=2).invoke(GREETING["prompt"])
equal(said.content, GREETING["text"])
content = said.response_metadata["logprobs"]["content"]
close([each["logprob"] for each in content], GREETING["logprobs"])
equal(said.usage_metadata["input_tokens"], len(GREETING["prompt_ids"]))

for method in ("json_schema", "function_calling"):
    found = model.with_structured_output(Color, method=method).invoke(GREETING["prompt"])
    assert isinstance(found, Color)

seen("langchain-openai")
