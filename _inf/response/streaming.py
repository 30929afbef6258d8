"""Streams one request; text that was sent never changes.

Later tokens can change the text of earlier ones, so decoding a stream token by token would be
wrong. Here the chunks' joined text is, at any time, the decoded text of their joined token ids.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import dataclasses
import queue
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from _inf.errors import GenerationTimeout
from _inf.parts.grammars import is_constrained
from _inf.parts.part import Part
from _inf.parts.reasoning import said
from _inf.request.sampling import Sampling
from _inf.response.decode import NONE_SHOWN, answer_text, decoded_text, overlap
from _inf.response.deliveries import Deliveries, Newest
from _inf.response.stats import Stats
from _inf.runtime.calls import TIMED_OUT, CancelToken
from _inf.types import Prompt, Put, Request, RequestOutput, Tokenizer

if TYPE_CHECKING:
    from _inf.response.thoughts import Thoughts

# One byte of a character, as SentencePiece and `tokenizers.decoders.ByteFallback` name its token.
BYTE = re.compile("<0x[0-9A-F]{2}>")
Begin: TypeAlias = "Callable[[Request, Put, CancelToken], Future[None]]"  # a backend's `stream`
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoders write it for a part of a character


@dataclasses.dataclass(frozen=True)
class StreamChunk:
    """The text and tokens since the last chunk.

    text: the text of `token_ids`. Text that a later token can still change comes in a later chunk:
        part of a character, or the possible beginning of a stop string.
    token_ids: the tokens of this text; empty if a server gives only text.
    finish_reason: in the last chunk as in `GenerationOutput`, else None.
    logprobs, top_logprobs: of `token_ids`, as in `GenerationOutput`.
    metadata: in the last chunk the row's `matched_stop`, `prompt_tokens`, `completion_tokens`,
        `reasoning_tokens`, `cached_tokens`, `weight_version`, `weight_versions`, `forced_at` and
        `adapter`, as in `GenerationOutput`; else None.
    reasoning: with the config's `reasoning_parser`: text of the thought, which is not in `text`.
        Text that may be part of a mark comes in a later chunk than its tokens; a mark never comes.
    whole_text: the text of `token_ids`, with the thought and its marks; None: `text`.
    """

    text: str
    token_ids: list[int]
    finish_reason: str | None
    logprobs: list[float] = dataclasses.field(default_factory=list)
    top_logprobs: list[dict[int, float]] | None = None
    metadata: dict[str, Any] | None = None
    reasoning: str = ""
    whole_text: str | None = None


@dataclasses.dataclass(eq=False)
class Stream:
    """The chunks of one request. It is sent when the first chunk is read. thoughts: how its text is
    split; None: it is not."""

    begin_request: Begin
    request: Request
    sampling: Sampling
    finish_reason: Callable[[RequestOutput], str | None]
    tokenizer: Tokenizer
    stats: Stats
    thoughts: Thoughts | None = None

    def __post_init__(self) -> None:
        request = self.request
        shown: Mapping[int, str] = {}
        self._cancel, self._splitter = CancelToken(), None
        if (thoughts := self.thoughts) is not None:
            inside = thoughts.inside(request.token_ids, constrained=is_constrained(request.params))
            self._splitter, shown = thoughts.stream(inside=inside), thoughts.shown
        self._text = TextStream(
            self.tokenizer,
            request.params.stop,
            parts=request.params.parts,
            shown=shown,
            **self.sampling.text_options,
        )
        self._thought = ""  # so far

    def chunks(self) -> Iterator[StreamChunk]:
        """Yield the chunks; may be called on any thread."""
        wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        newest = Newest(lambda: wakes.put(None))
        with self._running(newest.put):
            while not newest.ended:
                wakes.get(timeout=self._seconds_left())
                if (row := newest.take()) is not None and (chunk := self._chunk(row)) is not None:
                    yield chunk

    async def achunks(self) -> AsyncIterator[StreamChunk]:
        """Yield the chunks to async code."""
        wakes: asyncio.Queue[None] = asyncio.Queue()
        newest = Newest(partial(Deliveries.to(asyncio.get_running_loop()).wake, wakes))
        with self._running(newest.put):
            while not newest.ended:
                await asyncio.wait_for(wakes.get(), self._seconds_left())
                if (row := newest.take()) is not None and (chunk := self._chunk(row)) is not None:
                    yield chunk

    @contextlib.contextmanager
    def _running(self, put: Callable[[RequestOutput | None], None]) -> Iterator[None]:
        """Send the request; `put` is called with rows, then with None, on the engine's thread."""
        self._cancel.expire_in(self.sampling.timeout)
        with self.stats.call():
            work = self.begin_request(self.request, put, self._cancel)
            work.add_done_callback(lambda _: put(None))
            try:
                yield
            except (queue.Empty, asyncio.TimeoutError):  # no row came in time
                raise GenerationTimeout(TIMED_OUT) from None
            else:
                work.result()
            finally:
                self._cancel.cancel()

    def _seconds_left(self) -> float | None:
        if (left := self._cancel.seconds_left()) == 0:
            raise GenerationTimeout(TIMED_OUT)
        return left

    def _chunk(self, row: RequestOutput) -> StreamChunk | None:
        chunk = self._split(self._text.feed(row), row)
        if chunk is None or row.finish_reason is None:
            return chunk
        self.stats.add_rows([row], [self.request.params])
        tokens = said(row).reasoning_tokens
        if self.thoughts is not None:
            tokens = self.thoughts.tokens(row.token_ids, self._thought) or tokens
        metadata = {**row.about, "weight_version": row.weight_version, "reasoning_tokens": tokens}
        prompt = Prompt(self.request.token_ids)
        for part in self.request.params.parts:
            metadata |= part.added(row, prompt).metadata
        return dataclasses.replace(chunk, finish_reason=self.finish_reason(row), metadata=metadata)

    def _split(self, chunk: StreamChunk | None, row: RequestOutput) -> StreamChunk | None:
        """Take the thought out of a chunk's text; a server may have sent it apart."""
        reasoning = said(row).reasoning
        if new := reasoning[len(self._thought) :]:
            self._thought = reasoning
            chunk = chunk or StreamChunk("", [], None)
            return dataclasses.replace(chunk, reasoning=new, whole_text=None)
        if chunk is None or self._splitter is None or reasoning:
            return chunk
        last = row.finish_reason is not None
        thought, content = self._splitter.feed(chunk.text, last=last)
        self._thought += thought
        return dataclasses.replace(chunk, text=content, reasoning=thought, whole_text=chunk.text)


