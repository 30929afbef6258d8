"""Prepares a call whose refused prompts and failed requests become rows."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from _inf.errors import ConfigError, PromptError, at_fault, error_text
from _inf.parts.failures import failures
from _inf.request.call import PreparedCall
from _inf.request.prompts import Form, form_of, listed_prompts
from _inf.request.sampling import given_values
from _inf.types import Prompt, Report, RequestOutput, SamplingParams

if TYPE_CHECKING:
    from _inf.backends.base import Backend
    from _inf.parts.part import Readers
    from _inf.runtime.calls import CancelToken

# Checks prompts that have these indexes, and the keywords for them.
Check: TypeAlias = "Callable[[list[Form], Any, Sequence[int]], PreparedCall]"


def prepare_each(
    check: Check, prompts: object, params: Mapping[str, object], readers: Readers
) -> PreparedCall:
    """Prepare the prompts that are not refused. If one of all is, each is checked alone."""
    given, refused = listed_prompts(prompts), dict[int, str]()
    forms: dict[int, Form] = {}
    for index, prompt in enumerate(given):
        with _noted(index, refused):
            forms[index] = form_of(prompt, index, readers)

    _, of_prompts = given_values(params, len(given))

    def checked(kept: Sequence[int]) -> PreparedCall:
        own = {name: [values[index] for index in kept] for name, values in of_prompts.items()}
        return check([forms[index] for index in kept], {**params, **own}, kept)

    try:
        call = checked([*forms])
    except (PromptError, ConfigError) as failure:
        if failure.index is None:
            raise
        for index in forms:
            with _noted(index, refused):
                checked([index])
        call = checked([index for index in forms if index not in refused])
    return _with_refused(call, refused, len(given))


@contextlib.contextmanager
def _noted(index: int, refused: dict[int, str]) -> Iterator[None]:
    try:
        with at_fault(index=index):
            yield
    except (PromptError, ConfigError) as failure:
        refused[index] = error_text(failure)


def _with_refused(call: PreparedCall, refused: Mapping[int, str], size: int) -> CallWithRefused:
    prompts = [Prompt([], index=index) for index in range(size)]
    params = [SamplingParams(max_tokens=1)] * size
    for prompt, own in zip(call.prompts, call.sampling.params, strict=True):
        prompts[prompt.index], params[prompt.index] = prompt, own
    sampling = dataclasses.replace(call.sampling, params=params)
    return CallWithRefused(prompts, sampling, call.template, call, refused)


@dataclasses.dataclass(frozen=True)
class CallWithRefused(PreparedCall):
    """A call, some of whose prompts are refused. kept: the others'; refused: why, by index."""

    kept: PreparedCall
    refused: Mapping[int, str]

    def __post_init__(self) -> None:
        """Nothing: `kept` is checked."""

    @property
    def size(self) -> int:
        return self.kept.size

    def answers(
        self, backend: Backend, cancel: CancelToken, report: Report | None
    ) -> list[RequestOutput]:
        """The rows of all prompts; one without an answer has the version of the weights in use."""
        kept = iter(self.kept.answers(backend, cancel, report) if self.kept.prompts else ())
        versions = [(backend.weight_version, 0)]
        text = "" if self.template is None else None
        rows = []
        for number in range(len(self.prompts) * self.sampling.n):
            why = self.refused.get(number // self.sampling.n)
            if why is None:
                row = next(kept)
            else:
                row = dataclasses.replace(self.kept.refused_row(why), text=text)
            unanswered = row.error is not None and not row.weight_versions
            rows.append(dataclasses.replace(row, weight_versions=versions) if unanswered else row)
        return rows

    def warnings(self, outputs: Sequence[RequestOutput]) -> list[str]:
        return self.kept.warnings(outputs) or [*failures(outputs)]
