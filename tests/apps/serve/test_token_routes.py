"""The routes that take token ids, in vLLM's and SGLang's forms: the tokens of `generate`."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from _inf.apps.serve.token_bodies import SglangBody, SglangSampling
from tests.support.serve_clients import SGLANGS, TOKENS

IDS = [10, 11, 12]
SAMPLED = {"temperature": 1.0, "ignore_eos": True}


def of_tokens(**sampling: Any) -> dict[str, Any]:
    return {"token_ids": IDS, "sampling_params": {**SAMPLED, "max_tokens": 6, **sampling}}


def of_sglang(**sampling: Any) -> dict[str, Any]:
    return {"input_ids": IDS, "sampling_params": {**SAMPLED, "max_new_tokens": 6, **sampling}}


def test_tokens_route_has_the_tokens_and_log_probs_of_generate(http, tiny):
    unused = {"detokenize": False, "output_kind": 2, "routed_experts_prompt_start": 2}
    body = of_tokens(n=2, seed=7, top_k=0, logprobs=1, **unused)
    whole = http.post(TOKENS, **body, request_id="a", cache_salt="1")
    asked = {"n": 2, "seed": 7, "max_tokens": 6, "logprobs": 1, **SAMPLED}
    rows = tiny.generate([{"prompt_token_ids": IDS}], **asked)
    assert whole["request_id"] == "a" and whole["usage"]["completion_tokens"] == 12
    for index, (choice, row) in enumerate(zip(whole["choices"], rows, strict=True)):
        assert (choice["index"], choice["finish_reason"]) == (index, "length")
        assert choice["token_ids"] == row.token_ids
        content = choice["logprobs"]["content"]
        assert [each["token_id"] for each in content] == row.token_ids
        assert [each["logprob"] for each in content] == pytest.approx(row.logprobs, abs=1e-3)
        best = [next(iter(top)) for top in row.top_logprobs or ()]
        assert [each["top_logprobs"][0]["token_id"] for each in content] == best


def test_tokens_stream_joins_to_the_whole_response(http):
    body = of_tokens(n=2, seed=7, logprobs=0)
    whole = http.post(TOKENS, **body)
    *chunks, last = http.events(TOKENS, **body, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    parts = [part for chunk in chunks for part in chunk["choices"]]
    for choice in whole["choices"]:
        own = [part for part in parts if part["index"] == choice["index"]]
        assert sum((part["token_ids"] for part in own), []) == choice["token_ids"]
        assert [part["finish_reason"] for part in own if part["finish_reason"]] == ["length"]
        for entry in choice["logprobs"]["content"]:  # of 0 likeliest: the sampled one is listed
            [listed] = entry.pop("top_logprobs")
            assert listed == entry


def test_tokens_route_has_grammars_and_prompt_log_probs(http):
    body = of_tokens(structured_outputs={"regex": "[ab]{3}"}, ignore_eos=False, prompt_logprobs=2)
    whole = http.post(TOKENS, **body)
    assert whole["choices"][0]["finish_reason"] == "stop"
    first, *others = whole["prompt_logprobs"]
    assert first is None
    assert all(str(token) in entry for token, entry in zip(IDS[1:], others, strict=True))
    [choice] = http.post(TOKENS, **of_tokens(logprob_token_ids=[9]))["choices"]
    listed = [each["top_logprobs"] for each in choice["logprobs"]["content"]]
    assert [[top["token_id"] for top in tops] for tops in listed] == [[9]] * 6


@pytest.mark.verl
def test_fields_are_those_of_sglang():
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    theirs = {field.name for field in dataclasses.fields(GenerateReqInput)}
    assert set(SglangBody.model_fields) <= theirs
    assert set(SglangSampling.model_fields) <= set(inspect.signature(SamplingParams).parameters)


def test_sglang_route_has_the_tokens_and_log_probs_of_generate(http, tiny):
    asked = {"return_logprob": True, "top_logprobs_num": 2, "rid": "a"}
    whole = http.post(SGLANGS, **of_sglang(sampling_seed=7), **asked)
    row = tiny.generate([{"prompt_token_ids": IDS}], seed=7, max_tokens=6, logprobs=2, **SAMPLED)[0]
    about = whole["meta_info"]
    assert (whole["text"], whole["output_ids"]) == (row.completion, row.token_ids)
    assert about["id"] == "a" and about["finish_reason"] == {"type": "length", "length": 6}
    assert about["prompt_tokens"] == 3 and about["weight_version"] == str(row.weight_version)
    logprobs, ids, texts = zip(*about["output_token_logprobs"], strict=True)
    assert list(ids) == row.token_ids and set(texts) == {None}
    assert list(logprobs) == pytest.approx(row.logprobs, abs=1e-3)
    for listed, top in zip(about["output_top_logprobs"], row.top_logprobs or (), strict=True):
        assert [token for _, token, _ in listed] == list(top)[:2]
    third = (row.token_ids or [])[2]
    ended = of_sglang(sampling_seed=7, stop_token_ids=[third]) | {"logprob_start_len": 0}
    about = http.post(SGLANGS, **ended)["meta_info"]
    assert about["finish_reason"] == {"type": "stop", "matched": third}
    assert "output_token_logprobs" not in about


def test_sglang_stream_has_all_tokens_so_far_in_each_event(http):
    body = of_sglang(sampling_seed=7) | {"return_logprob": True}
    whole = http.post(SGLANGS, **body)
    for chunk in (chunks := http.events(SGLANGS, **body)):
        ids = chunk["output_ids"]
        assert whole["output_ids"][: len(ids)] == ids and whole["text"].startswith(chunk["text"])
        assert [each[1] for each in chunk["meta_info"]["output_token_logprobs"]] == ids
        assert (chunk["meta_info"]["finish_reason"] is None) == (chunk is not chunks[-1])
    assert (ids, chunk["text"]) == (whole["output_ids"], whole["text"])


def test_sglangs_route_takes_several_prompts_and_texts(http, tiny):
    body = of_sglang(n=2) | {"input_ids": [IDS, [5, 6]], "rid": "a"}
    answers = http.post(SGLANGS, **body)
    assert [each["meta_info"]["id"] for each in answers] == ["a_0", "a_1", "a_2", "a_3"]
    assert [each["meta_info"]["prompt_tokens"] for each in answers] == [3, 3, 2, 2]
    texts = ["Hi", "The capital of France is"]
    asked = {"sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    rows = tiny.generate([{"text": text} for text in texts], max_tokens=4, temperature=0)
    whole = http.post(SGLANGS, text=texts, **asked)
    assert [each["output_ids"] for each in whole] == rows.token_ids
    assert http.post(SGLANGS, text=texts[0], **asked)["output_ids"] == rows.token_ids[0]
    assert http.post(SGLANGS, 400, text="", **asked)["error"]["param"] == "text"
