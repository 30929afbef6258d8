"""SGLang's answers become `RequestOutput`s."""

from __future__ import annotations

import math
from typing import Any

import pytest

from _inf.backends.verl.sglang_format import output_row
from _inf.errors import RequestFailure
from _inf.parts.top_logprobs import TopLogprobs, Tops
from _inf.types import RequestOutput

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
def test_tokens_that_are_ruled_out_are_not_among_the_likeliest(ruled_out: float) -> None:
    output = answer(-0.5)
    output["meta_info"]["output_top_logprobs"][0].append((ruled_out, 9, None))
    row = output_row(output, {}, parts=[TopLogprobs(3)])
    assert row.of(Tops) == Tops([{7: -0.5, 1: -9.0}])


def test_a_stream_converts_only_the_new_tokens_of_an_answer() -> None:
    parts, before = [TopLogprobs(2)], RequestOutput()
    for count in (1, 3, 4):
        logprobs = [-0.5, -0.25, -1.0, -2.0][:count]
        whole = output_row(answer(*logprobs), {}, parts=parts)
        # What was converted before is not read again: reading it would raise.
        output = answer(*logprobs)
        for name in ("output_token_logprobs", "output_top_logprobs"):
            converted = len(before.logprobs)
            output["meta_info"][name][:converted] = [None] * converted
        before = output_row(output, {}, before=before, parts=parts)
        assert before == whole
    with pytest.raises(RequestFailure, match="at token 4"):
        output_row(answer(-0.5, -0.25, -1.0, -2.0, math.nan), {}, before=before, parts=parts)
