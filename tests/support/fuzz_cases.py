"""What a caller, a config, a file and a model may say: right, nearly right and absurd."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pydantic
import torch
from hypothesis import strategies as st

from _inf.apps.openai_requests import ChatRequest
from _inf.config import Config
from _inf.config.load import FLAT
from _inf.parts.grammars.schemas import SCHEMA_KEYWORDS
from _inf.request.keywords import KEYWORDS as ROWS
from _inf.request.messages import ROLES
from tests.support.keyword_sets import OF_CALLS
from tests.support.keyword_sets import VALUES as VALUES_OF_PROMPTS
from tests.support.tiny import END_OF_TEXT, IM_END, IM_START, VOCABULARY

Cases = st.SearchStrategy[Any]

HUGE = 10**5000  # more digits than Python prints, and no float
ITSELF = []
ITSELF.append(ITSELF)
VALUES = [0, -1, 1, 2, 7, 2**31, 2**63, HUGE, -HUGE, -0.0, 0.5, 1.0, -2.5, True, False]
VALUES += [*map(float, "5e-324 1e39 1e308 nan inf -inf".split()), None, 1j, Decimal("nan")]
VALUES += [np.float32(0.5), np.int64(3), np.bool_(True), np.array([1, 2]), torch.tensor([1, 2])]
VALUES += [torch.ones(1, device="meta"), b"\xff", [], (), {}, {1}, [None], ITSELF, object(), int]
WORDS = "no yes null ~ 1e3 0512 1:30 0x_ 2020-13-45 ${ ${a} ${rollout.n} [[ {a: a.b".split()
WORDS += ["", " ", "\0", "\ud800", "${oc.env:NO_SUCH}", "👩‍🔬🏔️", "a" * 5000, "[" * 1500, IM_END]


def one_of(values: list[Any]) -> Cases:
    """`sampled_from`, which would print them all, for values that cannot be printed."""
    return st.integers(0, len(values) - 1).map(lambda place: values[place])


def mostly(right: Any, wrong: Cases) -> Cases:
    """Three right ones (cases, or values in a list) to a wrong one, so that the rest of a case is
    reached too."""
    right = one_of(right) if isinstance(right, list) else right
    return st.integers(0, 3).flatmap(lambda chance: right if chance else wrong)


ATOMS: Cases = one_of([*VALUES, *WORDS]) | st.integers() | st.floats() | st.text(max_size=6)
ANYTHING: Cases = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(one_of(["a", "type", "", 5, None, HUGE]), inner, max_size=2)
    ),
    max_leaves=5,
)
JSON: Cases = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def mutated(text: bytes, chance: random.Random) -> bytes:
    """A few bytes flipped, put in or taken out, or the end cut off."""
    damaged = bytearray(text)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(damaged) + 1)
        new = bytes([chance.randrange(256)] * chance.randint(0, 2))
        damaged[place : place + chance.choice([0, 1, 1, 9, 99])] = new
    return bytes(damaged)


def damaged(whole: Cases) -> Cases:
    return st.builds(mutated, whole, st.randoms(use_true_random=False))


def mapping(right: dict[str, Cases], /, **optional: Cases) -> Cases:
    return st.fixed_dictionaries(right, optional={**optional, "x": ATOMS})


def some(of_names: dict[str, Cases]) -> Cases:
    """Up to four of these keys."""
    return st.lists(st.sampled_from([*of_names]), max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: of_names[name] for name in names})
    )


def of_model(model: type[pydantic.BaseModel], wrong: Cases, **more: Cases) -> Cases:
    """Some fields of a model: mostly of their types."""
    fields = {}
    for name, field in model.model_fields.items():
        kind = field.annotation
        is_model = isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)
        right = of_model(kind, wrong) if is_model else st.from_type(kind)
        fields[field.alias or name] = mostly(right | st.just(field.get_default()), wrong)
    return some({**fields, **more})


# ─── Configs and lines of files ───

OTHER_KEYS = dict.fromkeys([*FLAT, "temprature", "rollout.n", "a b"], ATOMS)
CONFIGS: Cases = st.tuples(*[of_model(Config, ANYTHING, **OTHER_KEYS)] * 2)
SCALARS = [*WORDS, *"1 0.5 true .nan '1' *a *b @ 0o17".split(), "!!bool maybe", "!!timestamp x"]
SCALARS += ["!!python/object:os.x {}", "&a 1", "{<<: *a}", "&b [*b]", "|\n  text", "? [a]", "- 1"]
YAML_LINES: Cases = st.builds(
    "{}: {}\n".format,
    st.sampled_from([*Config.model_fields, *FLAT, "rollout: {temperature"]),
    st.sampled_from(SCALARS) | st.text(max_size=8),
)
YAMLS: Cases = st.lists(YAML_LINES, max_size=4).map(
    lambda lines: "".join(lines).encode("utf-8", "replace")
)
TALK = [{"role": "user", "content": "hi"}]
VALUE: Cases = one_of([1, True, "hi", None, TALK, {"type": "text"}, {}, 1e308, "POST"]) | JSON
BODY: Cases = some(dict.fromkeys(["x", *ChatRequest.model_fields], VALUE))
FORMS = [{"prompt": "hi"}, {"messages": TALK, "metadata": {"a": 1}}]
FORMS.append({"custom_id": "a", "body": {"messages": TALK, "n": 1}})
ROW_KEYS = "prompt messages body custom_id url metadata id completion".split()
WRITTEN: Cases = mostly(FORMS, some(dict.fromkeys(ROW_KEYS, VALUE | BODY))).map(
    lambda row: json.dumps(row).replace("1e+308", "1e400").encode()
)
FILE_LINES: Cases = WRITTEN | damaged(WRITTEN) | st.binary(max_size=30)

# ─── Calls ───

RIGHT = {**VALUES_OF_PROMPTS, **OF_CALLS, "json_schema": [{"enum": ["a", 1]}]}
KEYWORDS: Cases = some(
    {
        name: mostly(RIGHT.get(name, [{}, False, 1]), ANYTHING)
        for name in [*ROWS, "temprature", "max_new_tokens", "", "self_"]
    }
)
TEXTS: Cases = (
    st.text(min_size=1, max_size=40)
    | st.sampled_from(["Hello", "2 + 2 =", IM_START + "system", END_OF_TEXT, *WORDS])
    | st.integers(1, 40_000).map(lambda size: "ab " * size)
)
CALLED = mostly(
    mapping({"name": st.just("f")}, arguments=mostly([{}, '{"a": 1}'], ANYTHING)), ATOMS
)
PARTS: Cases = st.lists(mapping({"type": mostly(["text"], ATOMS), "text": TEXTS}), max_size=3)
MESSAGES: Cases = mapping(
    {"role": mostly(list(ROLES), ATOMS), "content": mostly(TEXTS | PARTS, ANYTHING)},
    tool_calls=mostly(st.lists(mapping({"function": CALLED}, id=ATOMS), max_size=2), ANYTHING),
    name=mostly(["f"], ANYTHING),
)
NUMBERS: Cases = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=80)
IDS: Cases = (
    NUMBERS
    | st.lists(mostly(st.integers(0, VOCABULARY), ATOMS), max_size=5)
    | NUMBERS.flatmap(lambda ids: one_of([np.array(ids), torch.tensor(ids)]))
    | ANYTHING
)
PROMPTS: Cases = st.one_of(
    TEXTS,
    st.lists(MESSAGES, max_size=3),
    mapping({"prompt_token_ids": IDS}),
    mapping({"text": mostly(TEXTS, ANYTHING)}),
    ANYTHING,
)
SCHEMAS: Cases = mapping(
    {"name": mostly(["f", "g", "a.b"], ANYTHING)},
    description=mostly(["Does."], ANYTHING),
    parameters=mostly(
        [{"type": "object"}], mapping({"type": st.just("object")}, properties=ANYTHING)
    ),
    strict=ATOMS,
)
WRAPPED: Cases = mapping({"function": mostly(SCHEMAS, ANYTHING)}, type=mostly(["function"], ATOMS))
TOOL_LISTS: Cases = mostly(st.lists(SCHEMAS | WRAPPED | ANYTHING, max_size=3), ANYTHING)

# ─── Grammars ───

BY_WORD = {
    "type": ["object", "array", "string", "integer", "number", "null", "boolean"],
    "pattern": ["a+", "^\\d{3}$", "(", "[^\\W]", "\\b", "(a|b)*", "\\u0000"],
    "$ref": ["#", "#/$defs/a", "#/properties/a", "#/no", "http://x", "#a", "#/-1"],
    "required": [[], ["a"], ["b", 'say "hi"'], [""]],
}
BOUNDS = [0, -5, 1, 3, 0.5, 12, 400, 97, 9973, 1e-9, 20_000, 1e308, 2**62, 2**63, 10**30]
NODES: Cases = st.deferred(
    lambda: some({word: value_of(word) for word in ["type", *SCHEMA_KEYWORDS, "x"]})
)


def value_of(word: str) -> Cases:
    if word in ("properties", "$defs", "definitions", "patternProperties"):
        names = st.sampled_from(["a", "b", 'say "hi"', "x\\y", "", "é"])
        return st.dictionaries(names, NODES, max_size=2)
    if word in ("items", "additionalProperties"):
        return NODES | st.booleans()
    if word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        return st.lists(NODES, max_size=2)
    return mostly(BY_WORD.get(word, BOUNDS), JSON)


def nested(opening: str, middle: str, closing: str) -> list[str]:
    """At depths about Python's limit of recursion, and far beyond it."""
    return [opening * n + middle + closing * n for n in (30, 150, 250, 330, 480, 900, 50_000)]


REGEX_PARTS = r"a . \d [^a-z] ( ) | * +? {2,5} {99999} ^ $ \b (?=a) \1 (?i) [ ] \ ".split()
REGEXES: Cases = st.lists(st.sampled_from([*REGEX_PARTS, "\ud800", "\0"]), max_size=7).map("".join)
REGEXES |= st.sampled_from([*nested("(", "a", ")"), *nested("(?:", "a", "|b)+")])
SCHEMA_TEXTS = nested('{"items": ', "{}", "}") + nested('{"anyOf": [', "{}", "]}")
SCHEMA_TEXTS += ['{"type": "integer", "minimum": 1e400}', "{", "NaN", '{"const": 1e400}']
GRAMMARS: Cases = st.one_of(
    st.tuples(st.just("json_schema"), mostly(NODES, ANYTHING) | st.sampled_from(SCHEMA_TEXTS)),
    st.tuples(st.just("regex"), mostly(REGEXES, ANYTHING)),
)
