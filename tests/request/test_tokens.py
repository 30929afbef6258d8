"""Every form of prompt becomes the right token ids; errors name the place."""

from __future__ import annotations

import copy
import dataclasses
import enum
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pydantic
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings

from _inf.errors import PromptError
from _inf.request.prompts import normalize
from _inf.request.template import Template
from _inf.request.tokenize import tokenize, tokenize_responses
from _inf.types import Limits, Prompt
from tests.support.fuzz_cases import PROMPTS
from tests.support.refusals import refused
from tests.support.sampling import sampled
from tests.support.tiny import VOCABULARY, tiny_model

LIMITS = Limits(prompt=64, total=80, vocabulary=VOCABULARY)
HUGE = 10**5000  # more digits than Python prints
USER = {"role": "user", "content": "hi"}
TEXT = {"type": "text", "text": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
CALL = {"function": {"name": "f", "arguments": {"a": [1]}}}


def templated(tokenizer: Any, template: Any) -> Any:
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return other


def ids(
    prompts: Any, tokenizer: Any, limits: Limits = LIMITS, kwargs: Any = None
) -> list[list[int]]:
    return [p.token_ids for p in tokenize(normalize(prompts), Template(tokenizer, kwargs), limits)]


def refusal(prompts: Any, tokenizer: Any, limits: Limits = LIMITS, kwargs: Any = None) -> str:
    with pytest.raises(PromptError) as caught:
        tokenize(normalize(prompts), Template(tokenizer, kwargs), limits)
    assert re.match(rf"prompt {caught.value.index}[ :,]", str(caught.value))
    return str(caught.value)


def message(**changed: Any) -> dict[Any, Any]:
    return {**USER, **changed}


class Role(str, enum.Enum):
    USER = "user"


class ModelMessage(pydantic.BaseModel):
    role: str
    content: str
    audio: None = None


def chat(*turns: tuple[str, str]) -> str:
    """Return the text that the tiny model's chat template should render."""
    written = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    return written + "<|im_start|>assistant\n"


# ── Forms ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "prompts",
    [
        np.array(["hi"], dtype=object),
        pd.Series([[USER]], index=[7]),
        [(USER,)],
        Dataset.from_dict({"prompt": [[USER]]})["prompt"],
        [{"role": Role.USER, "content": np.str_("hi")}],
        [message(content=({"type": "text", "text": "h"}, {"type": "text", "text": "i"}))],
        [message(content=np.array([{**TEXT, "image_url": None}]))],
        [message(name=None, tool_calls=None, refusal="", annotations=[], function_call={})],
        [ModelMessage(role="user", content="hi")],
        [SimpleNamespace(role="user", content="hi", tool_calls=None)],
    ],
)
def test_one_user_message_is_one_prompt_in_every_form(prompts, tokenizer):
    text = chat(("user", "hi"))
    assert ids(prompts, tokenizer) == [tokenizer.encode(text)]


