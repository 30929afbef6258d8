"""The `openai` client against a served engine: what it gets is what `generate` gives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion, CompletionChoice
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.support.serve_clients import (
    CHAT,
    COMPLETION,
    joined_chat,
    user,
    whole_chat,
)

ASK = [user("Write one line about a robot.")]
COLOR = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green"]}},
    "required": ["color"],
    "additionalProperties": False,
}
OF_COLOR = {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOR}}


class RunningChoice(CompletionChoice):
    """The package's type, with the value of a choice that has not ended."""

    finish_reason: str | None


class RunningCompletion(Completion):
    choices: list[RunningChoice]


@pytest.fixture(scope="module")
def model(tiny_client):
    [model] = tiny_client.models.list().data
    assert tiny_client.models.retrieve(model.id).id == model.id
    return model.id


def test_model_says_its_limits(tiny, tiny_client):
    [about] = list[Any](tiny_client.models.list().data)
    assert (about.root, about.parent) == (tiny.config.model_name, None)
    assert about.max_model_len == tiny.model.limits.total
    assert (about.prompt_length, about.response_length) == (512, 128)


# ─── Chat ───


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 11, "n": 4}], ids=str)
def test_chat_has_the_tokens_and_log_probs_of_generate(sampling, tiny, tiny_client, model):
    given = {"model": model, "messages": ASK, "max_tokens": 20, **sampling}
    given |= {"logprobs": True, "top_logprobs": 2, "extra_body": {"return_token_ids": True}}
    rows = tiny.generate([ASK], max_tokens=20, logprobs=2, **sampling)
    answer = tiny_client.chat.completions.create(**given)
    choices, ids = whole_chat(answer)
    assert [choice.ids for choice in choices] == rows.token_ids
    assert [choice.text for choice in choices] == rows.completions
    assert len(set(map(tuple, rows.token_ids))) == sampling.get("n", 1)
    assert answer.usage.prompt_tokens == len(ids)
    assert answer.usage.completion_tokens == sum(map(len, rows.token_ids))
    cached = tiny.generate([ASK], max_tokens=1)[0].cached_tokens
    assert answer.usage.to_dict()["prompt_tokens_details"] == {"cached_tokens": cached}
    content = answer.choices[0].logprobs.content
    assert [each.logprob for each in content] == pytest.approx(rows.logprobs[0], abs=1e-4)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.9, "seed": 3, "top_p": 0.9, "logprobs": True, "top_logprobs": 3},
        {"stop": ["a", "e"], "n": 2},
        {"logit_bias": {"5": 100}, "presence_penalty": 1, "frequency_penalty": -1},
        {
            "temperature": 1.3,
            "seed": 1,
            "extra_body": {"top_k": 50, "min_p": 0.01, "min_tokens": 4, "ignore_eos": True}
            | {"repetition_penalty": 1.2, "stop_token_ids": [7, 9], "skip_special_tokens": False},
        },
        {"response_format": OF_COLOR, "max_completion_tokens": 60, "temperature": 1, "seed": 5},
    ],
    ids="-".join,
)
def test_stream_joins_to_the_whole_response(params, tiny_client, model):
    limits = {} if "max_completion_tokens" in params else {"max_tokens": 24}
    body = {"model": model, "messages": ASK, **limits, **params}
    body["extra_body"] = {"return_token_ids": True, **params.get("extra_body", {})}
    answer = tiny_client.chat.completions.create(**body)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = tiny_client.chat.completions.create(**body, **options)
    whole = whole_chat(answer)
    assert joined_chat(chunks) == whole
    assert len(whole[0]) == params.get("n", 1)
    for choice in whole[0]:
        assert len(choice.logprobs) == (len(choice.ids) if "logprobs" in params else 0)
        if "response_format" in params:
            assert json.loads(choice.text)["color"] in ("red", "green")
    assert {chunk.usage for chunk in chunks} == {None} and last.choices == []
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [getattr(last.usage, c) for c in counts] == [getattr(answer.usage, c) for c in counts]


# ─── Completions ───


@pytest.mark.parametrize("route", [CHAT, COMPLETION])
def test_responses_and_events_are_of_the_packages_own_types(route, http):
    """Complete, and of the right types."""
    body = {"n": 2, "temperature": 1.0, "seed": 1, "max_tokens": 4}
    kinds = (Completion, RunningCompletion)
    if route == CHAT:
        kinds = (ChatCompletion, ChatCompletionChunk)
        body |= {"messages": ASK, "logprobs": True, "top_logprobs": 2}
    else:
        body |= {"prompt": "Hi", "logprobs": 2}
    kinds[0].model_validate(http.post(route, **body))
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    *lines, done = [line for line in http.send(route, **asked).text.split("\n") if line]
    assert done == "data: [DONE]"
    for line in lines:
        kinds[1].model_validate_json(line.removeprefix("data: "))
