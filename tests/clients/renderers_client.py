"""renderers' `generate`, which renders a chat by itself and sends token ids: turns of a session."""

from __future__ import annotations

import asyncio
from typing import Any

from checks import (
    FACTS,
    GREETING,
    KEY,
    QUESTION,
    calculator,
    called_once,
    close,
    equal,
    recorded,
    seen,
    session,
)
from openai import AsyncOpenAI
from renderers import DefaultRendererConfig, Qwen3RendererConfig, create_renderer
from renderers.base import load_tokenizer
from renderers.client import generate

AT_0 = {"temperature": 0, "max_tokens": 64}


def client(root: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{root}/v1", api_key=KEY, max_retries=0, timeout=60)


async def sampled(model: str) -> None:
    """The tokens and log probs of a seed are the engine's."""
    renderer = create_renderer(load_tokenizer(FACTS["model_folder"]), DefaultRendererConfig())
    asked = {"client": client(FACTS["root"]), "renderer": renderer, "model": model}
    messages = [{"role": "user", "content": GREETING["prompt"]}]
    said = await generate(messages=messages, sampling_params=FACTS["drawing"], **asked)
    equal(said["completion_ids"], FACTS["drawn"]["token_ids"])
    close(said["completion_logprobs"], FACTS["drawn"]["logprobs"])


async def with_tools(model: str) -> None:
    """The client finds the call; its caller runs the tool and renders the next turn anew."""
    config = DefaultRendererConfig(tool_parser="qwen3")
    renderer = create_renderer(load_tokenizer(FACTS["model_folder"]), config)
    asked = {"client": client(session()), "renderer": renderer, "model": model}
    asked |= {"tools": [FACTS["tool"]]}
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION["prompt"]}]
    said = await generate(messages=messages, sampling_params=AT_0, **asked)
    equal(said["prompt_ids"], QUESTION["prompt_ids"])
    equal(said["completion_ids"], QUESTION["token_ids"])
    close(said["completion_logprobs"], QUESTION["logprobs"])
    equal(said["finish_reason"], "tool_calls")
    [call] = said["tool_calls"]
    result = calculator(**call.arguments)
    called_once()
    about = {"name": call.name, "arguments": call.arguments}
    calls = [{"type": "function", "function": about}]
    messages += [{"role": "assistant", "content": "", "tool_calls": calls}]
    messages += [{"role": "tool", "content": result}]
    said = await generate(messages=messages, sampling_params=AT_0, **asked)
    equal(said["content"], QUESTION["text"])


async def in_turns(model: str) -> None:
    """The second turn's prompt is the first one's ids and what follows, without rendering."""
    tokenizer = load_tokenizer(FACTS["model_folder"])
    tokenizer.add_tokens(["<think>", "</think>"])  # the renderer looks for them; none is sent here
    renderer = create_renderer(tokenizer, Qwen3RendererConfig(thinking_retention="all"))
    root = session()
    asked = {"client": client(root), "renderer": renderer, "model": model, "sampling_params": AT_0}
    [first, second] = FACTS["guesses"]
    messages = [{"role": "user", "content": FACTS["guess"]}]
    said = await generate(messages=messages, **asked)
    equal(said["content"], first)
    more = [{"role": "user", "content": FACTS["doubt"]}]
    bridged = renderer.bridge_to_next_turn(said["prompt_ids"], said["completion_ids"], more)
    later = await generate(messages=messages, prompt_ids=bridged.token_ids, **asked)
    equal(later["content"], second)
    ids = said["prompt_ids"] + said["completion_ids"]
    equal(bridged.token_ids[: len(ids)], ids)
    trace = recorded(root)
    ids = later["prompt_ids"] + later["completion_ids"]
    equal(trace["prompt_token_ids"] + trace["token_ids"], ids)
    masked = [*said["completion_ids"], *later["completion_ids"]]
    sampled = zip(trace["token_ids"], trace["response_mask"], strict=True)
    equal([token for token, mask in sampled if mask], masked)


async def main() -> None:
    await sampled(FACTS["model"])
    await with_tools(FACTS["model"])
    await in_turns(FACTS["model"])


asyncio.run(main())
seen("renderers")