def test_prompts_of_a_parquet_file_are_its_conversations(tokenizer, tmp_path):
    """verl's own form; in a table every message has the keys of all, with null for missing ones."""
    asked = {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": "1"}]}
    talks = [[USER], [USER, asked, {"role": "tool", "content": "4", "tool_call_id": "1"}]]
    pd.DataFrame({"prompt": talks}).to_parquet(tmp_path / "a.parquet")
    column = pd.read_parquet(tmp_path / "a.parquet")["prompt"]
    assert isinstance(column[1], np.ndarray) and "tool_calls" in column[0][0]
    for prompts in (column, column.tolist(), column.to_numpy()):
        (first,), (_, second, third) = normalize(prompts)
        assert first == USER
        assert set(second) == {"role", "content", "tool_calls"} and second["content"] == ""
        assert third == talks[1][2]
        assert second["tool_calls"][0]["function"]["arguments"] == {"a": [1]}


def test_answer_of_openais_client_goes_into_the_next_prompt(tokenizer):
    from openai.types.chat import ChatCompletionMessage

    plain = ChatCompletionMessage(role="assistant", content="yes?", annotations=[])
    asked = [USER, {"role": "assistant", "content": "yes?"}, USER]
    for answer in (plain, plain.model_dump()):
        assert ids([USER, answer, USER], tokenizer) == ids(asked, tokenizer)
    function = {"name": "f", "arguments": '{"a": [1]}'}
    calls = [{"id": "call1", "type": "function", "function": function}]
    calling = ChatCompletionMessage.model_validate({"role": "assistant", "tool_calls": calls})
    ((_, said),) = normalize([USER, calling])
    expected = [{**calls[0], "function": {"name": "f", "arguments": {"a": [1]}}}]
    assert said == {"role": "assistant", "content": "", "tool_calls": expected}
    refused = ChatCompletionMessage(role="assistant", content=None, refusal="No.")
    assert refusal([USER, refused], tokenizer).startswith("prompt 0, message 1: unknown key 'ref")


def test_histories_of_other_clients_are_taken():
    thought = {"reasoning_content": "hm"}
    said = {"role": "assistant", "content": "", **thought}
    for fields in ({"reasoning": "hm"}, thought, {"reasoning": "hm", **thought}):
        for content in (None, ""):
            answer = {"role": "assistant", "content": content, **fields}
            assert normalize([USER, answer]) == [[USER, said]]
        ((called,),) = normalize([{"role": "assistant", "tool_calls": [CALL], **fields}])
        assert {**called, "tool_calls": []} == {**said, "tool_calls": []}
    kept = {"cache_control": {"type": "ephemeral"}}
    assert normalize([{"role": "user", "content": [{**TEXT, **kept}], **kept}]) == [[USER]]


def test_special_tokens_of_the_tokenizer_are_added_to_text_and_not_to_messages():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model(bos=True))
    expected = tokenizer.encode("Once upon a")
    assert expected[0] == tokenizer.bos_token_id not in ids("hi", tokenizer)[0]
    for template in (tokenizer, templated(tokenizer, None)):
        both = [{"text": "Once upon a"}, {"prompt_token_ids": [5]}]
        assert ids(both, template) == [expected, [5]]
    own = templated(tokenizer, "{{ bos_token }}{{ messages[0]['content'] }}")
    assert ids("hi", own) == [tokenizer.encode("hi")]


def test_lists_are_batches_or_one_conversation_and_keep_their_order(tokenizer):
    turns = [("system", "Be kind."), ("user", "hi"), ("assistant", "yes?"), ("user", "2 + 2")]
    talk = [{"role": role, "content": content} for role, content in turns]
    expected = tokenizer.encode(chat(*turns))
    assert ids(talk, tokenizer) == [expected]
    mixed = ["a", talk, {"prompt_token_ids": [9, 5]}, {"prompt_token_ids": (7,)}]
    assert ids(mixed, tokenizer) == [tokenizer.encode(chat(("user", "a"))), expected, [9, 5], [7]]
    assert ids([], tokenizer) == ids((), tokenizer) == []
    (sent,) = ids({"prompt_token_ids": [np.int32(0), torch.tensor(383)]}, tokenizer)
    assert sent == [0, 383] and {*map(type, sent)} == {int}


@pytest.mark.parametrize(
    ("text", "read"), [(" \n", {}), ('{"a": 1}', {"a": 1}), *[("[" * 100_000,) * 2]]
)
def test_arguments_of_a_call_are_read_where_that_is_possible(text, read):
    call = {"function": {"name": "f", "arguments": text}}
    ((said,),) = normalize([[{"role": "assistant", "content": "", "tool_calls": [call]}]])
    assert said["tool_calls"][0]["function"]["arguments"] == read


# ── Refusals ─────────────────────────────────────────────────────────────────────────────────────


