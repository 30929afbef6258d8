"""The `openai` client against a served engine: what it gets is what `generate` gives."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import Completion, CompletionChoice
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from _inf.apps.serve.server import InferenceServer
from _inf.backends.openai.http import httpx
from inf import InferenceEngine
from tests.support.serve_clients import KEY, joined_chat, whole_chat

ASK: list[Any] = [{"role": "user", "content": "Write one line about a robot."}]
COLOR = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green"]}, "n": {"type": "integer", "maximum": 9}},
    "required": ["color", "n"],
    "additionalProperties": False,
}


class RunningChoice(CompletionChoice):
    """The package's type, with the value of a choice that has not ended."""

    finish_reason: str | None  # type: ignore[assignment]


class RunningCompletion(Completion):
    choices: list[RunningChoice]  # type: ignore[assignment]


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.fixture(scope="module")
def model(tiny_client: OpenAI) -> str:
    [model] = tiny_client.models.list().data
    assert tiny_client.models.retrieve(model.id).id == model.id
    return model.id


def test_model_says_its_limits(tiny: InferenceEngine, tiny_client: OpenAI) -> None:
    [about] = list[Any](tiny_client.models.list().data)
    rollout = tiny.config.rollout
    assert about.max_model_len == rollout.prompt_length + rollout.response_length
    assert (about.prompt_length, about.response_length) == (512, 128)


# ─── Chat ───


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 11, "n": 4}], ids=str)
def test_chat_has_the_tokens_and_log_probs_of_generate(
    sampling: dict[str, Any], tiny: InferenceEngine, tiny_client: OpenAI, model: str
) -> None:
    given: dict[str, Any] = {"model": model, "messages": ASK, "max_tokens": 20, **sampling}
    given |= {"logprobs": True, "top_logprobs": 2, "extra_body": {"return_token_ids": True}}
    answer = tiny_client.chat.completions.create(**given)
    rows = tiny.generate([ASK], max_tokens=20, logprobs=2, **sampling)
    choices, ids = whole_chat(answer)
    assert [choice.ids for choice in choices] == rows.token_ids
    assert [choice.text for choice in choices] == rows.completions
    assert len(set(map(tuple, rows.token_ids))) == sampling.get("n", 1)
    assert ids == tiny.tokenizer.apply_chat_template(
        ASK, add_generation_prompt=True, return_dict=False
    )
    assert choices[0].finish_reason == rows[0].metadata["finish_reason"]
    assert answer.usage is not None and answer.usage.prompt_tokens == len(ids)
    assert answer.usage.completion_tokens == sum(map(len, rows.token_ids))
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [each.logprob for each in logprobs.content] == pytest.approx(rows.logprobs[0], abs=1e-4)
    for each, tops in zip(logprobs.content, rows[0].top_logprobs or (), strict=True):
        best = sorted(tops.values(), reverse=True)[:2]
        assert [top.logprob for top in each.top_logprobs] == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.9, "seed": 3, "n": 3},
        {"temperature": 0.9, "seed": 3, "top_p": 0.9, "logprobs": True, "top_logprobs": 3},
        {"stop": ["a", "e"], "n": 2},
        {"logit_bias": {"5": 100}, "presence_penalty": 1, "frequency_penalty": -1},
        {
            "temperature": 1.3,
            "seed": 1,
            "extra_body": {"top_k": 50, "min_p": 0.01, "min_tokens": 4, "ignore_eos": True}
            | {"repetition_penalty": 1.2, "stop_token_ids": [7, 9], "skip_special_tokens": False},
        },
        {"response_format": {"type": "json_object"}, "max_completion_tokens": 16},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
    ],
    ids=lambda params: "-".join(params) or "greedy",
)
def test_stream_joins_to_the_whole_response(
    params: dict[str, Any], tiny_client: OpenAI, model: str
) -> None:
    limits = {} if "max_completion_tokens" in params else {"max_tokens": 24}
    extra = {"return_token_ids": True, **params.get("extra_body", {})}
    body: dict[str, Any] = {"model": model, "messages": ASK, **limits, **params}
    body["extra_body"] = extra
    answer = tiny_client.chat.completions.create(**body)
    chunks = list(tiny_client.chat.completions.create(**body, stream=True))
    assert joined_chat(chunks) == whole_chat(answer)
    assert len(chunks) > 1
    choices, _ = whole_chat(answer)
    assert len(choices) == params.get("n", 1)
    for choice in choices:
        assert len(choice.logprobs) == (len(choice.ids) if "logprobs" in params else 0)


