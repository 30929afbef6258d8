"""What a config, a call, a file and a model may say, for each target of `fuzz_targets`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
import yaml
from hypothesis import strategies as st

from _inf.apps.openai_requests import ChatRequest
from _inf.config import Config
from _inf.config.load import FLAT
from _inf.config.tool_formats import FORMATS
from _inf.request.grammar import SCHEMA_KEYWORDS as SCHEMA_WORDS
from _inf.request.keywords import GenerateParams
from _inf.request.prompts import MESSAGE_KEYS, ROLES
from tests.support.fuzz_values import (
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
from tests.support.tiny import END_OF_TEXT, IM_END, IM_START, PAD, VOCABULARY
from tests.support.tool_call_forms import written_call

# ─── Configs ───


def leaves(tree: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Every key and its default, by dotted path."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found[f"{path}{key}"] = value
        if isinstance(value, dict):
            found |= leaves(value, f"{path}{key}.")
    return found


DEFAULTS = leaves(Config().to_dict())
MISSPELT = "temprature rollout.temprature rollout.n.x Rollout rollout.multi_turn.enabled rollout."
PATHS: Cases = mostly(
    sorted([*DEFAULTS, *FLAT]),
    st.sampled_from([*MISSPELT.split(), "a b", "rollout.engine_kwargs.sglang.tp_size"]),
)


def default(path: str) -> Any:
    return DEFAULTS.get(FLAT.get(path, path))


KEYS: Cases = PATHS.flatmap(
    lambda path: st.tuples(st.just(path), mostly([default(path), 1, 0.5, True, "auto"], ANYTHING))
)
CONFIGS: Cases = st.tuples(st.lists(KEYS, max_size=3), st.lists(KEYS, max_size=2))

SCALARS = [*WORDS, "2001-12-14t21:59:43.10-05:00"]
SCALARS += "1 0.5 true .nan -.inf '1' *a *b @ +12_3 0o17".split()
SCALARS += ['"\\ud800"', "!!bool maybe", "!!int ''", "!!timestamp x", "!!float x", "!!binary _"]
SCALARS += ["!!set {a}", "!!python/object:os.x {}", "&a 1", "{<<: *a}", "&b [*b]", "|\n  text"]
SCALARS += [">-\n  text", "? [a]", "- 1", "1" * 5000, "{a: {b: [1, {c: 2}]}}"]


def written(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def spelt(path: str) -> Cases:
    """What stands behind the colon."""
    return mostly([json.dumps(default(path))], st.sampled_from(SCALARS) | st.text(max_size=8))


SPELT: Cases = PATHS.flatmap(lambda path: st.tuples(st.just(path), spelt(path)))
LINES: Cases = st.builds(
    lambda pair, end: f"{pair[0].rpartition('.')[2]}: {pair[1]}{end}",
    SPELT,
    st.sampled_from(["\n", "\n", " # why\n", "\n---\n", "\t\n", "\r\n", "\n..."]),
)
HEADS = ["", "rollout:\n", "rollout:\n  multi_turn:\n  ", "x: &a {n: 1}\nrollout:\n  <<: *a\n"]
BLOCKS: Cases = st.builds(
    lambda head, lines: head + "".join(f"{'  ' * bool(head)}{line}" for line in lines),
    st.sampled_from(HEADS),
    st.lists(LINES, max_size=4),
)
FLOWS: Cases = SPELT.map(
    lambda pair: f"{pair[0].replace('.', ': {')}: {pair[1]}{'}' * pair[0].count('.')}\n"
)
BOMB = "a: &x0 [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n, name in enumerate("bcdefghij", 1)
)
YAMLS: Cases = st.one_of(
    FLOWS.map(written),
    BLOCKS.map(lambda text: written(text + BOMB)),
    BLOCKS.map(lambda text: text.encode("utf-8", "surrogatepass")),
    damaged(BLOCKS.map(written)),
)
ASSIGNMENTS: Cases = st.lists(
    st.builds(lambda pair, equals: equals.join(pair), SPELT, st.sampled_from(["=", "=", "", ":"])),
    max_size=3,
)

# ─── Calls ───

NAMES = sorted(GenerateParams.__annotations__)
FLAGS = "do_sample ignore_eos skip_special_tokens sampling_mask return_routed_experts".split()
RIGHT: dict[str, list[Any]] = {
    **dict.fromkeys(FLAGS, [True, False]),
    "temperature": [0, 0.7, 1, np.float32(0.5)],
    "top_p": [0.5, 1],
    "top_k": [-1, 1, 40],
    "min_p": [0, 0.1],
    "max_tokens": [1, 2, 4],
    "min_tokens": [0, 1],
    "n": [1, 2],
    "stop": ["a", ["b", "Paris"], []],
    "stop_token_ids": [[5], [], [383, np.int64(7)]],
    "allowed_token_ids": [[5], [383, np.int64(7)]],
    "bad_words": ["a", [" b", "Paris"], []],
    "logprob_token_ids": [[5], [383, np.int64(7)]],
    "thinking_token_budget": [-1],  # others need a reasoning_parser
    "repetition_detection": [{"max_pattern_size": 2, "min_count": np.int64(3)}, {}],
    "seed": [0, 2**63 - 1],
    "presence_penalty": [-2, 0.5],
    "frequency_penalty": [2, 0],
    "repetition_penalty": [1.0, 1.3],
    "logit_bias": [{}, {5: -100}, {"7": 2.5}],
    "num_beams": [1, 2, 4],
    "json_schema": [{"type": "boolean"}, '{"enum": ["a", "b"]}'],
    "regex": ["[ab]{1,4}", "yes|no"],
    "chat_template": ["{{ messages[0].content }}"],
    "continue_final_message": [False],
    "include_stop_str_in_output": [True, False],
    "chat_template_kwargs": [{}, {"enable_thinking": False}],
    "truncate_prompt": ["left", "right"],
    "logprobs": [0, 1, 5],
    "prompt_logprobs": [True, False, 3],
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
WRONG = KWARGS | st.lists(ATOMS) | ANYTHING
KEYWORDS: Cases = st.lists(
    st.sampled_from([*NAMES, "temprature", "max_new_tokens", "", "self_"]), max_size=4, unique=True
).flatmap(lambda names: st.fixed_dictionaries({n: mostly(RIGHT.get(n, [1]), WRONG) for n in names}))
CALLS: Cases = st.tuples(st.integers(0, 3), KEYWORDS)

TEXTS: Cases = st.one_of(
    st.text(min_size=1, max_size=40),
    st.sampled_from(["Hello", "2 + 2 =", IM_START + "system", END_OF_TEXT, PAD, *WORDS]),
    st.integers(1, 40_000).map(lambda size: "ab " * size),
)


def mapping(right: dict[str, Cases], /, **optional: Cases) -> Cases:
    return st.fixed_dictionaries(right, optional={**optional, "x": ATOMS})


ARGUMENTS = mostly([{}, {"a": 1}, '{"a": 1}'], ANYTHING)
CALLED = mostly(mapping({"name": mostly(["f"])}, arguments=ARGUMENTS), ANYTHING)
PARTS: Cases = st.lists(mapping({"type": mostly(["text"]), "text": mostly(TEXTS)}), max_size=3)
MESSAGES: Cases = mapping(
    {"role": mostly(list(ROLES)), "content": mostly(TEXTS | PARTS, ANYTHING)},
    tool_calls=mostly(st.lists(mapping({"function": CALLED}, id=ATOMS), max_size=2), ANYTHING),
    name=mostly(["f"], ANYTHING),
)
IDS: Cases = st.one_of(
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=80),
    st.lists(mostly(st.integers(0, VOCABULARY - 1)), max_size=5),
    st.lists(st.integers(0, 400), max_size=5).flatmap(
        lambda ids: one_of([np.array(ids), torch.tensor(ids)])
    ),
    ANYTHING,
)
PROMPTS: Cases = st.one_of(
    TEXTS,
    st.lists(MESSAGES, max_size=3),
    mapping({"prompt_token_ids": IDS}),
    st.fixed_dictionaries({"prompt_token_ids": IDS}),
    st.fixed_dictionaries({"text": mostly(TEXTS, ANYTHING)}),
    st.dictionaries(one_of([*MESSAGE_KEYS, 5, None, HUGE]), ANYTHING, max_size=2),
    ANYTHING,
)
BATCHES: Cases = st.tuples(st.integers(0, 3), PROMPTS)  # so many right ones before it

# ─── Files: lines of a batch, tools ───

TALK = [{"role": "user", "content": "hi"}]
VALUES = [1, True, "hi", None, TALK, {"type": "text"}, {}, 1e308, "POST"]
VALUE: Cases = one_of(VALUES) | JSON
BODIES: Cases = st.dictionaries(
    st.sampled_from(["x", *ChatRequest.model_fields]), VALUE, max_size=4
)
ROW_KEYS = "prompt messages body custom_id method url metadata id completion usage".split()
ROWS: Cases = st.dictionaries(st.sampled_from(ROW_KEYS), VALUE | BODIES, max_size=4)
FORMS: list[Any] = [{"prompt": "hi"}, {"messages": TALK}]
FORMS.append({"custom_id": "a", "body": {"messages": TALK, "n": 1}})
MORE: Cases = st.dictionaries(st.sampled_from(["id", "x", "metadata", "url"]), JSON, max_size=1)
RIGHT_ROWS: Cases = st.builds(lambda form, more: {**more, **form}, st.sampled_from(FORMS), MORE)
WRITTEN: Cases = mostly(RIGHT_ROWS, ROWS).map(
    lambda row: json.dumps(row).replace("1e+308", "1e400").encode()
)
FILE_LINES: Cases = st.one_of(WRITTEN, WRITTEN, damaged(WRITTEN), st.binary(max_size=30))

PARAMETERS = [{"type": "object"}, {"type": "object", "properties": {"a": {}}}]
SCHEMAS: Cases = mapping(
    {"name": mostly(["f", "g", "a.b"], ANYTHING)},
    description=mostly(["Does."], ANYTHING),
    parameters=mostly(PARAMETERS, mapping({"type": st.just("object")}, properties=ANYTHING)),
    strict=ATOMS,
)
WRAPPED: Cases = mapping({"function": mostly(SCHEMAS, ANYTHING)}, type=mostly(["function"]))
TOOL_LISTS: Cases = mostly(st.lists(SCHEMAS | WRAPPED | ANYTHING, max_size=3), ANYTHING)
CLASSES = ["_inf.tools.calculator.Calculator", "verl.tools.gsm8k_tool.Gsm8kTool", "x\0.y", "x"]
CLASSES += "json.JSONDecoder os.getcwd no.such.Class json.Nonesuch .json.x json. a..b".split()
CONFIGURED = [{}, {"type": "native"}, {"type": "mcp"}, {"a": "${oc.env:NO}"}]
NATIVE = {"class_path": CLASSES[0], "config": {"type": "native"}}
ENTRIES: Cases = mostly(
    [{"name": "f"}, {"function": {"name": "g"}}, NATIVE],
    SCHEMAS
    | WRAPPED
    | mapping(
        {},
        class_path=mostly(CLASSES),
        class_name=mostly(["Calculator", *CLASSES]),
        config=mostly(CONFIGURED, ANYTHING),
        tool_schema=mostly(WRAPPED, ANYTHING),
        mcp=ATOMS,
    ),
)


def as_yaml(value: Any) -> bytes:
    """As PyYAML writes it, Python's own tags included."""
    try:
        return yaml.dump(value).encode("utf-8", "surrogatepass")
    except Exception:  # what cannot be printed or counted
        return b"tools: [{}]"


