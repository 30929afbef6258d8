"""A checked call of `generate`: the requests of its rows, or their loops, and the rows of prompts
that were refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from _inf.conversation.rules import Plan, answered_calls
from _inf.errors import RAISED, ConfigError, PromptError, Refusals, ToolError
from _inf.parts.grammars import is_constrained
from _inf.request.keywords import refuse
from _inf.request.sampling import Sampling
from _inf.runtime.calls import CancelToken
from _inf.types import Prompt, Report, Request, RequestOutput, SamplingParams

if TYPE_CHECKING:
    from _inf.backends.base import Backend
    from _inf.conversation.row import Loop


@dataclasses.dataclass(frozen=True)
class PreparedCall:
    """A completely checked call; nothing in it is refused after the first request is sent.
    refusals: the prompts whose rows are not answered."""

    prompts: list[Prompt]
    sampling: Sampling
    plan: Plan
    refusals: Refusals = RAISED

    def __post_init__(self) -> None:
        """Refuse token ids and plain text in a call whose loops add messages to them, and more log
        probs than there is memory for."""
        for index, prompt in enumerate(self.prompts):
            if index not in self.refusals:
                with self.refusals.of(index):
                    if prompt.so_far is not None:
                        self._check_continued(prompt.so_far, index)
                    if self.plan.loops:
                        _check_prompt(index, prompt, self.plan.loops[index])
        if any(params.parts for params in self.sampling.params):
            from _inf.parts.memory import check_memory

            check_memory(self.prompts, self.sampling)

    def _check_continued(self, so_far: RequestOutput, index: int) -> None:
        """Refuse a row with turns without its tools, or with tools whose state is gone."""
        row = so_far.transcript
        environment = None if row is None else row.environment
        factory = self.sampling.turns[index].environment_factory
        if factory is not None and (environment is None or environment.taken):
            raise PromptError(
                f"prompt {index} is a row without its environment, which stays with the row that "
                "pause('abort') ended, in its process, until it is continued once; send its prompt "
                "again."
            )
        lacks = "tools" if row is not None and not self.plan.loops else None
        lacks = "environment_factory" if environment is not None and factory is None else lacks
        if lacks is not None:
            raise PromptError(
                f"prompt {index} is a row with turns; pass the {lacks} that it began with."
            )
        for name, tool in self.plan.of_prompts[index].tools.items():
            if tool.verl is not None:
                reason = f"{name} is verl's, and its instance ended with the row, prompt {index}"
                raise ToolError.of("tools", f"{reason}; send the row's prompt again.")

    @property
    def size(self) -> int:
        """How many rows are answered."""
        return (len(self.prompts) - len(self.refusals)) * self.sampling.n

    def _samples(self) -> list[tuple[int, int, Prompt, SamplingParams]]:
        """The number of each row, its prompt's index, its prompt and its parameters,
        prompt-major."""
        n = self.sampling.n
        rows = enumerate(self.sampling.rows())
        return [(row, row // n, self.prompts[row // n], params) for row, params in rows]

    def answers(
        self, backend: Backend, cancel: CancelToken, report: Report | None
    ) -> list[RequestOutput]:
        """The outputs of all rows: plain ones are one batch, others each have a loop of turns."""
        if self.plan.loops:
            return backend.await_rows(lambda: self._converse(backend, report), cancel)
        requests = self.requests()
        answered = backend.generate(requests, cancel, report) if requests else []
        text = "" if self.plan.rules.template is None else None
        rows = self._with_refused(
            answered, lambda _, why: RequestOutput(finish_reason="abort", text=text, error=why)
        )
        versions = [(backend.weight_version, 0)]  # of rows without an answer
        return [
            row if row.error is None else dataclasses.replace(row, weight_versions=versions)
            for row in rows
        ]

    async def _converse(self, backend: Backend, report: Report | None) -> list[RequestOutput]:
        """Run the rows of a call with loops; awaited on the engine's thread."""
        from _inf.conversation.recorder import Recorder
        from _inf.conversation.row import answered_rows

        version = backend.weight_version
        rows = [
            self.plan.loops[index].row(prompt, params, Recorder(backend.turn, version))
            for _, index, prompt, params in self._samples()
        ]
        n, rate = self.sampling.n, self.plan.rules.config.rollout.over_sample_rate
        answered = [row for number, row in enumerate(rows) if number // n not in self.refusals]
        outputs = await answered_rows(answered, report, rate)
        return self._with_refused(
            outputs, lambda number, reason: rows[number].aborted(None, reason)
        )

    def _with_refused(
        self, answered: Sequence[RequestOutput], refused: Callable[[int, str], RequestOutput]
    ) -> list[RequestOutput]:
        """All rows of the call, in order: `answered`, and `refused` of each other number and its
        reason."""
        rest, n = iter(answered), self.sampling.n
        return [
            refused(number, self.refusals.reason(number // n))
            if number // n in self.refusals
            else next(rest)
            for number in range(len(self.prompts) * n)
        ]

    def warnings(self, outputs: Sequence[RequestOutput]) -> list[str]:
        """What a caller must know of rows that failed, and of loops whose ids were not sampled."""
        if not self.plan.loops and all(output.error is None for output in outputs):
            return []
        from _inf.conversation.row import failures, unsampled

        return [*failures(outputs), *unsampled(outputs, self.plan.rules.model.tokenizer)]

    def requests(self) -> list[Request]:
        """Return one request per row that is answered; for a conversation, that of its first
        turn."""
        requests, failure_is_row = [], self.sampling.on_error == "row"
        for row, index, prompt, params in self._samples():
            if index in self.refusals:
                continue
            request = Request(
                prompt.token_ids,
                params,
                index,
                row,
                failure_is_row=failure_is_row,
                so_far=prompt.so_far,
            )
            if (rules := self.plan.of_prompts[index]).template is None:
                schemas = [tool.schema for tool in rules.tools.values()]
                request = dataclasses.replace(
                    request, messages=prompt.messages, text=prompt.text, tools=schemas
                )
            requests.append(request)
        return requests

    def streamed_request(self) -> Request:
        """Return the single request of a `stream` call, or raise if `stream` cannot serve it."""
        sampling, prompts = self.sampling, len(self.prompts)
        if prompts != 1:
            raise PromptError(
                f"prompt 0: stream() takes one prompt, not {prompts}; use generate()."
            )
        if sampling.n != 1:
            raise ConfigError.of(
                "n", f"stream() gives one answer, not {sampling.n}; use generate()."
            )
        refuse("stream", sampling.asked)
        for name, tool in self.plan.of_prompts[0].tools.items():
            if tool.executable:
                raise ToolError.of(
                    "tools",
                    f"{name} would run; stream() takes schemas only: use generate(), or "
                    "pass tools=[].",
                )
        [request] = self.requests()
        return request

    def finish_reason(self, row: RequestOutput) -> str | None:
        """The finish reason of the one row of a `stream` call: `tool_calls` if it has calls."""
        if row.finish_reason != "stop":
            return row.finish_reason
        [prompt], [rules], [params] = self.prompts, self.plan.of_prompts, self.sampling.params
        parsed = answered_calls(row, rules, prompt.token_ids, constrained=is_constrained(params))
        return "tool_calls" if parsed.calls else "stop"


def _check_prompt(index: int, prompt: Prompt, loop: Loop) -> None:
    if prompt.messages is None:
        raise PromptError(
            f"prompt {index}: {loop.adds} messages, which prompt_token_ids and text do not "
            "have; send messages, or pass tools=[]."
        )
    if loop.renders and prompt.truncated_tokens:
        raise PromptError(
            f"prompt {index} is longer than rollout.prompt_length, and with an agent loop "
            "or an environment it is rendered whole, whatever truncate_prompt says; shorten"
            " it."
        )
