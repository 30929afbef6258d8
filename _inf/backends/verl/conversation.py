"""verl's multi-turn path, with a row's truth kept by an `Episode`.

The loop is upstream's own (verl 0.6.1, `workers/rollout/sglang_rollout/sglang_rollout.py`,
`_req_level_generate_sequences` and `_async_rollout_a_request`): it decides who speaks next. What it
reaches for on the way is ours, and corrects that

- a request is rendered again at every turn, so that the ids which come out are not those that were
  sampled, and the template's glue counts as sampled (`workers/rollout/schemas.py`);
- the caller's `max_new_tokens` is overwritten, and log probs and finish reasons are dropped;
- calls to unknown tools and broken ones are lost, a tool that raises cancels the whole batch, the
  last call at the turn limit is passed over in silence;
- log probs are computed by a second pass, and sliced wrongly.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from pydantic import model_validator
from sglang.srt.function_call.core_types import ToolCallItem
from verl import DataProto
from verl.workers.rollout.schemas import (
    AsyncRolloutRequest,
    AsyncRolloutRequestStateEnum,
    FinishReasonTypeEnum,
    Message,
    TokenizationSanityCheckModeEnum,
)

from _inf.backends.verl.engine import current_call, sglang_rollout
from _inf.conversation.episode import DEFAULT_INTERACTION, Episode
from _inf.conversation.tool_lifecycle import BoundedInteraction, RewardingTool, current_episode
from _inf.errors import EngineDeadError
from _inf.response.columns import column
from _inf.types import RequestOutput

UNLIMITED = 2**31 - 1  # lengths and turns are the episode's to count
CALL = "(call)"  # no tool's name: under it upstream's loop finds what runs any call

R = TypeVar("R", bound="Conversing")


class Conversation(AsyncRolloutRequest):
    """verl's request, whose ids and masks are the episode's."""

    episode: Any

    @model_validator(mode="before")
    @classmethod
    def initialize_request(cls, values: dict[str, Any]) -> dict[str, Any]:
        """In place of upstream's, which renders the prompt anew, three times."""
        episode = values["episode"]
        ids = torch.tensor([episode.prompt_ids])
        ones, zeros = torch.ones_like(ids), torch.zeros_like(ids)
        positions = ids.new_tensor([range(ids.shape[1])])
        return {
            **values,
            "request_id": episode.name,
            "state": AsyncRolloutRequestStateEnum.PENDING,
            "messages": [
                Message(role=message["role"], content=message["content"])
                for message in episode.messages
            ],
            **{name: ids for name in ("input_ids", "prompt_ids")},
            **{name: ones for name in ("attention_mask", "prompt_attention_mask")},
            **{name: positions for name in ("position_ids", "prompt_position_ids")},
            **{name: zeros for name in ("loss_mask", "prompt_loss_mask")},
            "tools_kwargs": {
                name: episode.tools_kwargs.get(name, {}) for name in _rewarding(episode)
            },
            "tool_schemas": [tool.tool_schema for tool in _rewarding(episode).values()],
            "interaction_kwargs": episode.interaction_kwargs,
            "reward_scores": {},
            "multi_modal_inputs": {},
            "max_prompt_len": UNLIMITED,
            "max_response_len": UNLIMITED,
            "max_model_len": UNLIMITED,
            "use_inference_chat_template": False,
            "tokenization_sanity_check_mode": TokenizationSanityCheckModeEnum.DISABLE,
            "base_conv_wo_gen_prompt_end_pos": 0,
            "base_conv_with_gen_prompt_end_pos": 0,
        }

    def __deepcopy__(self, memo: Any = None) -> Conversation:
        """Upstream copies a request before it changes it; this one is used once."""
        return self

    def get_generation_prompt_ids(self, processing_class: Any) -> list[int]:
        return list(self.episode.prompt_ids + self.episode.ids)

    def add_assistant_message(
        self, processing_class: Any, content: str, content_ids: Any = None, tool_calls: Any = None
    ) -> None:
        content = next(
            (m["content"] for m in reversed(self.episode.messages) if m["role"] == "assistant"), ""
        )
        self.messages.append(Message(role="assistant", content=content, tool_calls=tool_calls))

    def add_tool_response_messages(self, processing_class: Any, contents: list[Any]) -> None:
        """`contents`: what `_Calls` gave; before the first turn, what a tool's `create` did."""
        if self.episode.to_run:
            self.episode.hear_results(contents)
            self.messages += [Message(role="tool", content=done.text) for done in contents]

    def add_user_message(self, processing_class: Any, content: str) -> None:
        self.messages.append(Message(role="user", content=content))
        self.episode.hear_user(content)

    def finalize(
        self,
        processing_class: Any,
        reward_scores: dict[str, Any],
        finish_reason_type: Any = FinishReasonTypeEnum.STOP,
    ) -> None:
        self.state = AsyncRolloutRequestStateEnum.COMPLETED
        self.episode.conclude()
        self.episode.reward_scores = self.reward_scores = reward_scores
        ids, mask = (
            torch.tensor([self.episode.ids]).long(),
            torch.tensor([self.episode.mask]).long(),
        )
        self.response_ids, self.response_loss_mask = ids, mask
        self.response_attention_mask = torch.ones_like(ids)
        start = self.prompt_ids.shape[1]
        self.response_position_ids = torch.arange(start, start + ids.shape[1])[None, :]