TREES: Cases = st.one_of(
    mapping({"tools": st.lists(ENTRIES, max_size=3)}),
    st.lists(ENTRIES, max_size=2),
    st.dictionaries(st.sampled_from(["tools", "tool", "x"]), TOOL_LISTS, max_size=2),
).map(as_yaml)
RAW: Cases = st.builds(
    lambda key, scalar: written(f"tools:\n- name: f\n  {key}: {scalar}\n"),
    st.sampled_from(["description", "parameters", "name", "? x\n  y", "class_path", "config"]),
    st.sampled_from(SCALARS),
)
TOOL_FILES: Cases = st.one_of(TREES, damaged(TREES), RAW)

# ─── Chat templates ───

PIECES = """\
{{ messages[0].content }}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}
{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant{% endif %}
{{ raise_exception('never') }}
{% if tools %}{{ raise_exception('no tools') }}{% endif %}
{% if messages[0].role == 'user' %}{{ raise_exception('no system') }}{% endif %}
{{ 1 / 0 }}
{{ nothing.at.all }}
{{ messages[9].content }}
{{ messages | nofilter }}
{{ messages[0] + 1 }}
{{ ''.__class__.__mro__ }}
{{ range(10 ** 9) | list }}
{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}
{% for m in messages %}{% if m.role == 'tool' %}{{ m.content }}{% endif %}{% endfor %}
{% if loop.index %}
{% endfor %}
{{
{# a remark
word """.split("\n")
TEMPLATES: Cases = st.builds(
    lambda pieces, wrong: "".join([*pieces, *wrong]),
    st.lists(st.sampled_from(PIECES[:3]), min_size=1, max_size=3),
    mostly([[]], st.lists(st.sampled_from([*PIECES, "\ud800"]) | st.text(max_size=8), max_size=3)),
)
TEMPLATE_CASES: Cases = st.tuples(
    TEMPLATES, KWARGS, st.booleans(), st.sampled_from(["hi", "é" * 600, "\0"])
)

