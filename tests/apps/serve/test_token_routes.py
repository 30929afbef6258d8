"""The routes that take token ids, in vLLM's and SGLang's forms: the tokens of `generate`."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

import pytest

from _inf.apps.serve.server import InferenceServer
from _inf.apps.serve.token_bodies import SglangBody, SglangSampling
from _inf.backends.openai.http import httpx
from inf import InferenceEngine

pytestmark = pytest.mark.engine
IDS = [10, 11, 12]
SAMPLED = {"temperature": 1.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def http(tiny_server: InferenceServer) -> httpx.Client:
    return httpx.Client(base_url=tiny_server.base_url.removesuffix("/v1"), timeout=60)


def events(http: httpx.Client, route: str, body: dict[str, Any]) -> list[Any]:
    text = http.post(route, json={**body, "stream": True}).text
    *lines, done = [line for line in text.split("\n") if line]
    assert done == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


# ─── vLLM's ───

TOKENS = "/inference/v1/generate"


def of_tokens(**sampling: Any) -> dict[str, Any]:
    return {"token_ids": IDS, "sampling_params": {**SAMPLED, "max_tokens": 6, **sampling}}


def test_tokens_route_has_the_tokens_and_log_probs_of_generate(
    http: httpx.Client, tiny: InferenceEngine
) -> None:
    unused = {"detokenize": False, "output_kind": 2, "routed_experts_prompt_start": 2}
    body = of_tokens(n=2, seed=7, top_k=0, logprobs=1, **unused)
    whole = http.post(TOKENS, json={**body, "request_id": "a", "cache_salt": "1"}).json()
    rows = tiny.generate(
        [{"prompt_token_ids": IDS}], n=2, seed=7, max_tokens=6, logprobs=1, **SAMPLED
    )
    assert whole["request_id"] == "a" and whole["usage"]["completion_tokens"] == 12
    assert [choice["token_ids"] for choice in whole["choices"]] == rows.token_ids
    for index, (choice, row) in enumerate(zip(whole["choices"], rows, strict=True)):
        assert (choice["index"], choice["finish_reason"]) == (index, "length")
        content = choice["logprobs"]["content"]
        assert [each["token"] for each in content] == [f"token_id:{i}" for i in row.token_ids or ()]
        assert [each["token_id"] for each in content] == row.token_ids
        assert [each["logprob"] for each in content] == pytest.approx(row.logprobs, abs=1e-3)
        best = [next(iter(top)) for top in row.top_logprobs or ()]
        assert [each["top_logprobs"][0]["token_id"] for each in content] == best


def test_tokens_stream_joins_to_the_whole_response(http: httpx.Client) -> None:
    body = of_tokens(n=2, seed=7, logprobs=0)
    whole = http.post(TOKENS, json=body).json()
    chunks = events(http, TOKENS, {**body, "stream_options": {"include_usage": True}})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"]]
        own = [part for part in parts if part["index"] == choice["index"]]
        assert sum((part["token_ids"] for part in own), []) == choice["token_ids"]
        names = [each["token"] for part in own for each in part["logprobs"]["content"]]
        assert names == [each["token"] for each in choice["logprobs"]["content"]]
        assert [part["finish_reason"] for part in own if part["finish_reason"]] == ["length"]


def test_log_probs_of_0_likeliest_tokens_list_the_sampled_ones(http: httpx.Client) -> None:
    whole = http.post(TOKENS, json=of_tokens(logprobs=0)).json()
    for entry in whole["choices"][0]["logprobs"]["content"]:
        [listed] = entry.pop("top_logprobs")
        assert listed == entry


def test_tokens_route_has_grammars_and_prompt_log_probs(http: httpx.Client) -> None:
    body = of_tokens(structured_outputs={"regex": "[ab]{3}"}, ignore_eos=False, prompt_logprobs=2)
    whole = http.post(TOKENS, json=body).json()
    assert whole["choices"][0]["finish_reason"] == "stop"
    first, *others = whole["prompt_logprobs"]
    assert first is None
    assert all(str(token) in entry for token, entry in zip(IDS[1:], others, strict=True))


# ─── SGLang's ───


def of_sglang(**sampling: Any) -> dict[str, Any]:
    return {"input_ids": IDS, "sampling_params": {**SAMPLED, "max_new_tokens": 6, **sampling}}


@pytest.mark.verl
def test_fields_are_those_of_sglang() -> None:
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    theirs = {field.name for field in dataclasses.fields(GenerateReqInput)}
    assert set(SglangBody.model_fields) <= theirs
    assert set(SglangSampling.model_fields) <= set(inspect.signature(SamplingParams).parameters)


def test_sglang_route_has_the_tokens_and_log_probs_of_generate(
    http: httpx.Client, tiny: InferenceEngine
) -> None:
    body = of_sglang(sampling_seed=7)
    asked = {"return_logprob": True, "top_logprobs_num": 2, "rid": "a"}
    whole = http.post("/generate", json=body | asked).json()
    row = tiny.generate([{"prompt_token_ids": IDS}], seed=7, max_tokens=6, logprobs=2, **SAMPLED)[0]
    about = whole["meta_info"]
    assert (whole["text"], whole["output_ids"]) == (row.completion, row.token_ids)
    assert about["id"] == "a" and about["finish_reason"] == {"type": "length", "length": 6}
    counts = [about[f"{name}_tokens"] for name in ("prompt", "completion")]
    assert counts == [3, 6] and about["weight_version"] == str(row.weight_version)
    logprobs, ids, texts = zip(*about["output_token_logprobs"], strict=True)
    assert list(ids) == row.token_ids and set(texts) == {None}
    assert list(logprobs) == pytest.approx(row.logprobs, abs=1e-3)
    for listed, top in zip(about["output_top_logprobs"], row.top_logprobs or (), strict=True):
        assert [token for _, token, _ in listed] == list(top)[:2]
    plain = http.post("/generate", json=body).json()
    assert "output_token_logprobs" not in plain["meta_info"]


def test_sglangs_prompt_log_probs_are_refused_only_if_they_are_asked_for(
    http: httpx.Client,
) -> None:
    body = of_sglang() | {"logprob_start_len": 0}
    assert len(http.post("/generate", json=body).json()["output_ids"]) == 6
    refused = http.post("/generate", json=body | {"return_logprob": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logprob_start_len")


def test_sglang_answers_say_why_they_ended(http: httpx.Client, tiny: InferenceEngine) -> None:
    row = tiny.generate([{"prompt_token_ids": IDS}], temperature=0, max_tokens=6)[0]
    third = (row.token_ids or [])[2]
    body = of_sglang(temperature=0, stop_token_ids=[third])
    assert http.post("/generate", json=body).json()["meta_info"]["finish_reason"] == {
        "type": "stop",
        "matched": third,
    }


def test_sglang_stream_has_all_tokens_so_far_in_each_event(http: httpx.Client) -> None:
    body = of_sglang(sampling_seed=7) | {"return_logprob": True}
    whole = http.post("/generate", json=body).json()
    chunks = events(http, "/generate", body)
    assert chunks
    for chunk in chunks:
        ids = chunk["output_ids"]
        assert whole["output_ids"][: len(ids)] == ids and whole["text"].startswith(chunk["text"])
        assert [each[1] for each in chunk["meta_info"]["output_token_logprobs"]] == ids
        assert (chunk["meta_info"]["finish_reason"] is None) == (chunk is not chunks[-1])
    assert chunks[-1]["output_ids"] == whole["output_ids"] and chunks[-1]["text"] == whole["text"]


def test_several_sglang_answers_are_a_list(http: httpx.Client) -> None:
    body = of_sglang(n=2) | {"input_ids": [IDS, [5, 6]], "rid": "a"}
    rows = http.post("/generate", json=body).json()
    assert [row["meta_info"]["id"] for row in rows] == ["a_0", "a_1", "a_2", "a_3"]
    assert [row["meta_info"]["prompt_tokens"] for row in rows] == [3, 3, 2, 2]
    assert {chunk["index"] for chunk in events(http, "/generate", body)} == {0, 1, 2, 3}


# ─── Both ───


def test_sglangs_route_takes_texts(http: httpx.Client, tiny: InferenceEngine) -> None:
    texts = ["Hi", "The capital of France is"]
    asked = {"sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    rows = tiny.generate([{"text": text} for text in texts], max_tokens=4, temperature=0)
    whole = http.post("/generate", json={"text": texts, **asked}).json()
    assert [each["output_ids"] for each in whole] == rows.token_ids
    assert [each["meta_info"]["prompt_tokens"] for each in whole] == [
        row.prompt_tokens for row in rows
    ]
    alone = http.post("/generate", json={"text": texts[0], **asked}).json()
    assert alone["output_ids"] == whole[0]["output_ids"]
    refused = http.post("/generate", json={"text": "", **asked})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "text")


@pytest.mark.parametrize("route", [TOKENS, "/generate"])
def test_sessions_record_prompts_of_ids(route: str, tiny_server: InferenceServer) -> None:
    name = f"ids{len(route)}"
    root = tiny_server.session_url(name).removesuffix("/v1")
    ids = IDS
    for _ in range(2):
        body = of_tokens() if route == TOKENS else of_sglang()
        body["token_ids" if route == TOKENS else "input_ids"] = ids
        whole = httpx.post(root + route, json=body, timeout=60).json()
        new = whole["choices"][0]["token_ids"] if route == TOKENS else whole["output_ids"]
        ids = [*ids, *new, 20]
    [trace] = tiny_server.traces(name)
    assert trace.prompt_token_ids + trace.token_ids == ids[:-1]
    assert trace.response_mask == [1] * 6 + [0] + [1] * 6
    httpx.delete(root).raise_for_status()
