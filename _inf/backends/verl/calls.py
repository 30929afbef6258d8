"""The calls on an engine, and the requests that it has sent for them: the weights that computed
their tokens, and which of them were ended early."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from _inf.backends.rows import row_instead
from _inf.backends.verl.sglang_format import ENDED, Answer, output_row
from _inf.backends.verl.tensor_parallel import ALONE, Ranks
from _inf.errors import RequestFailure
from _inf.runtime.calls import CancelToken
from _inf.runtime.host import Host
from _inf.types import Report, Request, RequestOutput


@dataclasses.dataclass
class Call:
    """What verl does not pass on of one call, between the caller's thread and the engine's:
    sampling parameters per row in (None: verl's own, for all rows), outputs per row out.

    ranks: those that make this call too and get its answer. asked: what they must have asked as
    well. failure: of this rank, which is raised where all of them meet.
    """

    host: Host
    cancel: CancelToken
    sampling_params: list[dict[str, Any]] | None = None
    report: Report | None = None
    requests: Sequence[Request] | None = None  # of rows alone: verl need not make tensors of them
    ranks: Ranks = ALONE
    asked: str = ""
    failure: BaseException | None = None
    rows: list[RequestOutput] = dataclasses.field(default_factory=list)
    name: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)

    def rid(self, row: int | str) -> str:
        """A request's id; the scheduler recognizes a call's rows by the part before the dash. No id
        is the beginning of another: SGLang 0.5.9 aborts all requests whose ids begin so
        (`Scheduler.abort_request`)."""
        return f"{self.name}-{row}."

    def made_row(self, output: Answer, params: dict[str, Any], row: int) -> RequestOutput:
        """SGLang's answer to row `row` of the call."""
        if self.requests is None:
            return output_row(output, params, row)
        request = self.requests[row]
        try:
            return output_row(output, params, request.row, parts=request.params.parts)
        except RequestFailure as failure:
            return row_instead(request, failure)

    def run_until_complete(self, work: Coroutine[object, None, object]) -> object:
        """In place of an event loop's: run `work` on the engine's; a failure is kept for
        `broadcast`, where the other ranks wait. Only the first work is run: verl's second is a
        flush of the prefix cache, which `Engine.async_generate` has done (0.6.1,
        `_batch_level_generate_sequences`). It would be a call of its own, which a pause or a change
        of the weights holds back after the rows have ended."""
        if self.failure is not None or self.rows:
            work.close()
            return None
        try:
            return self.host.run(work, self.cancel)
        except BaseException as failure:
            self.failure = failure
            return None

    def broadcast(self, data: list[object]) -> list[object]:
        if self.ranks.size > 1:
            answer = (data, self.rows)
            data, self.rows = self.ranks.from_first_rank(self.asked, answer, self.failure)
        elif self.failure is not None:
            raise self.failure
        return data


current_call: contextvars.ContextVar[Call] = contextvars.ContextVar("inf_call")


class EndedBefore(Exception):
    """A request was to be sent while rows are ended."""


@dataclasses.dataclass
class RunningRow:
    """prompt_tokens: of its prompt. scored: whether it is only scored: ended early it would have
    nothing, so it is not. version: of the weights in use. versions: each with the index of the
    first token that it computed."""

    prompt_tokens: int
    scored: bool
    version: Callable[[], int] = lambda: 0
    versions: list[tuple[int, int]] = dataclasses.field(default_factory=list)


class RunningRows:
    """By their request ids."""

    def __init__(self) -> None:
        self._rows: dict[str, RunningRow] = {}
        self._failures: dict[str, Exception | None] = {}  # of those that were ended
        self._ending = False

    def __len__(self) -> int:
        return len(self._rows)

    def begin(self, rid: str, prompt_tokens: int, *, scored: bool) -> None:
        self._rows[rid] = RunningRow(prompt_tokens, scored)

    def forget(self, rid: str) -> None:
        self._rows.pop(rid, None)
        self._failures.pop(rid, None)

    def sent(self, rid: str, version: Callable[[], int]) -> None:
        """Note that the request goes out now. Raises `EndedBefore` instead while rows end."""
        if (row := self._rows.get(rid)) is not None:
            row.version, row.versions = version, [(version(), 0)]
            if self._ending and not row.scored:
                raise EndedBefore

    def changed(self, tokens: Mapping[str, int]) -> None:
        """Note new weights. tokens: of each request that has not ended, how many it has."""
        for rid in tokens.keys() & self._rows.keys():
            row, first = self._rows[rid], tokens[rid]
            before = [each for each in row.versions if each[1] < first]
            row.versions = [*before, (row.version(), first)]

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        self._ending = True
        try:
            yield
        finally:
            self._ending = False

    def end(self, rids: Iterable[str], failure: Exception | None) -> list[str]:
        """Note that these are aborted: with what they have, or with a failure. Returns those that
        are to be."""
        rows = self._rows
        ended = [rid for rid in rids if failure or rid not in rows or not rows[rid].scored]
        self._failures |= {rid: failure for rid in ended if rid in rows}
        return ended

    def output(self, output: Answer, rid: str) -> Answer:
        """Complete SGLang's answer, which lacks the counts of a request that was aborted before it
        began. Raises the failure with which it was ended."""
        counts = {"prompt_tokens": self._rows[rid].prompt_tokens, "cached_tokens": 0}
        meta = output["meta_info"] = counts | output["meta_info"]
        tokens = max(1, len(output["output_ids"]))  # the last version may have none
        meta["weight_versions"] = [each for each in self._rows[rid].versions if each[1] < tokens]
        if rid in self._failures and (finish := meta["finish_reason"]):
            if (failure := self._failures[rid]) is not None:
                raise failure
            if finish["type"] == "abort":
                meta["finish_reason"] = ENDED
        return output

    def nothing(self, rid: str) -> Answer:
        """The answer, in SGLang's form, to a request that was not sent."""
        about = {"finish_reason": ENDED, "output_token_logprobs": [], "output_top_logprobs": []}
        return self.output({"output_ids": [], "meta_info": about}, rid)
