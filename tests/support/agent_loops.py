"""Agent loops as users of verl write them: right ones, and each kind of wrong one.

They use only what verl 0.6 to 0.9 have in common, and nothing of this project.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import uuid4

import pydantic
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopOutput,
    AsyncLLMServerManager,
    register,
)
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop


class Loop(AgentLoopBase):
    """Asks, and asks again after a user's message; `turn` is what subclasses change."""

    turns = 2
    again = "Are you sure?"

    async def ask(self, ids: list[int], params: dict[str, Any]) -> Any:
        return await self.server_manager.generate(
            request_id=uuid4().hex, prompt_ids=ids, sampling_params=params
        )

    def rendered(self, messages: list[dict[str, str]]) -> list[int]:
        ids: list[int] = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True
        )
        return ids

    def between(self) -> list[int]:
        """The template's ids from the end of an answer to the beginning of the next one."""
        text = f"\n<|im_start|>user\n{self.again}<|im_end|>\n<|im_start|>assistant\n"
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def said(self, prompt: list[int], ids: list[int], mask: list[int], **more: Any) -> Any:
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=ids,
            response_mask=mask,
            **{"num_turns": 2 * self.turns, "metrics": {}, **more},
        )

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        prompt = self.rendered(list(kwargs["raw_prompt"]))
        ids, mask, logprobs = [], [], []
        for turn in range(self.turns):
            if turn:
                between = self.between()
                ids, mask = ids + between, mask + [0] * len(between)
                logprobs += [0.0] * len(between)
            output = await self.ask(prompt + ids, sampling_params)
            ids, mask = ids + output.token_ids, mask + [1] * len(output.token_ids)
            logprobs += output.log_probs
        return self.said(prompt, ids, mask, response_logprobs=logprobs)


@register("exact")
class Exact(Loop):
    """Two turns; appends the sampled ids."""


class Columns(Loop):
    """Returns the columns that it got, a score, and its constructor's keywords."""

    turns = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.own = {name: kwargs[name] for name in kwargs if name in ("name", "limit")}

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        output = await super().run(sampling_params, **kwargs)
        columns = {name: value for name, value in kwargs.items() if name != "raw_prompt"}
        output.extra_fields = {"columns": columns, "own": self.own, "params": sampling_params}
        output.reward_score = 0.5
        return output


class Invents(Loop):
    """Returns ids with mask 1 that were not sampled."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        return self.said(self.rendered(list(kwargs["raw_prompt"])), [7, 7], [1, 1])


class Sampling(Loop):
    """Takes its sampling parameters from the row."""

    turns = 1

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        return await super().run(sampling_params | kwargs["params"], **kwargs)


class Wrong(Loop):
    """Does what its row says, in place of a right answer."""

    turns = 1

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        prompt = self.rendered(list(kwargs["raw_prompt"]))
        match kwargs.get("how"):
            case "raises":
                raise ValueError("the game is over")
            case "exits":
                raise SystemExit(3)
            case "cancels":
                asyncio.current_task().cancel()
                await asyncio.sleep(60)
            case "none":
                return None
            case "mask":
                return self.said(prompt, [1, 2], [1])
            case "twos":
                return self.said(prompt, [1, 2], [1, 2])
            case "long":
                return self.said(prompt, [1] * 9999, [1] * 9999)
            case "odd ids":
                return self.said(prompt, [1, -1], [1, 1])
            case "image":
                return self.said(prompt, [1], [1], multi_modal_data={"image": "x"})
            case "asks with an image":
                await self.server_manager.generate(
                    "1", prompt_ids=prompt, sampling_params={}, image_data=["x"]
                )
            case "asks for nothing":
                await self.ask([], sampling_params)
            case "asks for too much":
                await self.ask([1] * 99999, sampling_params)
            case "asks for two":
                await self.ask(prompt, sampling_params | {"n": 2})
            case "asks with an unknown parameter":
                await self.ask(prompt, sampling_params | {"temprature": 1})
        return await super().run(sampling_params, **kwargs)


class Blocks(Loop):
    """Blocks its thread before it asks."""

    turns = 1
    begun, goes_on = threading.Event(), threading.Event()

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        self.begun.set()
        assert self.goes_on.wait(30)
        return await super().run(sampling_params, **kwargs)


class CatchesAll(Loop):
    """Goes on for ever, whatever its requests raise, until it is cancelled."""

    begun: list[Any] = []
    cancelled: list[Any] = []

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        prompt = self.rendered(list(kwargs["raw_prompt"]))
        try:
            self.begun.append(kwargs["index"])
            while True:
                try:
                    await self.ask(prompt, sampling_params)
                except Exception:
                    await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.cancelled.append(kwargs["index"])
            raise


class Late(Loop):
    """Leaves a request behind that it does not wait for."""

    turns = 1
    left: list[asyncio.Task[Any]] = []

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        prompt = self.rendered(list(kwargs["raw_prompt"]))
        self.left.append(asyncio.ensure_future(self.ask(prompt, sampling_params)))
        return self.said(prompt, [], [])


class NeedsMore(Loop):
    def __init__(self, *args: Any, limit: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class Exits(Loop):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise SystemExit(4)


class LeavesExit(Loop):
    """A task that it leaves on the loop ends it, or stops it."""

    turns = 1

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        async def exits() -> None:
            raise SystemExit(3)

        left = asyncio.ensure_future(exits())
        self.loop.call_soon(self.loop.stop)
        await asyncio.sleep(0.05)
        output = await super().run(sampling_params, **kwargs)
        assert isinstance(left.exception(), SystemExit)
        return output


class Client(pydantic.BaseModel):
    """What pydantic checks of verl's langgraph recipe."""

    model_config = {"arbitrary_types_allowed": True}
    client: AsyncLLMServerManager


class GivesItsClient(Loop):
    turns = 1

    async def ask(self, ids: list[int], params: dict[str, Any]) -> Any:
        client = Client(client=self.server_manager).client
        return await client.generate("1", prompt_ids=ids, sampling_params=params)


class WithTools(ToolAgentLoop):
    """A user's subclass, whose class verl's `init_class` prepares too."""

    @classmethod
    def init_class(cls, **kwargs: Any) -> None:
        if not cls._class_initialized:
            print("my own class begins")
        super().init_class(**kwargs)


class Calls(Loop):
    """Calls an engine's `generate`, with an agent loop, on the thread of agent loops."""

    turns = 1
    engine: Any

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        self.engine.generate("One", agent_loop=Exact, max_tokens=3)
        return await super().run(sampling_params, **kwargs)


class Awaits(Calls):
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        inner = await self.engine.agenerate("One", agent_loop=Exact, temperature=0, max_tokens=12)
        output = await Loop.run(self, sampling_params, **kwargs)
        output.extra_fields = {"inner": inner.token_ids}
        return output


def add(one: int, other: int) -> int:
    """Adds.

    Args:
        one: The one.
        other: The other.
    """
    return one + other
