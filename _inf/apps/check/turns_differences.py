"""Where two paths of a conversation differ, and the likely cause of each difference."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections import Counter
from collections.abc import Sequence

from _inf.apps.check.turns_paths import Paths, Segment, thought_of

NEAR = 4  # fewer equal ids than these between two differences make them one
LONG = 4_000  # beyond it frequent ids do not begin a match, which would take minutes
BEFORE = 12  # ids of equal text that are shown before a difference

TAGS = re.compile(r"</?think>|[</>\s]")

THINKING, NO_TOOLS, REWRITTEN = "thinking", "no tools shown", "rewritten"
TOKENS, BROKEN = "other tokens", "special tokens broken"
BOS, SCHEMA = "BOS twice", "tool schema"
CALLS, AFTER_EOS, EOS_TWICE, FIXED = "calls again", "after EOS", "EOS twice", "fixed conversation"
CAUSES = {
    THINKING: "the template leaves out the thinking of earlier answers, which the model sampled",
    NO_TOOLS: "the template shows no tools; ours explains them in a message, and verl does not",
    REWRITTEN: "the template renders earlier messages differently once later ones follow",
    TOKENS: "the same text in other tokens: a whole text is tokenized differently from its parts",
    BROKEN: "special tokens in a tool's or a user's text would end its message; ours breaks them",
    BOS: "verl lets the tokenizer add a BOS, and the template may already have written one",
    SCHEMA: "verl's OpenAIFunctionToolSchema adds keys to the tools (enum: null) or drops some",
    CALLS: "verl renders an answer with calls again; its sampled ids are dropped, its mask stays 1",
    AFTER_EOS: "what the template writes after an EOS is missing: verl continues from sampled ids",
    EOS_TWICE: "the template begins the next message with the EOS, which verl has already written",
    FIXED: "verl renders what follows an answer after a fixed conversation, not after yours",
}
PLACES = {"prompt": "in the prompt", "answer": "in answer {}", "after": "after answer {}"}


@dataclasses.dataclass(frozen=True)
class Difference:
    """One stretch in which a path differs from the one that it is compared with.

    position: of its first id, in the path. place: in words; "in answer 2" is in message 2, from 0.
    before: the equal text in front of it. expected, got: the other path's text and this one's,
    with their ids. cause: the likely one, a key of `CAUSES`.
    """

    position: int
    place: str
    before: str
    expected: str
    expected_ids: list[int]
    got: str
    got_ids: list[int]
    cause: str


def differences(
    expected: Sequence[int], path: Sequence[Segment], paths: Paths, *, of_verl: bool
) -> list[Difference]:
    """Compare a path with the ids of the template whole; of_verl: whether it is verl's."""
    got, cause = ids_of(path), _cause_of_verl if of_verl else _cause
    made: list[Difference] = []
    for a, b, c, d in _stretches(expected, got):
        segment = _segment_at(path, c, d)
        texts = paths.decode(expected[a:b]), paths.decode(got[c:d])
        made.append(
            Difference(
                position=c,
                place=PLACES[segment.kind].format(segment.answer),
                before=paths.decode(got[max(0, c - BEFORE) : c]),
                expected=texts[0],
                expected_ids=list(expected[a:b]),
                got=texts[1],
                got_ids=got[c:d],
                cause=cause(segment, *texts, paths),
            )
        )
    return made


def ids_of(path: Sequence[Segment]) -> list[int]:
    return [token for segment in path for token in segment.ids]


def _stretches(a: Sequence[int], b: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Return the unequal stretches a[i:j], b[k:l]; near ones are joined."""
    found: list[tuple[int, int, int, int]] = []
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=len(a) > LONG)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            continue
        if found and i - found[-1][1] < NEAR:
            i, _, k, _ = found.pop()
        found.append((i, j, k, m))
    return found


def _segment_at(path: Sequence[Segment], start: int, end: int) -> Segment:
    """Return the segment with most of a stretch; where ids are missing, the one that goes on
    there."""
    owners = [place for place, segment in enumerate(path) for _ in segment.ids]
    here = owners[start:end] or owners[start : start + 1] or [-1]
    [(place, _)] = Counter(here).most_common(1)
    return path[place]


def _cause(segment: Segment, expected: str, got: str, paths: Paths) -> str:
    if expected == got:
        return TOKENS
    if paths.template.escape_special_tokens(expected) == got:
        return BROKEN
    thoughts = filter(None, map(thought_of, paths.conversation.messages))
    dropped = any(thought in got and thought not in expected for thought in thoughts)
    if dropped and not TAGS.sub("", expected):
        return THINKING
    return REWRITTEN if paths.shows_tools() else NO_TOOLS


def _cause_of_verl(segment: Segment, expected: str, got: str, paths: Paths) -> str:
    common = _cause(segment, expected, got, paths)
    if common in (TOKENS, THINKING):
        return common
    if not expected and segment.kind != "prompt" and got in paths.eos_texts():
        return EOS_TWICE
    if segment.kind == "answer":
        called = paths.conversation.messages[segment.answer].get("tool_calls")
        return CALLS if called else REWRITTEN
    if segment.kind == "after":
        return FIXED if got or expected.strip() else AFTER_EOS
    if not expected and got == paths.decode(paths.tokenizer("")["input_ids"]):
        return BOS
    return SCHEMA if paths.schemas and paths.shows_tools() else REWRITTEN
