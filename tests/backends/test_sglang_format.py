"""SGLang's answers become `RequestOutput`s."""

from __future__ import annotations

import math
from typing import Any

import pytest

from _inf.backends.verl.sglang_format import BY_HISTORY, output_row, sglang_params
from _inf.parts.budget import Budget
from _inf.parts.masks import Masks
from _inf.parts.top_logprobs import TopLogprobs, Tops
from _inf.types import Request, RequestOutput, SamplingParams, ThoughtMarks

pytestmark = pytest.mark.verl

SMALLEST = {"float32": -3.4028234663852886e38, "bfloat16": -3.3895313892515355e38, "cpu": -math.inf}


def answer(*logprobs: float) -> dict[str, Any]:
    """An answer of SGLang with these log probs."""
    sampled = [(logprob, 7 + place, None) for place, logprob in enumerate(logprobs)]
    meta = {
        "finish_reason": {"type": "length"},
        "output_token_logprobs": sampled,
        "output_top_logprobs": [[one, (-9.0, 1, None)] for one in sampled],
        "input_token_logprobs": [(None, 3, None), (-2.0, 4, None)],
        "prompt_tokens": 2,
        "cached_tokens": 0,
        "weight_versions": [(0, 0)],
    }
    return {"meta_info": meta, "output_ids": [token for _, token, _ in sampled]}


@pytest.mark.parametrize("ruled_out", SMALLEST.values(), ids=SMALLEST)
def test_tokens_that_are_ruled_out_are_not_among_the_likeliest(ruled_out):
    output = answer(-0.5)
    output["meta_info"]["output_top_logprobs"][0].append((ruled_out, 9, None))
    row = output_row(output, {}, parts=[TopLogprobs(3)])
    assert row.of(Tops) == Tops([{7: -0.5, 1: -9.0}])


def test_answer_of_a_stream_is_the_whole_one():
    parts, before = [TopLogprobs(2)], RequestOutput()
    for count in (1, 3, 4):
        output = answer(*[-0.5, -0.25, -1.0, -2.0][:count])
        before = output_row(output, {}, before=before, parts=parts)
        assert before == output_row(output, {}, parts=parts)


def test_parts_that_read_the_answer_say_so():
    """Beside their rows no step of the overlap schedule begins before the last one was read."""
    budget = Budget(5, ThoughtMarks([3], [9], False))
    long, short = Masks(word_ids=[[7, 9]]), Masks(word_ids=[[7]])
    for part, reads in ((budget, True), (long, True), (short, False)):
        params = SamplingParams(max_tokens=4, parts=(part,))
        assert (BY_HISTORY in sglang_params(Request([5], params))["custom_params"]) is reads