# One prompt each, and what its refusal says after "prompt N".
BAD = [
    (torch.ones(1, device="meta"), " is of type Tensor"),
    ("", " is an empty string"),
    (SimpleNamespace(**USER), " is one message; put it into a list: [message]."),
    ({3: 1, None: 2, "a": 3}, " is a mapping with the keys [3, None, 'a']"),
    ({"prompt_token_ids": []}, ": prompt_token_ids is empty"),
    ({"prompt_token_ids": "5"}, ": prompt_token_ids is of type str"),
    ({"prompt_token_ids": [5, True]}, ": prompt_token_ids[1] is of type bool"),
    ({"prompt_token_ids": [5, -1]}, ": prompt_token_ids[1] is -1, outside"),
    ({"prompt_token_ids": [VOCABULARY]}, f": prompt_token_ids[0] is {VOCABULARY}, outside"),
    ({"prompt_token_ids": [5, HUGE]}, ": prompt_token_ids[1] is"),
    ([], " is a conversation without messages"),
    ([[USER]], ", message 0 is of type list"),
    ([USER, {"role": "user"}], ", message 1 has no 'content'"),
    ([message(role="usr")], ", message 0: unknown role 'usr'; did you mean 'user'?"),
    ([message(content=None)], ", message 0: content is None"),
    ([message(content=[TEXT, {"type": "text"}])], ", message 0: content[1]: text is None"),
    ([message(content=[{**TEXT, "txt": 1}])], ", message 0: content[0]: unknown key 'txt'"),
    ([message(content=[TEXT, IMAGE])], ", message 0: content[1] is a part of type 'image_url'"),
    ([message(reasoning="a", reasoning_content="b")], ", message 0: reasoning_content and reas"),
    ([message(tool_calls=[5])], ", message 0, tool_calls[0]: 5 is not {"),
    ([message(contents="hi")], ", message 0: unknown key 'contents'; did you mean 'content'?"),
    ({"text": ""}, ": the text is empty"),
    ("a\udc00", ": the model's chat template or tokenizer refused it: ValueError: it contains a l"),
]


@pytest.mark.parametrize(
    ("prompt", "says"), BAD, ids=[f"{n}{says}" for n, (_, says) in enumerate(BAD)]
)
def test_bad_prompt_is_refused_by_its_index(prompt, says, tokenizer):
    good = {"prompt_token_ids": [5]}
    assert refusal([good, "hi", prompt], tokenizer).startswith(f"prompt 2{says}")
    if not isinstance(prompt, list):  # alone, a list is a batch
        assert refusal(prompt, tokenizer).startswith(f"prompt 0{says}")
    assert refusal([1, 2], tokenizer).startswith("prompt 0 is of type int; a prompt is a string")
    assert refusal([USER, "a"], tokenizer).startswith("prompt 0 is one message; put it into")


@settings(max_examples=250)
@given(prompts=PROMPTS)
def test_anything_at_all_ends_in_prompts_or_in_a_refusal_by_index(prompts, tokenizer):
    try:
        answered = tokenize(normalize(prompts), Template(tokenizer), LIMITS)
    except PromptError as refused:
        assert re.match(rf"prompt {refused.index}[ :,]", str(refused))
        return
    for prompt in answered:
        assert 0 < len(prompt.token_ids) <= LIMITS.prompt and not prompt.truncated_tokens
        assert all(type(i) is int and 0 <= i < VOCABULARY for i in prompt.token_ids)


# ── Templates ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('only ' + messages[0]['content']) }}", "TemplateError: only no"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("", "renders it to nothing"),
        (
            None,
            "no chat template to render messages with; give one (chat_template), or send",
        ),
    ],
)
def test_template_that_fails_is_an_error_with_the_prompts_index(template, says, tokenizer):
    prompts = [{"prompt_token_ids": [5]}, "no"]  # ids need no template
    said = refusal(prompts, templated(tokenizer, template))
    assert said.startswith("prompt 1: ") and says in said


def test_template_kwargs_reach_the_template(tokenizer):
    (thinking,) = ids("hi", tokenizer)
    (not_thinking,) = ids("hi", tokenizer, kwargs={"enable_thinking": False})
    assert thinking == tokenizer.encode(chat(("user", "hi")))
    assert not_thinking == thinking + tokenizer.encode("<think>\n\n</think>\n\n")
    kwargs = sampled(chat_template="{{ messages[0].content }}!").template_kwargs
    for own in (tokenizer, templated(tokenizer, None)):
        assert ids("hi", own, kwargs=kwargs) == [tokenizer.encode("hi!")]
    assert "tokenizer refused it" in refusal("hi", tokenizer, kwargs={"messages": []})