def test_usage_comes_at_the_end_of_a_stream_that_asked_for_it(
    tiny_client: OpenAI, model: str
) -> None:
    body: dict[str, Any] = {"model": model, "messages": ASK, "max_tokens": 6, "n": 2}
    usage = tiny_client.chat.completions.create(**body).usage
    *others, last = tiny_client.chat.completions.create(
        **body, stream=True, stream_options={"include_usage": True}
    )
    assert [chunk.usage for chunk in others] == [None] * len(others)
    assert last.choices == [] and usage is not None and last.usage is not None
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [getattr(last.usage, c) for c in counts] == [getattr(usage, c) for c in counts]


def test_async_streams_run_at_once(
    tiny: InferenceEngine, tiny_server: InferenceServer, model: str
) -> None:
    asks = [[{"role": "user", "content": f"Number {n}"}] for n in range(12)]

    async def read(client: AsyncOpenAI, messages: Any) -> str:
        stream = await client.chat.completions.create(
            model=model, messages=messages, max_tokens=16, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def read_all() -> list[str]:
        async with AsyncOpenAI(base_url=tiny_server.base_url, api_key=KEY) as client:
            return await asyncio.gather(*(read(client, messages) for messages in asks))

    assert asyncio.run(read_all()) == tiny.generate(asks, max_tokens=16).completions


FREE: dict[str, Any] = {"messages": ASK, "temperature": 1.0, "seed": 5, "max_tokens": 60}


@pytest.mark.parametrize("stream", [False, True])
def test_json_schema_is_enforced(stream: bool, tiny_client: OpenAI, model: str) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOR}}
    answer: Any = tiny_client.chat.completions.create(
        model=model, n=4, stream=stream, response_format=form, **FREE
    )
    choices, _ = joined_chat(answer) if stream else whole_chat(answer)
    for choice in choices:
        if choice.finish_reason == "stop":
            assert json.loads(choice.text)["color"] in ("red", "green")
    assert "stop" in [choice.finish_reason for choice in choices]


# ─── Tools that the grammar enforces ───


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "function", "function": {"name": "g"}}, {"g"}),
        ("required", {"f", "g"}),
    ],
)
def test_tool_choice_makes_any_model_call(
    choice: Any, names: set[str], stream: bool, tiny_client: OpenAI, model: str
) -> None:
    tools: Any = {"tools": [tool("f"), tool("g")], "tool_choice": choice}
    tools["response_format"] = {"type": "json_object"}  # of an answer without a call
    answer: Any = tiny_client.chat.completions.create(
        model=model, n=8, stream=stream, **tools, **FREE
    )
    choices, _ = joined_chat(answer) if stream else whole_chat(answer)
    assert {name for choice in choices for name, _ in choice.calls} == names
    for each in choices:
        [(_, arguments)] = each.calls
        assert json.loads(arguments)["x"] in (1, 2)
        assert (each.text, each.finish_reason) == ("", "tool_calls")


# ─── Completions ───