class TextStream:
    """Turns one request's rows, each with all tokens so far, into `StreamChunk`s.

    The cost of a chunk does not grow with the answer: decoding begins at the last chunk's tokens,
    which is enough context to decode the next ones correctly (for example, with a space between).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str],
        *,
        parts: Sequence[Part] = (),
        skip_special_tokens: bool = True,
        shown: Mapping[int, str] = NONE_SHOWN,
        include_stop: bool = False,
    ) -> None:
        self._tokenizer, self._shown = tokenizer, shown
        self._include_stop = include_stop
        self._parts = parts
        self._stops = () if include_stop else stops  # whose beginnings are held back
        self._skip_special_tokens = skip_special_tokens
        hidden = tokenizer is not None and skip_special_tokens
        self._hidden = {*tokenizer.all_special_ids} - {*shown} if hidden else set()
        self._start = 0  # the token at which decoding begins
        self._sent = 0  # tokens
        self._sent_text = ""  # of the tokens from `_start` to `_sent`
        self._length = 0  # characters sent

    def feed(self, row: RequestOutput) -> StreamChunk | None:
        """Return the increment of `row`, or None if no new text is certain yet."""
        ids, last = row.token_ids, row.finish_reason is not None
        if row.text is not None:  # from a server that gives no tokens
            new = row.text[self._length :]
            return self._chunk(row, new, 0) if new or last else None
        if last:
            text = answer_text(
                row,
                self._tokenizer,
                skip_special_tokens=self._skip_special_tokens,
                shown=self._shown,
                include_stop=self._include_stop,
            )
            return self._chunk(row, text[self._length :], len(ids))
        end, text = self._settled(ids)
        if end == self._sent:
            return None
        new = text[len(self._sent_text) :]
        self._sent_text = text
        if alone := self._decoded(ids[self._sent : end]):
            self._start, self._sent_text = self._sent, alone
        return self._chunk(row, new, end)

    def _chunk(self, row: RequestOutput, text: str, end: int) -> StreamChunk:
        """Return the chunk with this text and the tokens up to `end`."""
        new = slice(self._sent, end)
        fields = {name: value for p in self._parts for name, value in p.in_chunk(row, new).items()}
        self._sent, self._length = end, self._length + len(text)
        ids, logprobs = row.token_ids[new], row.logprobs[new]
        return StreamChunk(text, ids, row.finish_reason, logprobs, **fields)

    def _decoded(self, ids: Sequence[int]) -> str:
        skip = self._skip_special_tokens
        return decoded_text(ids, self._tokenizer, skip_special_tokens=skip, shown=self._shown)

    def _settled(self, ids: Sequence[int]) -> tuple[int, str]:
        """Return how many tokens have a text that no later token can change, and their text."""

        def text(end: int) -> str:
            return self._decoded(ids[self._start : end])

        last = self._bytes_begin(ids)
        whole = text(last)
        certain = whole.removesuffix(UNFINISHED)
        length = len(certain) - max((overlap(certain, stop) for stop in self._stops), default=0)
        if not whole.startswith(self._sent_text):  # an unknown decoder: send all text at the end
            return self._sent, self._sent_text
        if length == len(whole):
            return last, whole
        ends = range(self._sent + 1, last + 1)
        end = self._sent + bisect.bisect_right(ends, length, key=lambda end: len(text(end)))
        while not whole.startswith(text(end)):  # `end` is inside a finished character
            end -= 1
        return end, text(end)

    def _bytes_begin(self, ids: Sequence[int]) -> int:
        """Return where the byte tokens at the end of `ids` begin. Such a run is decoded as a whole
        (Llama 2), so a later byte can turn all of it into U+FFFD, even finished characters."""
        begin = len(ids)
        for index in range(len(ids) - 1, self._sent - 1, -1):
            if BYTE.fullmatch(str(self._tokenizer.convert_ids_to_tokens(ids[index]))):
                begin = index
            elif ids[index] not in self._hidden:
                break
        return begin
