"""Thoughts are split from answers, whatever the chunks, and no mark of one stays in either text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from _inf.config import ReasoningMarks, load_config
from _inf.parts.budget.budget import opened
from _inf.parts.typed import GenerateParams
from _inf.request.sampling import Sampling, resolve
from _inf.response.decode import answer_text, decode, decoded_text
from _inf.response.thoughts import Thoughts, ThoughtStream
from _inf.turns import Transcript
from _inf.types import Limits, ModelInfo, Prompt, RequestOutput, ThoughtMarks
from inf import ConfigError
from tests.support.tiny import IM_END, IM_START, PAD

THINK = ReasoningMarks(start="<think>", end="</think>")
PIECES = st.sampled_from(["<think>", "</think>", "<th", "</", ">", "a", " ", "\n", "<", "think>"])


def split(text: str, *, inside: bool = False) -> tuple[str, str, bool]:
    return Thoughts(THINK, None).split(text, inside=inside)


@pytest.mark.parametrize(
    ("text", "inside", "thought", "content"),
    [
        ("Paris.", False, "", "Paris."),
        ("<think>\nFrance?\n</think>\n\nParis. ", False, "France?", "Paris. "),
        ("France?\n</think>\n\nParis.", True, "France?", "Paris."),
        ("France? </thi", True, "France? </thi", ""),
        ("A <think> tag.", False, "", "A <think> tag."),  # not at the beginning
        ("<think>a</think>b<think>c</think>", False, "a", "b<think>c</think>"),
    ],
)
def test_thought_is_what_stands_between_the_marks(text, inside, thought, content):
    assert split(text, inside=inside)[:2] == (thought, content)


@given(st.lists(PIECES, max_size=12), st.booleans())
@example(["<think>", "a", "</", "a", "</", "think>", "\n", "a"], False)
def test_parts_of_a_text_are_split_as_the_whole(pieces, inside):
    text = "".join(pieces)
    for parts in (pieces, list(text)):
        stream, thought, content = ThoughtStream(THINK, inside=inside), "", ""
        for part in [*parts, None]:
            new = stream.feed(part or "", last=part is None)
            thought, content = thought + new[0], content + new[1]
            assert split(text, inside=inside)[0].startswith(thought)
            assert "</think>" not in thought
        assert (thought, content, stream.thinking) == split(text, inside=inside)


def test_text_of_a_thought_comes_at_once():
    stream = ThoughtStream(THINK, inside=False)
    said = [stream.feed(part, last=False) for part in ("<think>", "\nSo ", "what", "</", "x")]
    assert said == [("", ""), ("So", ""), (" what", ""), ("", ""), ("</x", "")]


# ─── With a tokenizer ───


def row(tokenizer: Any, text: str, **fields: Any) -> RequestOutput:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return RequestOutput(ids, finish_reason="stop", completion_tokens=len(ids), **fields)


def sampling(tokenizer: Any) -> Sampling:
    model = ModelInfo(tokenizer, frozenset([2]), Limits(99, 99, 384))
    return resolve(GenerateParams(), load_config({}, {}).rollout, range(1), model)


@pytest.mark.parametrize(
    ("prompt", "unopened", "inside"),
    [
        ("<|im_start|>assistant\n", False, False),
        ("<|im_start|>assistant\n<think>\n", False, True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False, False),
        ("<|im_start|>assistant\n<think>\nOkay, so first", False, True),  # to be continued
        (f"<|im_start|>assistant\n{'It is. ' * 20}", True, True),
    ],
)
def test_prompt_opens_a_thought(tokenizer, prompt, unopened, inside):
    ids, ends = tokenizer(prompt)["input_ids"], [tokenizer.convert_tokens_to_ids(IM_END)]
    thoughts = Thoughts(THINK.model_copy(update={"unopened": unopened}), tokenizer, ends)
    assert thoughts.inside(ids, constrained=False) is inside
    assert not thoughts.inside(ids, constrained=True)  # the grammar's text is the answer


@given(ids=st.lists(st.sampled_from([1, 2, 3, 40, 41]), max_size=40), unopened=st.booleans())
def test_budget_counts_the_thoughts_that_are_split(tokenizer, ids, unopened):
    marks = ReasoningMarks(start=IM_START, end=PAD, unopened=unopened)
    start, end, ends = tokenizer.convert_tokens_to_ids([IM_START, PAD, IM_END])
    thoughts = Thoughts(marks, tokenizer, [ends])
    counted = opened(ids, ThoughtMarks([start], [end], unopened, [ends]))
    assert thoughts.inside(ids, constrained=False) is (counted is not None)


@pytest.mark.parametrize(
    ("text", "of_thought"),
    [("<think>a b</think> c d", "<think>a b</think>"), ("<think>a b", "<think>a b"), ("a", "")],
)
def test_tokens_of_a_thought_are_counted_with_its_marks(tokenizer, text, of_thought):
    thoughts, output = Thoughts(THINK, tokenizer), row(tokenizer, text)
    counted = thoughts.tokens(output.token_ids, split(text)[0])
    said = tokenizer.decode(output.token_ids[:counted])
    assert said.startswith(of_thought) and len(said) <= len(of_thought) + 1


def test_marks_that_are_special_tokens_are_found(tokenizer):
    """As Mistral's; a text without special tokens would not have them."""
    marks = ReasoningMarks(start="<|im_start|>", end="<|pad|>")
    thoughts, output = Thoughts(marks, tokenizer), row(tokenizer, "<|im_start|>So<|pad|>Paris")
    text = answer_text(output, tokenizer, skip_special_tokens=True, shown=thoughts.shown)
    assert thoughts.split(text, inside=False) == ("So", "Paris", False)
    assert thoughts.tokens(output.token_ids, "So") == 4


def test_any_number_of_shown_marks_is_decoded(tokenizer):
    mark, end, word = tokenizer.convert_tokens_to_ids([IM_START, IM_END, "a"])
    ids = [word, mark, mark, word, end] * 1500 + [mark]
    text = decoded_text(ids, tokenizer, skip_special_tokens=True, shown={mark: "<think>"})
    assert text == "a<think><think>a" * 1500 + "<think>"


def test_thought_of_an_answer_that_ends_in_forced_tokens_is_split(tokenizer):
    """Forced tokens are part of the answer, whatever their mask is."""
    before = tokenizer("<|im_start|>assistant\n<think>\n")["input_ids"]
    said, end = (tokenizer(text)["input_ids"] for text in ("So it is", "</think>"))
    ids, mask = said + end, [1] * len(said) + [0] * len(end)
    turns = Transcript([], ids, mask, [0.0] * len(ids), [range(len(ids))])
    output = RequestOutput(said, finish_reason="length", transcript=turns)
    own = sampling(tokenizer)
    decoded = decode([output], [Prompt(before)], own, tokenizer, 99)
    [made] = Thoughts(THINK, tokenizer).split_rows(decoded, [output], own)
    assert (made.reasoning, made.completion) == ("So it is", "")


def test_parser_is_a_name_of_vllms_or_two_marks():
    own = {"start": "[a]", "end": "[b]"}
    for parser, marks in (("qwen3", THINK), (own, ReasoningMarks(start="[a]", end="[b]"))):
        assert load_config({"reasoning_parser": parser}, {}).reasoning_parser == marks
    with pytest.raises(ConfigError, match="not a reasoning parser; did you mean 'qwen3'"):
        load_config({"reasoning_parser": "qwen4"}, {})
