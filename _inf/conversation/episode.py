"""The state of one row of the built-in tool loop: its messages, its ids, its limits and its end.

The mask and the log probs are not kept here: they are derived at the end from what the row's
`Recorder` has seen. On a server that takes and gives text (`rules.template` is None) there are no
ids, and the limits of tensors do not apply.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from _inf.conversation.recorder import Recorder
from _inf.conversation.rules import Rules, answered_calls
from _inf.conversation.template_ids import (
    ids_after,
    prompt_ids,
    unknown,
    with_later_part,
    with_part,
)
from _inf.errors import RequestFailure, error_text
from _inf.parts.continued import with_first_part, without_first_part
from _inf.parts.grammars import is_constrained
from _inf.parts.reasoning import said
from _inf.request.seeds import turn_seed
from _inf.tools.parsing import Parsed
from _inf.tools.results import Executed
from _inf.turns import Transcript, TurnOptions
from _inf.types import Message, Prompt, Request, RequestOutput, SamplingParams, Tool, ToolCall

PAUSED = "pause"  # the limit of a row that `pause("abort")` ended


class Episode:
    """One row's conversation so far."""

    def __init__(
        self,
        prompt: Prompt,
        params: SamplingParams,
        turns: TurnOptions,
        rules: Rules,
        recorder: Recorder,
    ) -> None:
        self.name = str(uuid.uuid4())
        self.rules = rules
        self.turns = turns
        self.recorder = recorder
        self.prompt_ids = list(prompt.token_ids)
        self.ids: list[int] = []  # after the prompt
        self.messages: list[Message] = [dict(message) for message in prompt.messages or ()]
        self.to_run: list[ToolCall] = []
        self.finish_reason: str | None = None
        self.limit: str | None = None
        self.error: str | None = None
        self.over = False  # no further turn follows
        self._given = len(self.messages)
        self._stale = False  # whether the prompt's messages have changed since they were rendered
        self._pending: list[ToolCall] = []
        self.records: list[dict[str, object]] = []  # of the calls that were run
        self.unfinished: RequestOutput | None = None  # an answer that the next request continues
        self.environment: Any = None  # of a row that `pause` ended, for the one that continues it
        self._params = without_first_part(params)  # of each turn
        self._of_prompt = params.parts  # what its prompt asks for
        self._limit = "max_tokens"  # the one that bounds the request under way

    def add_tools(self, tools: Iterable[Tool]) -> None:
        bound = {**self.rules.tools, **{tool.name: tool for tool in tools}}
        self.rules = dataclasses.replace(self.rules, tools=bound)

    def add_to_prompt(self, shown: str) -> None:
        """Add what an environment shows at the end of the last message."""
        *before, last = self.messages
        content = self.rules.with_escaped(last.get("content") or "", shown)
        self.messages = [*before, {**last, "content": content}]
        self._stale = True

    def add_opening_texts(self, texts: Mapping[str, str]) -> None:
        """Put what tools say before the first turn, by tool, at the end of the prompt, as verl does
        with the text of `create`."""
        for number, (name, text) in enumerate(texts.items()):
            shown = self.rules.escape_special_tokens(text)
            about = {"role": "tool", "name": name, "tool_call_id": self._call_id(number)}
            self.messages.append({**about, "content": shown})
        self._given = len(self.messages)
        self._stale = self._stale or bool(texts)

    def render_prompt(self) -> None:
        """Render the messages before the first turn again if they have changed. Raises
        `RequestFailure` if the model cannot take them."""
        if (template := self.rules.template) is not None and self._stale:
            self.prompt_ids, part = prompt_ids(self.rules, template, self.messages)
            self._params = with_part(self._params, part)
            self._of_prompt = self._params.parts

    @property
    def _turns(self) -> int:
        """How many answers the row has."""
        return len(self.recorder.sampled)

    def next_request(self) -> Request:
        """The request of the next turn, within all limits; each turn derives its own seed."""
        left, self._limit = self._tokens_left()
        least = min(max(0, self._params.min_tokens - self.recorder.tokens), left)
        seed = turn_seed(self._params.seed, self._turns)
        params = dataclasses.replace(self._params, max_tokens=left, min_tokens=least, seed=seed)
        so_far, self.unfinished = self.unfinished, None
        if so_far is not None and so_far.completion_tokens >= left:
            raise RequestFailure(f"the row has no room for more tokens ({self._limit}).")
        if self.rules.template is not None:
            return Request(self.prompt_ids + self.ids, with_first_part(params, so_far))
        return Request([], params, messages=list(self.messages), tools=self.rules.schemas)

    def may_add_user_message(self, user_turns: int) -> bool:
        """Whether the limits allow another user message after `user_turns` of them."""
        most = self.rules.config.rollout.multi_turn.max_user_turns
        return (most is None or user_turns < most) and not self._at_last_turn()

    def _at_last_turn(self) -> bool:
        most = self.rules.config.rollout.multi_turn.max_assistant_turns
        return most is not None and self._turns >= most

    def _tensor_tokens_left(self) -> dict[str, int]:
        if self.rules.template is None:
            return {}
        used = len(self.ids)
        return {
            "response_length": self.rules.config.rollout.response_length - used,
            "max_model_len": self.rules.model.limits.total - len(self.prompt_ids) - used,
        }

    def _tokens_left(self) -> tuple[int, str]:
        """The most tokens of the next turn, and the name of the limit that applies."""
        left = {"max_tokens": self._params.max_tokens - self.recorder.tokens}
        if self.turns.max_tokens_per_turn is not None:
            left["max_tokens_per_turn"] = self.turns.max_tokens_per_turn
        return _least(left | self._tensor_tokens_left())

    def add_answer(self, answer: RequestOutput) -> None:
        """Add the engine's answer to the request from `next_request`. If `pause` has ended it, it
        is the row's last one, and maybe empty."""
        if answer.finish_reason == "abort":
            self.end("abort", PAUSED)
            if not answer.completion_tokens:
                return
        before, constrained = self.prompt_ids + self.ids, is_constrained(self._params)
        parsed = answered_calls(answer, self.rules, before, constrained=constrained)
        self.ids += answer.token_ids
        self.finish_reason, self.to_run = answer.finish_reason, []
        self._append_answer(parsed)
        if answer.finish_reason == "length":
            self.end("length", self._limit)
        elif parsed.calls and not self.over:
            self._decide(parsed.calls)

    def _append_answer(self, parsed: Parsed) -> None:
        message: Message = {"role": "assistant", "content": parsed.content}
        if parsed.reasoning and self.rules.thoughts is not None:
            message["reasoning_content"] = parsed.reasoning
        if parsed.calls:
            message["tool_calls"] = [self._openai_call(*each) for each in enumerate(parsed.calls)]
        self.messages.append(message)

    def _openai_call(self, index: int, call: ToolCall) -> dict[str, object]:
        arguments = call.raw_text if call.error else call.arguments
        function = {"name": call.name, "arguments": arguments}
        return {"id": self._call_id(index), "type": "function", "function": function}

    def _call_id(self, index: int) -> str:
        return f"call{self._turns:03}{index:02}"  # Mistral requires nine letters and digits

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
            content = about.pop("content") or text
            own_id = self._call_id(number)
            who = {"role": "tool", "name": name, "tool_call_id": own_id}
            messages.append({**who, "content": content})
            self.records.append(
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
        template = self.rules.template
        if template is None:  # the server renders
            return
        matched = self.recorder.sampled[-1].answer.matched_stop
        ended = isinstance(matched, int) and matched in self.rules.model.eos_token_ids
        try:
            ids, part = ids_after(
                self.rules, template, self._without_calls(), index, self.messages, ended=ended
            )
        except Exception as failure:  # the template refuses the new messages: keep the rest
            self.error = f"the chat template refused the next turn: {error_text(failure)}"
            self.end("abort", None)
            return
        if fault := unknown(ids, self.rules):
            self.error = f"the next turn has {fault}"
            self.end("abort", None)
            return
        left, limit = _least(self._tensor_tokens_left())
        if len(ids) >= left:
            self.end("length", limit)
        else:
            before = len(self.prompt_ids) + len(self.ids)
            self._params = with_later_part(self._params, part, before, len(ids))
            self.ids += ids

    def _without_calls(self) -> list[Message]:
        """The messages, in which the model's own calls stay in its text."""
        own = ({k: m[k] for k in m if k != "tool_calls"} for m in self.messages[self._given :])
        return [*self.messages[: self._given], *own]

    def end_by_turns(self) -> None:
        """Note the limit that kept the user from answering, if the row ended by no other."""
        if not self.over:
            self.limit = "max_assistant_turns" if self._at_last_turn() else "max_user_turns"

    def output(self, reward_scores: dict[str, object]) -> RequestOutput:
        """Return the finished row."""
        last = next(reversed(self.recorder.answers), RequestOutput())
        ended = dataclasses.replace(last, finish_reason=self.finish_reason, error=self.error)
        logprobs = self.recorder.logprobs(self.prompt_ids, self.ids)
        transcript = self._transcript(
            ids=self.ids,
            mask=[int(place in logprobs) for place in range(len(self.ids))],
            logprobs=[logprobs.get(place, 0.0) for place in range(len(self.ids))],
            answers=self.recorder.places(self.prompt_ids, self.ids),
            reward_scores=reward_scores,
            parts=self._params.parts,
        )
        row = self.recorder.row(self.prompt_ids, ended, transcript)
        paused = self.limit == PAUSED
        left = (part.in_row(paused=paused) for part in self._params.parts)
        row = dataclasses.replace(row, parts=tuple(each for each in left if each is not None))
        if self.rules.template is not None:
            return row
        first = next(iter(self.recorder.answers), RequestOutput())
        return dataclasses.replace(
            row,
            text=last.text or "",
            parts=(said(last),),
            prompt_tokens=first.prompt_tokens,
            completion_tokens=self.recorder.tokens,
        )

    def aborted(self, limit: str | None, error: str) -> RequestOutput:
        """Return the aborted row: its ids are dropped, its messages stay."""
        transcript = self._transcript(limit=limit, num_turns=0, parts=self._of_prompt)
        row = self.recorder.aborted(self.prompt_ids, transcript, error)
        return dataclasses.replace(row, text="" if self.rules.template is None else None)

    def _transcript(self, **others: Any) -> Transcript:
        fields: dict[str, Any] = {"limit": self.limit, "num_turns": self._turns, **others}
        fields |= {"calls": self.records, "environment": self.environment}
        return Transcript(self.messages, pending=self._pending, **fields)


def _least(tokens_left: Mapping[str, int]) -> tuple[int, str]:
    limit = min(tokens_left, key=lambda name: tokens_left[name])
    return tokens_left[limit], limit
