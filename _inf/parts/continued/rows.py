"""Rows that `pause("abort")` has ended, as prompts: each is continued from its ids.

A row is `generate`'s, or a `Rollout` that was saved; it is read by its attributes.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from _inf.errors import PromptError, shown
from _inf.parts.kept import beyond_text
from _inf.turns import Transcript
from _inf.types import Message, Prompt, RequestOutput

if TYPE_CHECKING:
    from _inf.parts.part import Part

OF_ROWS = ("prompt_token_ids", "weight_versions", "finish_reason")


@dataclasses.dataclass(frozen=True)
class RowPrompt(Prompt):
    """so_far: what the row has; messages: those before its first answer; seed, adapter: its own."""

    continues = True
    so_far: RequestOutput = dataclasses.field(default_factory=RequestOutput)
    seed: int | None = None
    adapter: str | None = None


def is_row(value: object) -> bool:
    """Whether a value is an answer of `generate`, or a saved one."""
    return not isinstance(value, type) and all(hasattr(value, name) for name in OF_ROWS)


def continued_row(row: Any, index: int) -> RowPrompt:
    """The row as a prompt. Raises `PromptError` for one that cannot be continued."""
    where, reason = f"prompt {index} is a row", row.finish_reason
    if reason != "abort":
        raise PromptError(
            f"{where} that ended by {shown(reason)}; only one that pause('abort') ended "
            "(finish_reason 'abort') can be continued."
        )
    if not row.prompt_token_ids:
        raise PromptError(f"{where} without token ids of its prompt; a server gave only text.")
    transcript = _transcript(row, where)
    ids, mask, logprobs = _response(row)
    answers = [range(len(ids))] if transcript is None else transcript.answers
    if any(0 in mask[places.start : places.stop] for places in answers):
        raise PromptError(
            f"{where} with ids that were not sampled: thinking_token_budget forced them, or its "
            "messages are missing; send its prompt again."
        )
    if sum(map(len, answers)) != sum(mask):
        raise PromptError(
            f"{where} with turns that does not say where its answers are (answer_places); give the "
            "row that generate returned, or one that inf.save_rollouts saved of it."
        )
    sampled = [place for place, bit in enumerate(mask) if bit]
    values = logprobs or [math.nan] * len(ids)
    return RowPrompt(
        list(row.prompt_token_ids),
        messages=_first_messages(transcript),
        index=index,
        parts=_content(row, where),
        so_far=RequestOutput(
            token_ids=[ids[place] for place in sampled],
            logprobs=[values[place] for place in sampled],
            weight_versions=[tuple(each) for each in row.weight_versions or ()] if sampled else [],
            completion_tokens=len(sampled),
            transcript=transcript,
        ),
        seed=row.seed,
        adapter=row.adapter,
    )


def _content(row: object, where: str) -> tuple[Part, ...]:
    """What the row's content asks for besides text, which no file keeps."""
    kept = tuple(each.again for each in getattr(row, "parts", ()) if each.again is not None)
    if not kept and (_images(row) or beyond_text(getattr(row, "messages", None) or ())):
        raise PromptError(
            f"{where} with images, which only a row has that pause('abort') ended, and no file; "
            "send its prompt again."
        )
    return kept


def _first_messages(transcript: Transcript | None) -> list[Message] | None:
    """The messages before the row's first answer; None of a row that is one answer."""
    if transcript is None or transcript.messages is None:
        return None
    messages, turns = transcript.messages, transcript.num_turns
    answers = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    return messages[: answers[-turns]] if turns else messages


def _response(row: Any) -> tuple[list[int], list[int], list[float] | None]:
    """Everything after the prompt, its mask and its log probs."""
    if hasattr(row, "response"):
        response: tuple[list[int], list[int], list[float] | None] = row.response
        return response
    return row.response_ids or [], row.response_mask or [], row.logprobs


def _transcript(row: Any, where: str) -> Transcript | None:
    """The row's conversation; None if it is one answer. Refuses rows that cannot go on."""
    if hasattr(row, "transcript"):  # generate's
        transcript: Transcript | None = row.transcript
        failed = row.error
    else:
        transcript = _of_rollout(row) if row.messages or row.agent_loop else None
        failed = row.extra.get("error")
    if failed is not None:
        raise PromptError(f"{where} that failed ({failed}); send its prompt again.")
    if transcript is not None and transcript.agent_loop is not None:
        raise PromptError(f"{where} of an agent loop, whose state ended with it.")
    return transcript


def _images(row: object) -> object:
    return getattr(row, "images", None) or getattr(row, "extra", {}).get("images")


def _of_rollout(row: Any) -> Transcript:
    ids, mask, logprobs = _response(row)
    return Transcript(
        messages=row.messages,
        ids=ids,
        mask=mask,
        logprobs=logprobs or [math.nan] * len(ids),
        answers=[range(first, end) for first, end in row.answer_places or ()],
        calls=row.tool_calls or [],
        num_turns=row.num_turns or 0,
        agent_loop=row.agent_loop,
    )
