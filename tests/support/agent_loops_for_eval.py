"""Agent loops as users of verl write them, for evaluations of them.

A file of its own, which tests copy, name in a YAML file and edit: it uses nothing of this project.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register

AGAIN = "\n<|im_start|>user\nAre you sure?<|im_end|>\n<|im_start|>assistant\n"


class Loop(AgentLoopBase):
    def __init__(self, *args: Any, name: str = "", ask: str = AGAIN, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.between = self.tokenizer.encode(ask, add_special_tokens=False)

    async def ask(self, ids: list[int], params: dict[str, Any]) -> list[int]:
        output = await self.server_manager.generate(
            request_id=uuid4().hex, prompt_ids=ids, sampling_params=params
        )
        return list(output.token_ids)

    def rendered(self, messages: Any) -> list[int]:
        return list(
            self.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=True
            )
        )

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Two turns, of the sampled ids."""
        prompt = self.rendered(row["raw_prompt"])
        first = await self.ask(prompt, sampling_params)
        second = await self.ask(prompt + first + self.between, sampling_params)
        mask = [1] * len(first) + [0] * len(self.between) + [1] * len(second)
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=first + self.between + second,
            response_mask=mask,
            num_turns=4,
            metrics={},
        )


@register("two_turns")
class TwoTurns(Loop):
    """Says which columns it got."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        output = await super().run(sampling_params, **row)
        columns = {name: value for name, value in row.items() if name != "raw_prompt"}
        output.extra_fields = {"columns": columns}
        return output


@register("renders_again")
class RendersAgain(Loop):
    """Returns its first answer in capitals, as if the model had said it so."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        output = await super().run(sampling_params, **row)
        length = output.response_mask.index(0)
        text = self.tokenizer.decode(output.response_ids[:length]).upper()
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        output.response_ids = ids + output.response_ids[length:]
        output.response_mask = [1] * len(ids) + output.response_mask[length:]
        return output


@register("scores_itself")
class ScoresItself(Loop):
    """Scores the rows with an even index, and gives row 4 no number."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        output = await super().run(sampling_params, **row)
        output.extra_fields = {"reward_extra_info": {"acc": 1.0}}
        if row["index"] % 2 == 0:
            output.reward_score = 0.25 if row["index"] < 4 else float("nan")
        return output


@register("raises")
class Raises(Loop):
    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        if row["index"] == 1:
            raise ValueError("the game is over")
        return await super().run(sampling_params, **row)
