"""What a call may bring: keywords, prompts, lines of a batch file, tools."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
import yaml
from hypothesis import strategies as st

from _inf.apps.openai_format import ChatRequest
from _inf.request.keywords import GenerateParams
from _inf.request.prompts import MESSAGE_KEYS, ROLES
from tests.support.strategies import (
    ANYTHING,
    ATOMS,
    HUGE,
    JSON,
    WORDS,
    Cases,
    damaged,
    mostly,
    one_of,
)
from tests.support.tiny import END_OF_TEXT, IM_START, PAD, VOCABULARY

# ─── Calls ───

NAMES = sorted(GenerateParams.__annotations__)
SMALL: dict[str, Any] = {
    "temperature": [0, 0.7, 1, np.float32(0.5)],
    "top_p": [0.5, 1],
    "top_k": [-1, 1, 40],
    "min_p": [0, 0.1],
    "max_tokens": [1, 2, 4],
    "min_tokens": [0, 1],
    "do_sample": [True, False],
    "n": [1, 2],
    "stop": ["a", ["b", "Paris"], []],
    "stop_token_ids": [[5], [], [383, np.int64(7)]],
    "seed": [0, 2**63 - 1],
    "presence_penalty": [-2, 0.5],
    "frequency_penalty": [2, 0],
    "repetition_penalty": [1.0, 1.3],
    "logit_bias": [{}, {5: -100}, {"7": 2.5}],
    "num_beams": [1, 2, 4],
    "ignore_eos": [True, False],
    "json_schema": [{"type": "boolean"}, '{"enum": ["a", "b"]}'],
    "regex": ["[ab]{1,4}", "yes|no"],
    "chat_template_kwargs": [{}, {"enable_thinking": False}],
    "truncate_prompt": ["left", "right"],
    "skip_special_tokens": [True, False],
    "logprobs": [0, 1, 5],
    "prompt_logprobs": [True, False, 3],
    "sampling_mask": [True, False],
    "return_routed_experts": [True, False],
    "timeout": [60, 30.5],
    "progress": [False],
    "tools": [[]],
    "tools_kwargs": [{}],
    "interaction_kwargs": [{}],
    "max_tokens_per_turn": [8],
}
KWARGS: Cases = st.dictionaries(
    st.sampled_from(["self", "messages", "chat_template", "documents", "x", "padding"]),
    ANYTHING,
    max_size=2,
)
VALUES: dict[str, Cases] = {
    name: mostly(st.sampled_from(SMALL[name]), ANYTHING | st.lists(ANYTHING, max_size=3))
    for name in NAMES
}
VALUES["chat_template_kwargs"] = mostly(VALUES["chat_template_kwargs"], KWARGS)
KEYWORDS: Cases = st.lists(
    st.sampled_from([*NAMES, "temprature", "max_new_tokens", "", "self_"]), max_size=4, unique=True
).flatmap(lambda names: st.fixed_dictionaries({n: VALUES.get(n, ANYTHING) for n in names}))
CALLS: Cases = st.tuples(st.integers(0, 3), KEYWORDS)

TEXTS: Cases = st.one_of(
    st.text(min_size=1, max_size=40),
    st.sampled_from(["Hello", "2 + 2 =", IM_START + "system", END_OF_TEXT, PAD, *WORDS]),
    st.integers(1, 40_000).map(lambda size: "ab " * size),
)
TOOL_CALLS: Cases = st.fixed_dictionaries(
    {
        "function": st.fixed_dictionaries(
            {"name": mostly(st.just("f"), ATOMS)},
            optional={"arguments": mostly(st.sampled_from([{}, {"a": 1}, '{"a": 1}']), ANYTHING)},
        )
    },
    optional={"id": ATOMS, "type": ATOMS},
)
PARTS: Cases = st.lists(
    st.fixed_dictionaries(
        {"type": mostly(st.just("text"), ATOMS), "text": mostly(TEXTS, ATOMS)},
        optional={"x": ATOMS},
    ),
    max_size=3,
)
MESSAGES: Cases = st.fixed_dictionaries(
    {"role": mostly(st.sampled_from(ROLES), ATOMS), "content": mostly(TEXTS | PARTS, ANYTHING)},
    optional={
        "tool_calls": mostly(st.lists(TOOL_CALLS, max_size=2), ANYTHING),
        "name": mostly(st.just("f"), ANYTHING),
        "x": ATOMS,
    },
)
IDS: Cases = st.one_of(
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=80),
    st.lists(mostly(st.integers(0, VOCABULARY - 1), ATOMS), max_size=5),
    st.lists(st.integers(0, 400), max_size=5).map(np.array),
    st.lists(st.integers(0, 400), max_size=5).map(torch.tensor),
    ANYTHING,
)
PROMPTS: Cases = st.one_of(
    TEXTS,
    st.lists(MESSAGES, max_size=3),
    st.fixed_dictionaries({"prompt_token_ids": IDS}),
    st.fixed_dictionaries({"text": mostly(TEXTS, ANYTHING)}),
    st.fixed_dictionaries({"prompt_token_ids": IDS}, optional={"x": ATOMS}),
    st.dictionaries(one_of([*MESSAGE_KEYS, 5, None, HUGE]), ANYTHING, max_size=2),
    ANYTHING,
)
BATCHES: Cases = st.tuples(st.integers(0, 3), PROMPTS)  # so many right ones before it

# ─── What a batch file, a tool and a model say ───

BODIES: Cases = st.dictionaries(
    st.sampled_from(["x", *ChatRequest.model_fields]),
    st.sampled_from([1, True, "a", None, [{"role": "user", "content": "hi"}], {"type": "text"}])
    | JSON,
    max_size=4,
)
ROWS: Cases = st.dictionaries(
    st.sampled_from(
        "prompt messages body custom_id method url metadata id completion usage".split()
    ),
    st.sampled_from(["hi", [{"role": "user", "content": "hi"}], {}, 1e308, "POST"]) | BODIES | JSON,
    max_size=4,
)
RIGHT_ROWS: Cases = st.builds(
    lambda form, more: {**more, **form},
    st.sampled_from(
        [
            {"prompt": "hi"},
            {"messages": [{"role": "user", "content": "hi"}]},
            {"custom_id": "a", "body": {"messages": [{"role": "user", "content": "hi"}], "n": 1}},
        ]
    ),
    st.dictionaries(st.sampled_from(["id", "x", "metadata", "url"]), JSON, max_size=1),
)
WRITTEN: Cases = mostly(RIGHT_ROWS, ROWS).map(
    lambda row: json.dumps(row).replace("1e+308", "1e400").encode()
)
FILE_LINES: Cases = st.one_of(WRITTEN, WRITTEN, damaged(WRITTEN), st.binary(max_size=30))

SCHEMAS: Cases = st.fixed_dictionaries(
    {"name": mostly(st.sampled_from(["f", "g", "a.b"]), ANYTHING)},
    optional={
        "description": mostly(st.just("Does."), ANYTHING),
        "parameters": mostly(
            st.sampled_from([{"type": "object"}, {"type": "object", "properties": {"a": {}}}]),
            st.fixed_dictionaries({"type": st.just("object")}, optional={"properties": ANYTHING})
            | ANYTHING,
        ),
        "strict": ATOMS,
        "x": ATOMS,
    },
)
WRAPPED: Cases = st.fixed_dictionaries(
    {"function": mostly(SCHEMAS, ANYTHING)}, optional={"type": mostly(st.just("function"), ATOMS)}
)
TOOL_LISTS: Cases = mostly(st.lists(SCHEMAS | WRAPPED | ANYTHING, max_size=3), ANYTHING)


def as_yaml(value: Any) -> bytes:
    """As PyYAML writes it, Python's own tags included."""
    try:
        return yaml.dump(value).encode("utf-8", "surrogatepass")
    except Exception:  # what cannot be printed or counted
        return b"tools: [{}]"