def test_final_message_is_left_open_and_only_an_assistants_text_can_be(tokenizer):
    kwargs = sampled(continue_final_message=True).template_kwargs
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": " So "}]
    [open_ended] = ids([talk], tokenizer, kwargs=kwargs)
    assert tokenizer.decode(open_ended).endswith("assistant\n So ")
    assert "has the role user" in refusal("hi", tokenizer, kwargs=kwargs)
    silent = [*talk[:1], {**talk[1], "content": " "}]
    said = refusal([silent], tokenizer, kwargs=kwargs)
    assert "the last message has no text" in said


def test_response_that_is_none_and_token_that_the_model_lacks_are_refused(tokenizer):
    """A tokenizer may have more tokens than the model; the engine would die of them."""
    larger = copy.deepcopy(tokenizer)
    larger.add_tokens(["<|new|>"])
    assert larger.encode("<|new|>") == [VOCABULARY]
    said = refusal(["hi", "a<|new|>"], larger)
    assert said.startswith("prompt 1") and str(VOCABULARY) in said
    assert refusal([{"text": "a<|new|>"}], larger).startswith("prompt 0: the text's token[1] is")
    for response, says in (
        ([5, "a"], "response 1[1] is of type str"),
        ([VOCABULARY], "response 1[0] is 384, outside"),
        ("a<|new|>", "response 1: the text's token[1] is 384, outside"),
        ("\ud800", "response 1 contains a lone surrogate"),
    ):
        with refused(PromptError, f"^{re.escape(says)}", index=1):
            tokenize_responses(["hi", response], 2, larger, LIMITS)


# ── Lengths ──────────────────────────────────────────────────────────────────────────────────────


def test_prompt_may_fill_the_limit_to_the_token_and_one_more_is_refused(tokenizer):
    full = {"prompt_token_ids": [5] * 64}
    assert ids(full, tokenizer) == [[5] * 64]
    said = refusal(["hi", {"prompt_token_ids": [5] * 65}], tokenizer)
    assert said.startswith("prompt 1 has 65 tokens, above the limit of 64 (rollout.prompt_length)")


def test_truncation_keeps_the_asked_side_and_counts_what_it_cut(tokenizer):
    given_ids = [*range(10), *range(70)]
    for side, kept in (("left", given_ids[-64:]), ("right", given_ids[:64])):
        limits = Limits(64, 80, VOCABULARY, side)
        prompts = ["hi", {"prompt_token_ids": given_ids}, {"prompt_token_ids": given_ids[:64]}]
        short, cut, full = tokenize(normalize(prompts), Template(tokenizer), limits)
        assert cut == Prompt(kept, truncated_tokens=16, index=1) and len(given_ids) == 80
        assert short.truncated_tokens == full.truncated_tokens == 0
        limits = dataclasses.replace(limits, truncate=None if side == "left" else "left")
        assert tokenize(normalize(prompts), Template(tokenizer), limits, truncate=side)[1] == cut
    odd = {"prompt_token_ids": [-1, *range(70)]}  # also where it would be cut
    assert "[0] is -1" in refusal(odd, tokenizer, limits)


def test_each_prompt_must_fit_with_its_own_max_tokens(tokenizer):
    prompts = [[5] * 3, [5] * 64]
    tokenize(prompts, Template(tokenizer), LIMITS, [77, 16])
    says = "^prompt 1 has 64 tokens; with max_tokens=17 that is 81, above .*At most max_tokens=16"
    with refused(PromptError, says, index=1):
        tokenize(prompts, Template(tokenizer), LIMITS, [77, 17])
    with refused(PromptError, index=0):
        tokenize(prompts, Template(tokenizer), LIMITS, [10**30, 16])
