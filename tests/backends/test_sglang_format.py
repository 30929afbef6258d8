"""SGLang's answers become `RequestOutput`s."""

from __future__ import annotations

import math
from typing import Any

import pytest

from _inf.backends.verl.sglang_format import TOP_LOGPROBS, output_row

pytestmark = pytest.mark.verl

SMALLEST = {"float32": -3.4028234663852886e38, "bfloat16": -3.3895313892515355e38, "cpu": -math.inf}


@pytest.mark.parametrize("ruled_out", SMALLEST.values(), ids=SMALLEST)
def test_tokens_that_are_ruled_out_are_not_among_the_likeliest(ruled_out: float) -> None:
    own, other = (-0.5, 7, None), (-1.0, 8, None)
    meta: dict[str, Any] = {
        "finish_reason": {"type": "length"},
        "output_token_logprobs": [own],
        "output_top_logprobs": [[own, other, (ruled_out, 9, None)]],
        "prompt_tokens": 1,
        "cached_tokens": 0,
        "weight_version": "0",
        "weight_versions": [(0, 0)],
        "routed_experts": None,
    }
    row = output_row({"meta_info": meta, "output_ids": [7]}, {TOP_LOGPROBS: 3})
    assert row.top_logprobs == [{7: -0.5, 8: -1.0}]