def test_completions_take_text_ids_and_lists_of_them(
    tiny: InferenceEngine, tiny_client: OpenAI, model: str
) -> None:
    texts = ["The capital", "Two apples"]
    ids = [tiny.tokenizer(text)["input_ids"] for text in texts]
    rows = tiny.generate([{"text": text} for text in texts], max_tokens=10, prompt_logprobs=True)
    extra = {"return_token_ids": True, "prompt_logprobs": 0}
    for prompt, expected in ((texts, [0, 1]), (ids, [0, 1]), (texts[1], [1]), (ids[1], [1])):
        answer = tiny_client.completions.create(
            model=model, prompt=prompt, max_tokens=10, extra_body=extra
        )
        assert [c.text for c in answer.choices] == [rows.completions[row] for row in expected]
        for choice, row in zip(answer.choices, expected, strict=True):
            given: Any = choice
            assert given.token_ids == rows.token_ids[row]
            assert given.prompt_token_ids == ids[row]
            first, *others = given.prompt_logprobs
            values = [next(iter(each.values()))["logprob"] for each in others]
            assert first is None and rows.prompt_logprobs is not None
            assert values == pytest.approx(rows.prompt_logprobs[row][1:], abs=1e-4)


@pytest.mark.parametrize(
    "params", [{}, {"n": 2, "temperature": 1.0, "seed": 4}, {"logprobs": 2}, {"stop": "e"}]
)
def test_completions_stream_joins_to_the_whole_response(
    params: dict[str, Any], tiny_client: OpenAI, model: str
) -> None:
    body: dict[str, Any] = {"model": model, "prompt": ["A", "Once"], "max_tokens": 12, **params}
    body["extra_body"] = {"return_token_ids": True}
    answer = tiny_client.completions.create(**body)
    joined: dict[int, dict[str, Any]] = {}
    for chunk in tiny_client.completions.create(**body, stream=True):
        for part in chunk.choices:
            given: Any = part
            one = joined.setdefault(part.index, {"text": "", "ids": [], "logprobs": {}})
            one["text"] += part.text
            one["ids"] += given.token_ids
            one["prompt"] = getattr(given, "prompt_token_ids", None) or one["prompt"]
            one["end"] = (part.finish_reason, getattr(part, "stop_reason", None))
            for name, values in part.logprobs.model_dump().items() if part.logprobs else ():
                one["logprobs"].setdefault(name, []).extend(values)
    whole = {
        given.index: {
            "text": given.text,
            "ids": given.token_ids,
            "prompt": given.prompt_token_ids,
            "end": (given.finish_reason, given.stop_reason),
            "logprobs": given.logprobs.model_dump() if given.logprobs else {},
        }
        for given in list[Any](answer.choices)
    }
    for index, one in joined.items():  # the rows may have run beside others: near, not equal
        expected = whole[index].pop("logprobs")
        for name in ("token_logprobs", "top_logprobs"):
            for value, other in zip(
                one["logprobs"].pop(name, ()), expected.pop(name, ()), strict=True
            ):
                assert value == pytest.approx(other, abs=1e-4)
        assert one.pop("logprobs") == expected
    assert joined == whole
    assert len(whole) == 2 * params.get("n", 1)


TYPES: dict[str, tuple[type[BaseModel], type[BaseModel]]] = {
    "/chat/completions": (ChatCompletion, ChatCompletionChunk),
    "/completions": (Completion, RunningCompletion),
}


@pytest.mark.parametrize("route", TYPES)
def test_responses_and_events_are_of_the_packages_own_types(
    route: str, tiny_server: InferenceServer
) -> None:
    whole, event = TYPES[route]
    body: dict[str, Any] = {"n": 2, "temperature": 1.0, "seed": 1, "max_tokens": 4, "prompt": "Hi"}
    if route == "/chat/completions":
        body |= {"messages": ASK, "logprobs": True, "top_logprobs": 2}
        del body["prompt"]
    else:
        body["logprobs"] = 2
    url = tiny_server.base_url + route
    whole.model_validate_json(
        httpx.post(url, json=body, timeout=60).text
    )  # complete and of the right types
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    *lines, done = [
        line for line in httpx.post(url, json=asked, timeout=60).text.split("\n") if line
    ]
    assert done == "data: [DONE]" and len(lines) > 3
    for line in lines:
        event.model_validate_json(line.removeprefix("data: "))
