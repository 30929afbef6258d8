"""Restores a row of the tool loop to the state in which `pause("abort")` ended it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from _inf.conversation.episode import Episode
from _inf.conversation.recorder import Sampled
from _inf.tools.results import copied
from _inf.turns import Transcript
from _inf.types import RequestOutput


def take_up(episode: Episode, so_far: RequestOutput) -> None:
    """Give an episode the turns of the row; an answer that was cut is that of its next request."""
    transcript, versions = so_far.transcript, so_far.weight_versions
    assert transcript is not None and transcript.messages is not None
    prompt, ends = episode.prompt_ids, episode.rules.model.eos_token_ids
    sampled = [*_sampled(prompt, transcript, versions, ends)]
    messages, ids = copied(transcript.messages), list(transcript.ids)
    if sampled and messages[-1]["role"] == "assistant":
        *sampled, cut = sampled
        episode.unfinished = cut.answer
        messages, ids = messages[:-1], cut.prompt_ids[len(prompt) :]
    episode.messages, episode.ids, episode.records = messages, ids, copied(transcript.calls)
    episode.recorder.sampled, episode.environment = sampled, transcript.environment


def _sampled(
    prompt: list[int], row: Transcript, versions: list[tuple[int, int]], ends: Collection[int]
) -> Iterator[Sampled]:
    """The row's answers."""
    for places in row.answers:
        ids = row.ids[places.start : places.stop]
        yield Sampled(
            [*prompt, *row.ids[: places.start]],
            RequestOutput(
                token_ids=ids,
                logprobs=row.logprobs[places.start : places.stop],
                finish_reason="stop",
                matched_stop=ids[-1] if ids[-1] in ends else None,
                prompt_tokens=len(prompt) + places.start,
                completion_tokens=len(ids),
                weight_versions=_within(versions, places.start, places.stop),
            ),
        )


def _within(versions: list[tuple[int, int]], first: int, end: int) -> list[tuple[int, int]]:
    """The versions that sampled these places, each with its first one counted from `first`."""
    before = [(version, 0) for version, place in versions if place <= first][-1:]
    return before + [(version, place - first) for version, place in versions if first < place < end]
