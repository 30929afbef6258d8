"""`TurnCall`: a checked call whose rows each have a loop of turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from _inf.conversation.recorder import Recorder
from _inf.conversation.row import Loop, answered_rows, unsampled
from _inf.conversation.rules import answered_calls
from _inf.conversation.turn_plan import Plan, plan_turns
from _inf.errors import PromptError, ToolError, at_fault
from _inf.parts.continued import Continued, row_lacks
from _inf.parts.failures import failures
from _inf.parts.grammars import is_constrained
from _inf.request.call import PreparedCall, tokenize_call, with_parts
from _inf.request.prompts import Form
from _inf.request.sampling import Sampling
from _inf.runtime.calls import CancelToken
from _inf.turns import Transcript
from _inf.types import Prompt, Report, Request, RequestOutput

if TYPE_CHECKING:
    from _inf.backends.base import Backend
    from _inf.config import Config
    from _inf.conversation.configured import Configured
    from _inf.types import ModelInfo


@dataclasses.dataclass(frozen=True)
class TurnCall(PreparedCall):
    """plan: how its rows are answered, by prompt in their order."""

    plan: Plan

    def __post_init__(self) -> None:
        """Refuse token ids and plain text in a call whose loops add messages to them."""
        places = enumerate(zip(self.prompts, self.sampling.params, strict=True))
        for place, (prompt, params) in places:
            with at_fault(index=prompt.index):
                if (continued := params.of(Continued)) is not None:
                    self._check_continued(continued, place)
                if self.plan.loops:
                    _check_prompt(prompt, self.plan.loops[place])
        super().__post_init__()

    def _check_parts(self) -> None:
        """Nothing: rows with turns may have them."""

    def _check_continued(self, part: Continued, place: int) -> None:
        """Refuse a row with turns without its tools, or with tools whose state is gone."""
        row, prompt = part.so_far.transcript, self.prompts[place]
        environment = None if row is None else row.environment
        factory = self.sampling.turns[place].environment_factory
        if factory is not None and (environment is None or environment.taken):
            raise PromptError(
                f"prompt {prompt.index} is a row without its environment: that exists only in the "
                "process in which pause('abort') ended the row, until the row is continued once. "
                "Send the row's prompt again."
            )
        if environment is not None and factory is None:
            raise row_lacks("environment_factory", prompt)
        if row is not None and not self.plan.loops:
            raise row_lacks("tools", prompt)
        for name, tool in self.plan.of_prompts[place].tools.items():
            if tool.verl is not None:
                reason = f"{name} is a verl tool, and its instance ended with the row, prompt"
                raise ToolError.of(
                    "tools", f"{reason} {prompt.index}; send the row's prompt again."
                )

    def schemas(self, place: int) -> Sequence[Mapping[str, object]]:
        return self.plan.of_prompts[place].schemas

    def answers(
        self, backend: Backend, cancel: CancelToken, report: Report | None
    ) -> list[RequestOutput]:
        """The outputs of all rows, each answered by its loop."""
        if not self.plan.loops:
            return super().answers(backend, cancel, report)
        return backend.await_rows(lambda: self._converse(backend, report), cancel)

    async def _converse(self, backend: Backend, report: Report | None) -> list[RequestOutput]:
        """Run the rows; awaited on the engine's thread."""
        version = backend.weight_version
        rows = [
            self.plan.loops[place].row(prompt, params, Recorder(backend.turn, version))
            for place, prompt, params in self.samples()
        ]
        rate = self.plan.rules.config.rollout.over_sample_rate
        return await answered_rows(rows, report, rate)

    def refused_row(self, error: str) -> RequestOutput:
        row = super().refused_row(error)
        return dataclasses.replace(row, transcript=Transcript([])) if self.plan.loops else row

    def warnings(self, outputs: Sequence[RequestOutput]) -> list[str]:
        """Also of loops whose ids were not sampled."""
        return [*failures(outputs), *unsampled(outputs, self.plan.rules.model.tokenizer)]

    def streamed_request(self) -> Request:
        request = super().streamed_request()
        for name, tool in self.plan.of_prompts[0].tools.items():
            if tool.executable:
                raise ToolError.of(
                    "tools",
                    f"{name} would run; stream() takes schemas only: use generate(), or "
                    "pass tools=[].",
                )
        return request

    def finish_reason(self, row: RequestOutput) -> str | None:
        """`tool_calls` if the row of a `stream` call has calls."""
        if row.finish_reason != "stop":
            return row.finish_reason
        [prompt], [rules], [params] = self.prompts, self.plan.of_prompts, self.sampling.params
        parsed = answered_calls(row, rules, prompt.token_ids, constrained=is_constrained(params))
        return "tool_calls" if parsed.calls else "stop"


def turn_call(
    forms: Sequence[Form],
    sampling: Sampling,
    indexes: Sequence[int],
    config: Config,
    configured: Configured,
    model: ModelInfo,
) -> TurnCall:
    """Plan a call with turns, and render its prompts with their tools."""
    plan = plan_turns(sampling, config, configured, model)
    templates = [rules.template for rules in plan.of_prompts]
    prompts = tokenize_call(forms, templates, model.limits, sampling, indexes)
    return TurnCall(prompts, with_parts(sampling, prompts, model), plan.rules.template, plan)


def _check_prompt(prompt: Prompt, loop: Loop) -> None:
    if prompt.messages is None:
        raise PromptError(
            f"prompt {prompt.index}: {loop.adds} messages, which prompt_token_ids and text do not "
            "have; send messages, or pass tools=[]."
        )
    if loop.text_only and prompt.parts:
        raise PromptError(
            f"prompt {prompt.index} has content besides text, and agent loops take text only."
        )
    if loop.renders and prompt.truncated_tokens:
        raise PromptError(
            f"prompt {prompt.index} is longer than rollout.prompt_length, and truncate_prompt has "
            "no effect with an agent loop or an environment; shorten it."
        )
