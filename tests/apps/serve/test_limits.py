"""`prompt_length` bounds a served conversation's first turn only, `max_model_len` all of them."""

from __future__ import annotations

import functools
from typing import Any

from inf import InferenceEngine
from tests.support.serve_clients import CHAT, COMPLETION, Http, user

BEFORE = [user("Hi"), {"role": "assistant", "content": "Hello"}]
TWO = {"max_tokens": 2, "return_token_ids": True}


def rendered(tiny: InferenceEngine, messages: Any) -> list[int]:
    ids = tiny.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    return list(ids)


def of_length(tiny: InferenceEngine, tokens: int, before: list[Any]) -> list[Any]:
    """The messages with one more by a user, rendered to so many tokens."""
    size = functools.cache(lambda text: len(rendered(tiny, [*before, user(text)])))
    text = "Go "
    while size(text) < tokens:
        text += "é" if size(text + "é") <= tokens else "!"
    assert size(text) == tokens
    return [*before, user(text)]


def test_prompt_length_bounds_first_turns_only(tiny, http):
    limits = tiny.model.limits
    result = [user("Hi"), {"role": "tool", "content": "Hello", "tool_call_id": "a"}]
    for before, most, limit in (
        ([], limits.prompt, limits.prompt),
        (BEFORE, limits.total - 2, limits.total),
        (result, limits.total - 2, limits.total),
    ):
        messages = of_length(tiny, most, before)
        assert http.post(CHAT, messages=messages, **TWO)["usage"]["prompt_tokens"] == most
        assert http.send(CHAT, messages=messages, stream=True, **TWO).status_code == 200
        long = of_length(tiny, most + 1, before)
        http.post(CHAT, 400, messages=long, stream=True, **TWO)
        error = http.post(CHAT, 400, messages=long, **TWO)["error"]
        assert error["code"] == "context_length_exceeded"
        assert f" {most + 1} tokens" in error["message"] and f" {limit} " in error["message"]


def test_ids_that_go_on_from_an_answer_are_a_later_turn(tiny, tiny_server):
    limits, http = tiny.model.limits, Http(tiny_server, "long")
    ids = [7] * limits.prompt
    for _ in range(2):
        sent = ids
        [choice] = http.post(COMPLETION, prompt=ids, **TWO)["choices"]
        ids = [*ids, *choice["token_ids"], 8]
    [trace] = tiny_server.traces("long")
    assert trace.prompt_token_ids + trace.token_ids == ids[:-1] and len(sent) > limits.prompt
    for prompt in ([8, *sent[1:]], sent + [8] * (limits.total - len(sent))):
        error = http.post(COMPLETION, 400, prompt=prompt, **TWO)["error"]
        assert error["code"] == "context_length_exceeded"


def test_later_turn_is_cut_only_where_its_answer_would_not_fit(tiny, http):
    limits = tiny.model.limits
    long = of_length(tiny, limits.total + 9, BEFORE)
    extra = {"truncate_prompt": "left", "stop_token_ids": [*range(384)]}  # one token
    for asked, room in ({"max_tokens": 3}, 3), ({}, tiny.config.rollout.response_length):
        whole = http.post(CHAT, messages=long, return_token_ids=True, **asked, **extra)
        assert whole["prompt_token_ids"] == rendered(tiny, long)[-(limits.total - room) :]
