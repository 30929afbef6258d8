"""`PreparedCall`: a checked call of `generate`, whose rows are answered by one turn each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from _inf.errors import ConfigError, PromptError, at_fault
from _inf.request.keywords import refuse
from _inf.request.prompts import Form
from _inf.request.sampling import Sampling, check_contradictions, in_order
from _inf.request.template import Template
from _inf.request.tokenize import tokenize
from _inf.types import Limits, ModelInfo, Prompt, Report, Request, RequestOutput, SamplingParams

if TYPE_CHECKING:
    from _inf.backends.base import Backend
    from _inf.runtime.calls import CancelToken


def tokenize_call(
    forms: Sequence[Form],
    template: Template | None | Sequence[Template | None],
    limits: Limits,
    sampling: Sampling,
    indexes: Sequence[int],
) -> list[Prompt]:
    """Tokenize the prompts of a call with these keywords. template, indexes: as in `tokenize`."""
    most = [each.max_tokens for each in sampling.params]
    return tokenize(forms, template, limits, most, sampling.truncate_prompt, indexes)


def with_parts(sampling: Sampling, prompts: Sequence[Prompt], model: ModelInfo) -> Sampling:
    """The keywords with what the content of the prompts asks of parts."""
    if not any(prompt.parts for prompt in prompts):
        return sampling
    params = []
    for prompt, own in zip(prompts, sampling.params, strict=True):
        params.append(dataclasses.replace(own, parts=in_order((*own.parts, *prompt.parts))))
        with at_fault(index=prompt.index):
            check_contradictions(prompt.parts, params[-1], model)
    return dataclasses.replace(sampling, params=params)


@dataclasses.dataclass(frozen=True)
class PreparedCall:
    """A completely checked call; nothing in it is refused after the first request is sent.
    template: None if a server renders."""

    prompts: list[Prompt]
    sampling: Sampling
    template: Template | None

    def __post_init__(self) -> None:
        if any(params.parts for params in self.sampling.params):
            from _inf.parts.memory import check_memory

            self._check_parts()
            check_memory(self.prompts, self.sampling)

    def _check_parts(self) -> None:
        for prompt, params in zip(self.prompts, self.sampling.params, strict=True):
            for part in params.parts:
                with at_fault(index=prompt.index):
                    part.check_one_turn(prompt)

    @property
    def size(self) -> int:
        """How many rows are answered."""
        return len(self.prompts) * self.sampling.n

    def samples(self) -> list[tuple[int, Prompt, SamplingParams]]:
        """The place of each row's prompt, the prompt, and the row's parameters, prompt-major."""
        n = self.sampling.n
        rows = enumerate(self.sampling.rows)
        return [(row // n, self.prompts[row // n], params) for row, params in rows]

    def schemas(self, place: int) -> Sequence[Mapping[str, object]]:
        """Those of the tools of the prompt at a place."""
        return ()

    def requests(self) -> list[Request]:
        """Return one request per row; for a conversation, that of its first turn."""
        n, requests = self.sampling.n, []
        for row, (place, prompt, params) in enumerate(self.samples()):
            number = prompt.index * n + row % n
            request = Request(prompt.token_ids, params, prompt.index, number)
            if not prompt.token_ids:  # the server tokenizes
                request = dataclasses.replace(
                    request,
                    messages=prompt.messages,
                    text=prompt.text,
                    tools=self.schemas(place),
                )
            requests.append(request)
        return requests

    def answers(
        self, backend: Backend, cancel: CancelToken, report: Report | None
    ) -> list[RequestOutput]:
        """The outputs of all rows, which are one batch."""
        return backend.generate(self.requests(), cancel, report)

    def refused_row(self, error: str) -> RequestOutput:
        """A row of a prompt that was refused, where such are rows."""
        return RequestOutput(finish_reason="abort", error=error)

    def warnings(self, outputs: Sequence[RequestOutput]) -> list[str]:
        """What a caller must know of rows that failed."""
        return []

    def streamed_request(self) -> Request:
        """Return the single request of a `stream` call, or raise if `stream` cannot serve it."""
        n, prompts = self.sampling.n, len(self.prompts)
        if prompts != 1:
            raise PromptError(
                f"prompt 0: stream() takes one prompt, not {prompts}; use generate()."
            )
        if n != 1:
            raise ConfigError.of("n", f"stream() gives one answer, not {n}; use generate().")
        refuse("stream", self.sampling.asked)
        return self.requests()[0]

    def finish_reason(self, row: RequestOutput) -> str | None:
        """The finish reason of the one row of a `stream` call."""
        return row.finish_reason
