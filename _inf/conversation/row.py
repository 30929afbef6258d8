"""The rows of a call that has turns: what each of them must offer, and how they run side by side.

A row is a loop that asks the engine for answers, through its `Recorder`, until it has ended: the
built-in tool loop (`tool_loop.py`) or an agent loop of the user's (`agent_loops/`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Protocol

from _inf.conversation.recorder import Recorder
from _inf.response.decode import decoded_text
from _inf.runtime.side_by_side import run_rows
from _inf.types import Prompt, Report, RequestOutput, SamplingParams, Tokenizer


class Row(Protocol):
    """A row while it runs, on the engine's thread."""

    recorder: Recorder

    async def prepare(self) -> None:
        """Make what the row needs, before the first request of any row is sent. What it raises
        ends the call."""

    async def run(self) -> RequestOutput:
        """Run the loop to its end. A failure aborts this row only; where no row can be answered it
        is raised."""

    def aborted(self, limit: str | None, error: str) -> RequestOutput:
        """The aborted row: its ids are dropped."""


class Loop(Protocol):
    """What answers the rows of one prompt."""

    @property
    def renders(self) -> bool:
        """Whether it renders the whole prompt again, so that a prompt cannot be truncated."""

    @property
    def adds(self) -> str:
        """What it does with messages, for an error."""

    @property
    def text_only(self) -> bool:
        """Whether it takes only prompts of text."""

    def row(self, prompt: Prompt, params: SamplingParams, recorder: Recorder) -> Row:
        """Make one of the prompt's rows, with its own parameters."""


async def answered_rows(
    rows: Sequence[Row], report: Report | None, over_sample_rate: float
) -> list[RequestOutput]:
    """Run all rows side by side, and return them in order. As in verl, the last share of them,
    `over_sample_rate`, is aborted once the others have ended."""
    await asyncio.gather(*(row.prepare() for row in rows))
    why = "over_sample_rate", "aborted, because the other rows ended first"
    return await run_rows(
        (row.run() for row in rows),
        report,
        lambda: sum(row.recorder.tokens for row in rows),
        enough=int(len(rows) * (1 - over_sample_rate)),
        late=lambda place: rows[place].aborted(*why),
    )


def unsampled(outputs: Sequence[RequestOutput], tokenizer: Tokenizer) -> Iterator[str]:
    """A warning that names the agent loop, and the place in the first row with ids that a trainer
    would take for sampled ones."""
    rows = [
        (number, output.transcript)
        for number, output in enumerate(outputs)
        if output.transcript is not None and output.transcript.unsampled
    ]
    if not rows:
        return
    number, first = rows[0]
    place, count = first.unsampled[0], len(first.unsampled)
    until = first.mask[: place + 1]
    turns = sum(bit > before for before, bit in zip([0, *until], until, strict=False))
    text = decoded_text(first.ids[place : place + 1], tokenizer, skip_special_tokens=False)
    fault = "was not sampled there" if first.mask[place] else "was sampled there and has mask 0"
    yield (
        f"agent loop {first.agent_loop}: in {len(rows)} of {len(outputs)} rows the mask does not "
        f"match the sampled ids; in row {number} it is wrong at {count} of {len(first.ids)} ids. "
        f"The first is token {place} of the response, in turn {max(turns, 1)}: {text!r} (id "
        f"{first.ids[place]}) {fault}. A trainer would learn from ids that the model did not "
        "sample: append the sampled ids to the prompt, and never render them again "
        "(docs/agent_loops.md)."
    )