def _rewarding(episode: Episode) -> dict[str, Any]:
    """verl's own tools among the call's: they are created, rewarded and released for each row."""
    return {name: tool.verl for name, tool in episode.rules.tools.items() if tool.verl is not None}


class _Parser:
    """Stands in for SGLang's `FunctionCallParser`: the episode has read the calls already."""

    def has_tool_call(self, text: str) -> bool:
        return bool(current_episode.get().to_run)

    def parse_non_stream(self, text: str) -> tuple[str, list[ToolCallItem]]:
        return text, [
            ToolCallItem(tool_index=place, name=CALL, parameters=json.dumps({"place": place}))
            for place in range(len(current_episode.get().to_run))
        ]


class _Calls:
    """Stands in for the tool of every call; what it gives goes to `add_tool_response_messages`."""

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[Any, float, dict[str, Any]]:
        return await current_episode.get().run(parameters["place"]), 0.0, {}


class Conversing(sglang_rollout.SGLangRollout):
    """The part of verl's rollout that holds conversations; `conversing` makes one for a call."""

    _episodes: Sequence[Episode] = ()

    def _preprocess_prompt_to_async_rollout_requests(
        self, prompts: DataProto, n: int = 1
    ) -> list[Conversation]:
        return [
            Conversation(batch_data_id=row, episode=episode)
            for row, episode in enumerate(self._episodes)
        ]

    async def _async_rollout_a_request(self, req: Any, *args: Any, **kwargs: Any) -> Any:
        """What goes wrong in a row is the row's own, but for what ends the whole call."""
        episode: Episode = req.episode
        current_episode.set(episode)
        try:
            await super()._async_rollout_a_request(req, *args, **kwargs)
        except Exception as failure:
            if isinstance(failure, EngineDeadError) or self._engine.refusal is not None:
                raise
            episode.abandon(None, f"{type(failure).__name__}: {failure}")
            req.finalize(self.processing_class, {})
        finally:
            for name in _rewarding(episode):  # those that upstream's loop did not come to
                await self._tool_map[name].release(episode.name)
            named = episode.interaction_kwargs.get("name", DEFAULT_INTERACTION)
            if interaction := self.interaction_map.get(named):
                await interaction.finish(episode.name)
        self._report(finished=episode)
        return req

    async def _handle_engine_call(
        self, _req: Any, sampling_params: dict[str, Any], image_data: Any = None
    ) -> dict[str, Any]:
        """In place of upstream's, which overwrites `max_new_tokens`. To its loop, "length" means
        that there is no further turn."""
        episode: Episode = _req.episode
        ids: list[int] = []
        if not episode.over:
            answer = await self._engine.turn(*episode.next_request())
            episode.take(answer)
            ids = answer.token_ids
            self._report()
        finish = {"type": "length" if episode.over else "stop"}
        return {"output_ids": ids, "meta_info": {"finish_reason": finish}}

    def _report(self, finished: Episode | None = None) -> None:
        if finished is not None:
            finished.finished = True
        if (report := current_call.get().report) is not None:
            done = sum(episode.finished for episode in self._episodes)
            report(done, sum(sum(episode.mask) for episode in self._episodes))

    def _create_padding_request(self, original_req: Any) -> Any:
        original_req.episode.abandon("over_sample_rate")
        return super()._create_padding_request(original_req)


def conversing(rollout: R, episodes: Sequence[Episode]) -> R:
    """A copy of `rollout`, on the same engine, that holds these conversations."""
    rules = episodes[0].rules
    talk = copy.copy(rollout)
    talk._episodes = episodes
    talk._function_call_parser = _Parser() if rules.tools else None
    talk._tool_map = {CALL: _Calls()} | {
        name: RewardingTool(tool) for name, tool in _rewarding(episodes[0]).items()
    }
    talk.interaction_map = {
        name: BoundedInteraction(each, name) for name, each in rollout.interaction_map.items()
    }
    turns = dataclasses.replace(
        rollout.config.multi_turn,
        enable=True,
        max_assistant_turns=rules.max_assistant_turns,
        max_user_turns=rules.max_user_turns,
    )
    talk.config = dataclasses.replace(
        rollout.config,
        multi_turn=turns,
        max_model_len=UNLIMITED,
        calculate_log_probs=False,
        over_sample_rate=rules.over_sample_rate,
    )
    return talk


def transcribed(output: DataProto, episodes: Sequence[Episode], version: int) -> DataProto:
    """With log probs, and the rows as the engine gave them, turn by turn."""
    width = output.batch["responses"].shape[1]
    logprobs = [episode.logprobs + [0.0] * (width - len(episode.ids)) for episode in episodes]
    output.batch["rollout_log_probs"] = torch.tensor(logprobs)
    output.non_tensor_batch["rows"] = column([_row(episode, version) for episode in episodes])
    return output


def _row(episode: Episode, version: int) -> RequestOutput:
    sampled = [place for place, mine in enumerate(episode.mask) if mine]
    first, last = episode.answers[:1], episode.answers[-1:]
    return RequestOutput(
        token_ids=[episode.ids[place] for place in sampled],
        logprobs=[episode.logprobs[place] for place in sampled],
        prompt_logprobs=[],
        finish_reason=episode.finish_reason,
        matched_stop=next((answer.matched_stop for answer in last), None),
        prompt_tokens=len(episode.prompt_ids),
        completion_tokens=len(sampled),
        cached_tokens=sum(answer.cached_tokens for answer in first),
        weight_version=max((answer.weight_version for answer in last), default=version),
        transcript=episode.transcript(),
    )
