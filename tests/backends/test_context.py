"""The context of a model with scaled rotary factors."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from _inf.backends.model_info import ORIGINAL, context_length, fixed_factors_length
from tests.support.architectures import CONTEXT, LLAMA3, LONGROPE, YARN

pytestmark = pytest.mark.verl

EXTENDED = {ORIGINAL: 256}
LINEAR = {"rope_type": "linear", "factor": 2.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
HALF_YARN = {**YARN, "factor": 2.0}
# By name: rope_scaling, other keys, the context.
ROPES = {
    "none": (None, {}, CONTEXT),
    "default": ({"rope_type": "default"}, {}, CONTEXT),
    "linear": (LINEAR, {}, 2 * CONTEXT),
    "linear, extended": (LINEAR | EXTENDED, {}, CONTEXT),
    "dynamic": (DYNAMIC, {}, 2 * CONTEXT),
    "dynamic, extended": (DYNAMIC | EXTENDED, {}, CONTEXT),
    "llama3": (LLAMA3, {}, CONTEXT),
    "yarn, extended": (YARN, {}, 4 * 256),
    "yarn, not extended": ({**YARN, ORIGINAL: CONTEXT}, {}, 4 * CONTEXT),
    "yarn, a third number": (HALF_YARN, {}, 2 * 256),
    "yarn, original left out": ({"rope_type": "yarn", "factor": 4.0}, {}, 4 * CONTEXT),
    "longrope": (LONGROPE | EXTENDED, EXTENDED, CONTEXT),
    "longrope with a factor": ({**LONGROPE, "factor": 4.0}, EXTENDED, CONTEXT),
}


def scaled(rope: str) -> Any:
    scaling, others, _ = ROPES[rope]
    own = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": CONTEXT}
    return transformers.LlamaConfig(**own, rope_scaling=scaling and {**scaling}, **others)


@pytest.mark.parametrize("rope", ROPES)
def test_context_is_the_one_after_scaling_wherever_the_config_says_it(rope):
    assert context_length(scaled(rope)) == ROPES[rope][2]


def test_gemma_3_has_its_context_after_its_linear_scaling_and_xlnet_has_none():
    own = {"max_position_embeddings": 131_072, "rope_scaling": {"rope_type": "linear", "factor": 8}}
    assert context_length(transformers.Gemma3TextConfig(**own)) == 131_072
    assert context_length(transformers.XLNetConfig()) is None


def test_factors_that_change_with_the_longest_row_are_named():
    fixed = {rope: fixed_factors_length(scaled(rope)) for rope in ROPES}
    assert {rope: length for rope, length in fixed.items() if length is not None} == {
        "dynamic": CONTEXT,
        "dynamic, extended": CONTEXT,
        "longrope": 256,
        "longrope with a factor": 256,
    }
