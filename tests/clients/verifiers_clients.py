"""verifiers' clients: for training, in turns whose ids go on, and for evaluation."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

from checks import CALL, FACTS, QUESTION, close, equal, recorded, seen, session
from renderers import Qwen3RendererConfig
from renderers.base import load_tokenizer
from verifiers.v1 import (
    AgentConfig,
    AgentInfo,
    EvalClientConfig,
    Trace,
    TraceTask,
    TrainClientConfig,
    WireTaskData,
    resolve_client,
)
from verifiers.v1.dialects import ChatDialect
from verifiers.v1.graph import prepare_turn
from verifiers.v1.types import SamplingConfig, UserMessage

MODEL = FACTS["model"]
AT_0 = SamplingConfig(temperature=0, max_tokens=64)
KEY = {"api_key_var": "NONE_IS_NEEDED"}


async def train(folder: str) -> None:
    """Two turns of a session; the second prompt is the first one's ids and what follows."""
    tokenizer = load_tokenizer(FACTS["model_folder"])
    tokenizer.add_tokens(["<think>", "</think>"])  # the renderer looks for them; none is sent here
    tokenizer.save_pretrained(folder)
    root = session()
    config = TrainClientConfig(
        base_url=f"{root}/v1",
        renderer=Qwen3RendererConfig(thinking_retention="all"),
        renderer_model_name=folder,
        **KEY,
    )
    client = resolve_client(config)
    task = TraceTask(type="guess", data=WireTaskData(idx=0))
    trace = Trace(task=task, agent=AgentInfo(config=AgentConfig()))
    said: list[Any] = []
    messages: list[Any] = []
    for asked, answer in zip((FACTS["guess"], FACTS["doubt"]), FACTS["guesses"], strict=True):
        messages.append(UserMessage(content=asked))
        turn = prepare_turn(trace, messages)
        response = await client.get_response(
            ChatDialect(), {"model": MODEL}, AT_0, session_id=trace.id, turn=turn
        )
        turn.commit(response)
        equal(response.message.content, answer)
        messages.append(response.message)
        said.append(response.tokens)
    await client.close()
    assert said[1].bridged
    found = recorded(root)
    ids = said[1].prompt_ids + said[1].completion_ids
    equal(found["prompt_token_ids"] + found["token_ids"], ids)
    logprobs = [value for each in said for value in each.completion_logprobs]
    pairs = zip(found["logprobs"], found["response_mask"], strict=True)
    close([value for value, mask in pairs if mask], logprobs)


async def evaluate() -> None:
    client = resolve_client(EvalClientConfig(base_url=FACTS["base_url"], **KEY))
    body = {"model": MODEL, "temperature": 0, "tools": [FACTS["tool"]]}
    ask = {"role": "user", "content": QUESTION["prompt"]}
    response = await client.get_response(ChatDialect(), {**body, "messages": [ask]}, AT_0)
    [call] = response.message.tool_calls
    equal((call.name, call.arguments), CALL)
    result = {"role": "tool", "tool_call_id": call.id, "content": "84"}
    later = [ask, response.raw["choices"][0]["message"], result]
    response = await client.get_response(ChatDialect(), {**body, "messages": later}, AT_0)
    equal(response.message.content, QUESTION["text"])
    await client.close()


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(train(folder))
asyncio.run(evaluate())
seen("verifiers")
