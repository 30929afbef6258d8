"""Splits a model's answer into its thought and its content, by the marks of `reasoning_parser`.

Only text is split: token ids, masks and log probs stay as they are. A thought stands at the
beginning of an answer, whose prompt or first mark opens it, and ends at the first end mark, or with
the answer. Under a grammar a prompt opens none, because the grammar holds from the first token on.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Collection, Mapping, Sequence

from _inf.config import Config, ReasoningMarks
from _inf.parts.budget.budget import own_part
from _inf.parts.grammars import is_constrained
from _inf.parts.reasoning import thought
from _inf.request.sampling import Sampling
from _inf.response.decode import answer_text, last_turn, overlap
from _inf.response.output import GenerationOutput
from _inf.response.row import GenerationRow
from _inf.types import ModelInfo, RequestOutput, SamplingParams, Tokenizer


class ThoughtStream:
    """Splits a text that comes in parts. What may be a part of a mark, or white space around one,
    is held back until it is certain; white space at both ends of the thought is left out.

    inside: whether the answer begins in a thought. thinking: whether the text ends in one.
    """

    def __init__(self, marks: ReasoningMarks, *, inside: bool) -> None:
        self._marks, self._inside = marks, inside
        self._begun = False  # what the text begins with is known
        self.thinking = False
        self._skips_space = False  # at the beginning of a thought, and of the content after one
        self._held = ""

    def feed(self, text: str, *, last: bool) -> tuple[str, str]:
        """Add a part; return what is certain and was not before: of the thought, and of the
        content."""
        self._held += text
        if not self._begun:
            self._begin(last=last)
        thought = self._of_thought(last=last) if self.thinking else ""
        return thought, self._of_content() if self._begun and not self.thinking else ""

    def _begin(self, *, last: bool) -> None:
        stripped, start = self._held.lstrip(), self._marks.start
        if stripped.startswith(start):
            self._held, self._inside = stripped.removeprefix(start), True
        elif start.startswith(stripped) and not last:
            return
        self._begun, self.thinking, self._skips_space = True, self._inside, self._inside

    def _of_thought(self, *, last: bool) -> str:
        self._skip_space()
        thought, end, after = self._held.partition(self._marks.end)
        if end:
            self.thinking, self._skips_space = False, True
            self._held = after
            return thought.rstrip()
        certain = len(thought) if last else len(thought) - overlap(thought, self._marks.end)
        thought = thought[:certain].rstrip()
        self._held = self._held[len(thought) :]
        return thought

    def _of_content(self) -> str:
        self._skip_space()
        content, self._held = self._held, ""
        return content

    def _skip_space(self) -> None:
        if self._skips_space:
            self._held = self._held.lstrip()
            self._skips_space = not self._held


class Thoughts:
    """How the thoughts of one model are found. tokenizer: None if a server takes and gives text.
    turn_ends: the tokens that end a message.

    shown: the marks that are special tokens, by their ids; they are decoded where others are not.
    """

    def __init__(
        self, marks: ReasoningMarks, tokenizer: Tokenizer | None, turn_ends: Collection[int] = ()
    ) -> None:
        self.marks, self._tokenizer, self._turn_ends = marks, tokenizer, turn_ends
        self.shown: Mapping[int, str] = {}
        self._end_id: int | None = None
        if tokenizer is not None:
            vocabulary = tokenizer.get_vocab()
            ids = {mark: vocabulary.get(mark) for mark in (marks.start, marks.end)}
            self._end_id = ids[marks.end]
            self.shown = {
                token: mark
                for mark, token in ids.items()
                if token is not None and not tokenizer.decode([token], skip_special_tokens=True)
            }

    def inside(self, before: Sequence[int], *, constrained: bool) -> bool:
        """Whether an answer to these ids begins in a thought: by the rule of
        `thinking_budget.opened`, but in text, whose tokens may join a mark with what is beside it.
        constrained: a grammar makes it."""
        if self._tokenizer is None or constrained:
            return False
        text = self._text(own_part(before, self._turn_ends))
        closed = text.rfind(self.marks.end)
        return text.rfind(self.marks.start) > closed or (self.marks.unopened and closed < 0)

    def split_rows(
        self, output: GenerationOutput, outputs: Sequence[RequestOutput], sampling: Sampling
    ) -> GenerationOutput:
        """Split the texts of the rows' last answers."""
        places = zip(output, outputs, sampling.rows, strict=True)
        options = sampling.text_options
        return GenerationOutput([self._split_row(*each, options) for each in places])

    def _split_row(
        self,
        row: GenerationRow,
        output: RequestOutput,
        params: SamplingParams,
        options: Mapping[str, bool],
    ) -> GenerationRow:
        if row.reasoning is not None:  # a server has split it
            return row
        answer, text = last_turn(output), row.completion
        if not self.shown.keys().isdisjoint(answer.token_ids):
            text = answer_text(answer, self._tokenizer, shown=self.shown, **options)
        inside = self.inside(_ids_before(row), constrained=is_constrained(params))
        reasoning, content, _ = self.split(text, inside=inside)
        added = thought(reasoning, self.tokens(answer.token_ids, reasoning))
        return dataclasses.replace(
            row,
            completion=content,
            whole_text=text,
            parts=[*row.parts, added],
        )

    def stream(self, *, inside: bool) -> ThoughtStream:
        return ThoughtStream(self.marks, inside=inside)

    def split(self, text: str, *, inside: bool) -> tuple[str, str, bool]:
        """Return an answer's thought, its content, and whether it is still in the thought."""
        stream = self.stream(inside=inside)
        thought, content = stream.feed(text, last=True)
        return thought, content, stream.thinking

    def tokens(self, ids: list[int], thought: str) -> int:
        """How many of an answer's tokens are its thought, marks included: all up to the end mark,
        or all if there is none."""
        if not thought or self._tokenizer is None:
            return 0
        if self._end_id in ids:
            return ids.index(self._end_id) + 1
        places = range(len(ids) + 1)
        return min(len(ids), bisect.bisect_left(places, True, key=lambda n: self._ended(ids[:n])))

    def _ended(self, ids: Sequence[int]) -> bool:
        return self.marks.end in self._text(ids)

    def _text(self, ids: Sequence[int]) -> str:
        assert self._tokenizer is not None
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def _ids_before(row: GenerationRow) -> Sequence[int]:
    """Return the ids that a row's last answer followed."""
    before = row.prompt_token_ids or []
    if (transcript := row.transcript) is None or not transcript.answers:
        return before
    return [*before, *transcript.ids[: transcript.answers[-1].start]]


def thoughts_of(config: Config, model: ModelInfo) -> Thoughts | None:
    """How an engine's answers are split; None: they are not."""
    if (marks := config.reasoning_parser) is None:
        return None
    return Thoughts(marks, model.tokenizer, model.eos_token_ids)
