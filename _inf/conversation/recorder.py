"""Records what the engine sampled for one row, and derives the row's mask and log probs from it.

A trainer takes each id with mask 1 for one that the model sampled after the ids before it. So an
id counts as sampled exactly where a recorded answer has it, directly after the ids of that
request's prompt. The built-in tool loop has no other mask; the mask that a user's agent loop
returns is compared with this one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from _inf.turns import Transcript, joined_versions
from _inf.types import Request, RequestOutput, Turn


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A request of a row, `prompt_ids`, and its answer."""

    prompt_ids: list[int]
    answer: RequestOutput

    def kept_in(self, ids: Sequence[int]) -> range:
        """The places in a row's `ids`, its prompt included, where this answer's ids stand: up to
        the first id that differs; none unless all ids before them are the request's."""
        start, sampled = len(self.prompt_ids), self.answer.token_ids
        if list(ids[:start]) != self.prompt_ids:
            return range(0)
        pairs = enumerate(zip(sampled, ids[start:], strict=False))
        same = next((n for n, (one, other) in pairs if one != other), None)
        return range(start, start + (min(len(sampled), len(ids) - start) if same is None else same))


class Recorder:
    """Sends the requests of one row and keeps every answer; used on the engine's thread.

    turn: a backend's. weight_version: of the row, as long as it has no answer.
    """

    def __init__(self, turn: Turn, weight_version: int) -> None:
        self._turn, self._weight_version = turn, weight_version
        self.sampled: list[Sampled] = []

    async def sample(self, request: Request) -> RequestOutput:
        """Have a request answered. An answer without any token, because rows were to end before it
        began, is not kept."""
        answer = await self._turn(request)
        if answer.finish_reason != "abort" or answer.completion_tokens:
            self.sampled.append(Sampled(request.token_ids, answer))
        return answer

    @property
    def answers(self) -> list[RequestOutput]:
        return [request.answer for request in self.sampled]

    @property
    def tokens(self) -> int:
        """How many tokens were sampled so far."""
        return sum(request.answer.completion_tokens for request in self.sampled)

    def logprobs(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> dict[int, float]:
        """The places in `ids`, which follow the row's prompt, that were sampled there, each with
        its log prob."""
        found: dict[int, float] = {}
        for answer, places in self._kept(prompt_ids, ids):
            unsampled = answer.unsampled
            found |= {
                place: logprob
                for number, (place, logprob) in enumerate(
                    zip(places, answer.logprobs, strict=False)
                )
                if number not in unsampled
            }
        return found

    def places(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> list[range]:
        """Where the answers that `ids` has stand in it."""
        return [places for _, places in self._kept(prompt_ids, ids) if places and places.start >= 0]

    def _kept(
        self, prompt_ids: Sequence[int], ids: Sequence[int]
    ) -> Iterator[tuple[RequestOutput, range]]:
        """All answers, each with the places in `ids` where it stands."""
        whole, start = [*prompt_ids, *ids], len(prompt_ids)
        for request in self.sampled:
            kept = request.kept_in(whole)
            yield request.answer, range(kept.start - start, kept.stop - start)

    def versions(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> list[tuple[int, int]]:
        """The versions of the weights that sampled `ids`, as in `RequestOutput`."""
        found: list[tuple[int, int]] = []
        for answer, places in self._kept(prompt_ids, ids):
            found = joined_versions(found, answer.weight_versions, max(0, places.start))
        return found or [(self._weight_version, 0)]

    def row(
        self, prompt_ids: Sequence[int], ended: RequestOutput, transcript: Transcript
    ) -> RequestOutput:
        """Return the finished row: `transcript`, with the counts of all its answers.

        ended: how the row ended, as the `finish_reason`, `error` and `matched_stop` of an answer.
        """
        sampled = [place for place, bit in enumerate(transcript.mask) if bit]
        answers = self.answers
        return RequestOutput(
            token_ids=[transcript.ids[place] for place in sampled],
            logprobs=[transcript.logprobs[place] for place in sampled],
            finish_reason=ended.finish_reason,
            error=ended.error,
            matched_stop=ended.matched_stop,
            prompt_tokens=len(prompt_ids),
            completion_tokens=len(sampled),
            cached_tokens=answers[0].cached_tokens if answers else 0,
            weight_versions=self.versions(prompt_ids, transcript.ids),
            transcript=dataclasses.replace(transcript, prompt_ids=list(prompt_ids)),
        )

    def aborted(
        self, prompt_ids: Sequence[int], transcript: Transcript, error: str
    ) -> RequestOutput:
        """Return a row that was aborted; `transcript` has no ids."""
        ended = RequestOutput(finish_reason="abort", error=error)
        row = self.row(prompt_ids, ended, transcript)
        return dataclasses.replace(row, cached_tokens=0)