# ─── Grammars ───

BY_WORD: dict[str, list[Any]] = {
    "type": ["object", "array", "string", "integer", "number", "null", "boolean"],
    "pattern": ["a+", "^\\d{3}$", "(", "[^\\W]", "\\b", "é", "(a|b)*", "\\u0000"],
    "format": ["date", "time", "date-time", "ipv4", "uuid", "email", "x", ""],
    "$ref": ["#", "#/$defs/a", "#/properties/a", "#/no", "http://x", "#a", "#/-1"],
    "required": [[], ["a"], ["b", 'say "hi"'], [""]],
    "minimum": [0, -5, 1, 12, 5.5, 1e308, 2**62, 2**63, -(2**63)],
    "maximum": [3, -1, 0, 400, 1e308, 2**62, 10**30],
    "maxLength": [0, 3, 20_000, 2.0, 1e30, 2**62],
    "uniqueItems": [True, False],
    "multipleOf": [1, 3, 0.5, 0.1, 97, 9973, 999_999, 1e-9, 0, -1],
    "maxItems": [0, 3, 9_000, 10**6, 2**62],
}
SCHEMA_KEYS = sorted({*BY_WORD, *SCHEMA_WORDS, "x"})
NODES: Cases = st.deferred(
    lambda: st.lists(st.sampled_from(["type", *SCHEMA_KEYS]), max_size=4).flatmap(
        lambda words: st.fixed_dictionaries({word: value_of(word) for word in words})
    )
)


