"""The state of one row's conversation; `mask` is 1 on exactly the sampled tokens."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from _inf.conversation.environments import Environment
from _inf.conversation.rules import Rules, answered_calls
from _inf.errors import PromptError, RequestFailure, at_fault, error_text
from _inf.request.seeds import derived_seed
from _inf.tools.execution import Executed
from _inf.tools.parsing import Parsed
from _inf.types import (
    Message,
    Prompt,
    Request,
    RequestOutput,
    SamplingParams,
    ToolCall,
    Transcript,
    TurnOptions,
)


class Episode:
    """One row while it runs; used on one thread."""

    def __init__(
        self,
        prompt: Prompt,
        params: SamplingParams,
        turns: TurnOptions,
        rules: Rules,
        environment: Environment | None = None,
    ) -> None:
        self.name = str(uuid.uuid4())
        self.environment = environment
        self.rules = rules
        self.turns = turns
        self.prompt_ids = list(prompt.token_ids)
        self.ids: list[int] = []  # after the prompt
        self.mask: list[int] = []
        self.logprobs: list[float] = []
        self.messages: list[Message] = [dict(message) for message in prompt.messages or ()]
        self._given = len(self.messages)
        self._rendered = False  # the prompt, by the row itself
        self.to_run: list[ToolCall] = []
        self.outputs: list[RequestOutput] = []  # the backend's, one per turn
        self.reward_scores: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.limit: str | None = None
        self.error: str | None = None
        self.over = False  # no further turn follows
        self.concluded = not turns.interaction_kwargs  # ended by the interaction itself
        self.finished = False
        self._pending: list[ToolCall] = []
        self._records: list[dict[str, Any]] = []
        self._params = params

    @property
    def tokens(self) -> int:
        """How many were sampled so far."""
        return sum(self.mask)

    async def enter_environment(self) -> None:
        """Reset the row's environment; its methods become tools of the row, and what it shows ends
        the last message. `render_prompt` follows."""
        assert self.environment is not None
        tools, shown = await self.environment.start(self.messages)
        bound = {**self.rules.tools, **{tool.name: tool for tool in tools}}
        self.rules = dataclasses.replace(self.rules, tools=bound)
        *before, last = self.messages
        content = self.rules.with_escaped(last.get("content") or "", shown)
        self.messages = [*before, {**last, "content": content}]

    def add_opening_texts(self, texts: Mapping[str, str]) -> None:
        """Put what tools say before the first turn, by tool, at the end of the prompt, as verl does
        with the text of `create`. `render_prompt` follows."""
        for number, (name, text) in enumerate(texts.items()):
            shown = self.rules.escape_special_tokens(text)
            about = {"role": "tool", "name": name, "tool_call_id": self._call_id(number)}
            self.messages.append({**about, "content": shown})
        self._given = len(self.messages)

    def render_prompt(self) -> None:
        """Render the messages before the first turn again. Raises `RequestFailure` if the model
        cannot take them."""
        template, about = self.rules.template, "with the row's tools and what they show the prompt"
        assert template is not None
        try:
            with at_fault(index=0):
                ids = template.prompt(self.messages, 0)
        except PromptError as failure:
            raise RequestFailure(failure.for_one_prompt()) from failure
        limits = self.rules.model.limits
        if unknown := self._unknown(ids):
            raise RequestFailure(f"{about} has {unknown}")
        for most, key in ((limits.prompt, "prompt_length"), (limits.total - 1, "max_model_len")):
            if len(ids) > most:
                many = f"{len(ids)} tokens; at most {most} fit (rollout.{key})"
                raise RequestFailure(f"{about} has {many}")
        self.prompt_ids, self._rendered = ids, True

    def _unknown(self, ids: Sequence[int]) -> str:
        """What is wrong with ids beyond the vocabulary, of which the engine would die; or ""."""
        unknown = [token for token in ids if token >= self.rules.model.limits.vocabulary]
        return f"token {unknown[0]}, outside the model's vocabulary" if unknown else ""

    def next_request(self) -> Request:
        """The request of the next turn, within all limits; each turn derives its own seed."""
        left, _ = self._tokens_left()
        least = min(max(0, self._params.min_tokens - sum(self.mask)), left)
        params = dataclasses.replace(self._params, max_tokens=left, min_tokens=least)
        if params.seed is not None and self.outputs:
            seed = derived_seed(params.seed, -len(self.outputs))
            params = dataclasses.replace(params, seed=seed)
        return Request(self.prompt_ids + self.ids, params)

    def may_add_user_message(self, user_turns: int) -> bool:
        """Whether the limits allow another user message after `user_turns` of them."""
        most = self.rules.config.rollout.multi_turn.max_user_turns
        return (most is None or user_turns < most) and not self._at_last_turn()

    def _at_last_turn(self) -> bool:
        most = self.rules.config.rollout.multi_turn.max_assistant_turns
        return most is not None and len(self.outputs) >= most

    def _tensor_tokens_left(self) -> dict[str, int]:
        used = len(self.ids)
        return {
            "response_length": self.rules.config.rollout.response_length - used,
            "max_model_len": self.rules.model.limits.total - len(self.prompt_ids) - used,
        }

    def _tokens_left(self) -> tuple[int, str]:
        """The most tokens of the next turn, and the name of the limit that applies."""
        left = {"max_tokens": self._params.max_tokens - sum(self.mask)}
        if self.turns.max_tokens_per_turn is not None:
            left["max_tokens_per_turn"] = self.turns.max_tokens_per_turn
        return _least(left | self._tensor_tokens_left())

    def add_assistant_turn(self, answer: RequestOutput) -> None:
        """Add the backend's answer to the request from `next_request`."""
        _, limit = self._tokens_left()
        self.outputs.append(answer)
        self._keep_sampled(answer)
        self.finish_reason, self.to_run = answer.finish_reason, []
        parsed = answered_calls(answer, self.rules)
        self._append_answer(parsed)
        if answer.finish_reason == "length":
            self.end("length", limit)
        elif parsed.calls:
            self._decide(parsed.calls)

    def _keep_sampled(self, answer: RequestOutput) -> None:
        self._extend(answer.token_ids, answer.logprobs)

    def _append_answer(self, parsed: Parsed) -> None:
        message: Message = {"role": "assistant", "content": parsed.content}
        if parsed.calls:
            message["tool_calls"] = [self._openai_call(*each) for each in enumerate(parsed.calls)]
        self.messages.append(message)

    def _openai_call(self, index: int, call: ToolCall) -> dict[str, Any]:
        arguments = call.raw_text if call.error else call.arguments
        function = {"name": call.name, "arguments": arguments}
        return {"id": self._call_id(index), "type": "function", "function": function}

    def _call_id(self, index: int) -> str:
        return f"call{len(self.outputs):03}{index:02}"  # Mistral requires nine letters and digits

    def _decide(self, calls: list[ToolCall]) -> None:
        tools = self.rules.tools
        left, limit = self._tokens_left()
        schemas = [t.name for t in tools.values() if not t.executable]
        if len(schemas) == len(tools) or any(c.name in schemas for c in calls if not c.error):
            self.end("tool_calls", None)
        elif self._at_last_turn():
            self.end("tool_calls", "max_assistant_turns")
        elif left <= 0:
            self.end("length", limit)
        else:
            self.to_run = calls
            return
        self._pending = calls

    def end(self, finish_reason: str, limit: str | None) -> None:
        self.finish_reason, self.limit, self.over = finish_reason, limit, True

    def add_tool_results(self, results: Sequence[Executed]) -> None:
        messages = []
        for number, (call, done) in enumerate(zip(self.to_run, results, strict=True)):
            about = dict(vars(done))
            text, name = about.pop("text"), call.name
            own_id = self._call_id(number)
            messages.append({"role": "tool", "name": name, "tool_call_id": own_id, "content": text})
            self._records.append(
                {"name": name, "arguments": call.arguments, "result": text, **about}
            )
        self.to_run = []
        self._add_messages(messages)

    def add_user_message(self, content: str) -> None:
        text = self.rules.escape_special_tokens(content)
        self._add_messages([{"role": "user", "content": text}])

    def _add_messages(self, messages: Sequence[Message]) -> None:
        self.messages += messages
        self._append_template_tokens(len(self.messages) - len(messages) - 1)
        left, limit = self._tokens_left()
        if left <= 0 and not self.over:
            self.end("length", limit)

    def _append_template_tokens(self, index: int) -> None:
        """Add the template's ids between the last answer and the next one, if they fit."""
        matched, model = self.outputs[-1].matched_stop, self.rules.model
        ended = isinstance(matched, int) and matched in model.eos_token_ids
        template = self.rules.template
        assert template is not None
        try:
            ids = template.after(self._without_calls(), index, ended=ended, called=self.messages)
        except Exception as failure:  # the template refuses the new messages: keep the rest
            self.error = f"the chat template refused the next turn: {error_text(failure)}"
            self.end("abort", None)
            return
        if unknown := self._unknown(ids):
            self.error = f"the next turn has {unknown}"
            self.end("abort", None)
            return
        left, limit = _least(self._tensor_tokens_left())
        if len(ids) >= left:
            self.end("length", limit)
        else:
            self._extend(ids, None)

    def _without_calls(self) -> list[Message]:
        """The messages, in which the model's own calls stay in its text."""
        own = ({k: m[k] for k in m if k != "tool_calls"} for m in self.messages[self._given :])
        return [*self.messages[: self._given], *own]

    def _extend(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> None:
        self.ids += ids
        self.mask += [0 if logprobs is None else 1] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs

    def conclude(self, reward_scores: dict[str, Any]) -> None:
        """Record the rewards, and the limit that ended the interaction, if one did."""
        self.reward_scores = reward_scores
        if not self.concluded and not self.over:
            self.limit = "max_assistant_turns" if self._at_last_turn() else "max_user_turns"

    def abort(self, limit: str | None, error: str | None = None) -> None:
        """Drop everything of a row that was given up."""
        self.ids, self.mask, self.logprobs, self.outputs = [], [], [], []
        self.reward_scores = {}
        self.error = error
        self.end("abort", limit)

    def output(self, weight_version: int) -> RequestOutput:
        """Return the finished row; `weight_version` is used if the row had no turn."""
        sampled = [index for index, bit in enumerate(self.mask) if bit]
        first, last = self.outputs[:1], self.outputs[-1:]
        return RequestOutput(
            token_ids=[self.ids[index] for index in sampled],
            logprobs=[self.logprobs[index] for index in sampled],
            finish_reason=self.finish_reason,
            matched_stop=next((answer.matched_stop for answer in last), None),
            prompt_tokens=len(self.prompt_ids),
            prompt_token_ids=self.prompt_ids if self._rendered else None,
            completion_tokens=len(sampled),
            cached_tokens=sum(answer.cached_tokens for answer in first),
            weight_version=max((a.weight_version for a in last), default=weight_version),
            transcript=Transcript(
                messages=self.messages,
                ids=self.ids,
                mask=self.mask,
                logprobs=self.logprobs,
                answer_ids=[token for answer in last for token in answer.token_ids],
                pending=self._pending,
                calls=self._records,
                num_turns=len(self.outputs),
                reward_scores=self.reward_scores,
                limit=self.limit,
                error=self.error,
            ),
        )


def _least(tokens_left: Mapping[str, int]) -> tuple[int, str]:
    limit = min(tokens_left, key=lambda name: tokens_left[name])
    return tokens_left[limit], limit
