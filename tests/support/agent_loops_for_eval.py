"""Agent loops as users of verl write them, for evaluations of them: tests copy this file, name it
in a YAML file and edit it."""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register

from tests.support import agent_loops


class Loop(agent_loops.Loop):
    """Two turns, of the sampled ids; their log probs are left to whoever recorded them."""

    def __init__(self, *args: Any, name: str = "", ask: str = "Are you sure?", **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.again = ask

    def said(self, *given: Any, **more: Any) -> Any:
        return super().said(*given, num_turns=4)


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
