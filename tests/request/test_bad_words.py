"""`bad_words` become the ids that vLLM bans (main at 00388f6, `sampling_params.py`)."""

from __future__ import annotations

from typing import Any

import pytest

from _inf.parts.masks import Masks, completing
from _inf.types import Limits, ModelInfo
from inf import ConfigError
from tests.support.refusals import refused


class Pieces:
    """A tokenizer of whole pieces, the longest first."""

    pieces = {" fox": [1], "fox": [2], " the": [3], "th": [4], "e": [5], " ": [6], "x": [7]}
    pieces |= {" ban": [8], "ban": [9], "ana": [10], "\x00": []}

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, Any]:
        assert not add_special_tokens
        ids = []
        while text:
            piece = max((p for p in self.pieces if text.startswith(p)), key=len)
            ids, text = ids + self.pieces[piece], text.removeprefix(piece)
        return {"input_ids": ids}


def ids(*words: str, vocabulary: int = 100) -> list[list[int]]:
    model = ModelInfo(Pieces(), frozenset(), Limits(9, 9, vocabulary))
    part = Masks.asked({"bad_words": list(words)}, model)
    return [[*found] for found in part.word_ids] if part else []


@pytest.mark.parametrize(
    ("word", "banned"),
    [
        ("banana", [[9, 10], [8, 10]]),
        ("the", [[4, 5]]),  # behind a space it is one token, and vLLM bans it only if as many
        ("  fox fox", [[2, 1], [1, 1]]),  # spaces before a word do not count
    ],
)
def test_word_is_banned_with_and_without_a_space_before_it(word, banned):
    assert ids(word) == banned


def test_word_of_no_token_is_refused_and_one_beyond_the_vocabulary_cannot_come():
    with refused(ConfigError, key="bad_words[1]"):
        ids("fox", "\x00")
    assert ids("fox", "banana", vocabulary=9) == [[2], [1]]


def test_only_a_last_token_is_banned_where_the_others_stand_before_it():
    words = [[9, 10], [8, 10, 5], [7], [8, 8, 6]]
    assert completing(words, [1, 9]) == [10, 7]
    assert completing(words, [8, 8]) == [7, 6]
