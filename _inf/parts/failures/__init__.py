"""`on_error="row"`: refused prompts and failed requests become rows with an `error`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from _inf.errors import error_text
from _inf.parts.part import Part
from _inf.request import values
from _inf.request.keyword import Keyword
from _inf.types import RequestOutput

if TYPE_CHECKING:
    from _inf.types import Request


@dataclasses.dataclass(frozen=True)
class Failures(Part):
    same_names = ("sglang", "hf", "openai")
    keywords = {
        "on_error": Keyword(
            functools.partial(values.one_of, known=("raise", "row")),
            "raise, the default, or row. With raise, the first refused prompt or failed request "
            "raises its error. With row, each becomes a row with `finish_reason` abort and "
            '`metadata["error"]`, and the other rows do not change.',
            typed='Literal["raise", "row"]',
            per_prompt=False,
            neutral="raise",
            refused={
                "stream": "stream() raises; use generate()",
                "chat": "a chat shows what failed; leave it out",
            },
        ),
    }
    on_error: str = dataclasses.field(default="raise", repr=False, compare=False)

    def values(self) -> dict[str, object]:
        """None: it is no parameter of an engine."""
        return {}

    def failed(self, request: Request, failure: Exception) -> RequestOutput:
        return RequestOutput(
            finish_reason="abort",
            error=error_text(failure),
            prompt_tokens=len(request.token_ids),
            text=None if request.token_ids else "",
        )


def failures(outputs: Sequence[RequestOutput]) -> Iterator[str]:
    """A warning that names the first row that failed, and its reason. A row that a limit has ended
    did not fail."""
    failed = [
        (number, output.error, output.transcript and output.transcript.agent_loop)
        for number, output in enumerate(outputs)
        if output.finish_reason == "abort"
        and output.error is not None
        and (output.transcript is None or output.transcript.limit is None)
    ]
    if failed:
        number, error, agent_loop = failed[0]
        loop = "" if agent_loop is None else f" (agent loop {agent_loop})"
        yield (
            f"rows: {len(failed)} of {len(outputs)} failed; the first is row {number}{loop}: "
            f'{error}. The others\' reasons are in metadata["error"].'
        )