def value_of(word: str) -> Cases:
    if word in ("properties", "$defs", "definitions", "patternProperties"):
        names = st.sampled_from(["a", "b", 'say "hi"', "x\\y", "", "é"])
        return st.dictionaries(names, NODES, max_size=2)
    if word in ("items", "additionalProperties"):
        return NODES | st.booleans()
    if word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        return st.lists(NODES, max_size=2)
    if word == "enum":
        return st.lists(JSON, max_size=3)
    return mostly(BY_WORD.get(word, [0, 1, 2, 5]), JSON)


def nested(opening: str, middle: str, closing: str) -> list[str]:
    """At depths about Python's limit of recursion, and far beyond it."""
    return [opening * n + middle + closing * n for n in (30, 150, 250, 330, 480, 900, 50_000)]


REGEX_PARTS = r"a . \d [^a-z] [é-ü] ( ) | * +? {2,5} {99999} ^ $ \b (?=a) \1 (?i) [ ] \ ".split()
REGEXES: Cases = st.one_of(
    st.lists(st.sampled_from([*REGEX_PARTS, "\ud800", "\0"]), max_size=7).map("".join),
    st.text(max_size=10),
    st.sampled_from([*nested("(", "a", ")"), *nested("(?:", "a", "|b)+"), *nested("[", "a", "]")]),
)
SCHEMA_TEXTS = nested('{"items": ', "{}", "}") + nested('{"anyOf": [', "{}", "]}")
SCHEMA_TEXTS += ['{"type": "integer", "minimum": 1e400}', "{", "NaN", '{"const": 1e400}']
SCHEMA_TEXTS += ['{"type": ["string", "array"], "minLength": 1e400, "minItems": 1e400}']
GRAMMARS: Cases = st.one_of(
    st.tuples(st.just("json_schema"), mostly(NODES, ANYTHING) | st.sampled_from(SCHEMA_TEXTS)),
    st.tuples(st.just("regex"), mostly(REGEXES, ANYTHING)),
)

# ─── What a model says, and .gguf files ───

WHOLE_CALLS = [written_call(name) for name in FORMATS]
NOISE = [*"\n \" ' { } [ ] ( ) \\ < /> \0".split(" "), " ", "\ud800", IM_END, IM_START, "search("]
NOISE += ["null", "NaN", "1e999", "9" * 5000, "[" * 3000, "{" * 3000, "-" * 9000, "search(a='"]
NOISE += ["f(x=" + "-" * 3000, "f(x=" + "1+" * 3000, "<tool_call>", "```json"]
SAID: Cases = st.tuples(
    st.sampled_from(FORMATS),
    st.lists(
        st.builds(
            lambda call, part: call[: int(part * len(call))], one_of(WHOLE_CALLS), st.floats(0, 1)
        )
        | st.sampled_from(WHOLE_CALLS + NOISE)
        | st.text(max_size=12),
        max_size=5,
    ).map("".join),
)


def ggufs(whole: bytes) -> Cases:
    """Cut anywhere; or bits flipped, mostly in the header, where most is to be broken."""
    places = st.integers(0, 400) | st.integers(0, 24_000) | st.integers(0, len(whole) - 1)
    flips = st.lists(st.tuples(places, st.integers(0, 7)), min_size=1, max_size=4)
    return places.map(lambda end: whole[:end]) | flips.map(lambda each: flipped(whole, each))


def flipped(whole: bytes, flips: list[tuple[int, int]]) -> bytes:
    broken = bytearray(whole)
    for place, bit in flips:
        broken[min(place, len(whole) - 1)] ^= 1 << bit
    return bytes(broken)
