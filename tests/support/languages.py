"""What is written in a language of its own: tool files, templates, grammars, answers, `.gguf`s."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from _inf.config.tool_formats import FORMATS
from _inf.request.grammar import SCHEMA_KEYWORDS
from tests.support.call_strategies import SCHEMAS, TOOL_LISTS, WRAPPED, as_yaml
from tests.support.strategies import ANYTHING, ATOMS, JSON, SCALARS, Cases, damaged, mostly
from tests.support.tiny import IM_END, IM_START
from tests.support.tool_call_forms import written_call

# ─── Files of tools ───

CLASSES = [
    "_inf.tools.calculator.Calculator",
    "verl.tools.gsm8k_tool.Gsm8kTool",
    "json.JSONDecoder",
]
CLASSES += ["os.getcwd", "no.such.Class", "json.Nonesuch", ".json.x", "json.", "a..b", "x\0.y", "x"]
RIGHT_ENTRY = {"class_path": "_inf.tools.calculator.Calculator", "config": {"type": "native"}}
ENTRIES: Cases = mostly(
    st.sampled_from([{"name": "f"}, {"function": {"name": "g"}}, RIGHT_ENTRY]),
    SCHEMAS
    | WRAPPED
    | st.fixed_dictionaries(
        {},
        optional={
            "class_path": mostly(st.sampled_from(CLASSES), ATOMS),
            "class_name": mostly(st.sampled_from(["Calculator", *CLASSES]), ATOMS),
            "config": mostly(
                st.sampled_from([{}, {"type": "native"}, {"type": "mcp"}, {"a": "${oc.env:NO}"}]),
                ANYTHING,
            ),
            "tool_schema": mostly(WRAPPED, ANYTHING),
            "mcp": ATOMS,
        },
    ),
)
TREES: Cases = st.one_of(
    st.fixed_dictionaries({"tools": st.lists(ENTRIES, max_size=3)}),
    st.lists(ENTRIES, max_size=2),
    st.dictionaries(st.sampled_from(["tools", "tool", "x"]), TOOL_LISTS, max_size=2),
)
RAW: Cases = st.builds(
    lambda key, scalar: f"tools:\n- name: f\n  {key}: {scalar}\n".encode("utf-8", "replace"),
    st.sampled_from(["description", "parameters", "name", "? x\n  y", "class_path", "config"]),
    st.sampled_from(SCALARS),
)
TOOL_FILES: Cases = st.one_of(TREES.map(as_yaml), damaged(TREES.map(as_yaml)), RAW)

# ─── Chat templates ───

PIECES = [
    "{{ messages[0].content }}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}",
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "{{ raise_exception('never') }}",
    "{% if tools %}{{ raise_exception('no tools') }}{% endif %}",
    "{% if messages[0].role == 'user' %}{{ raise_exception('no system') }}{% endif %}",
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}",
    "{{ 1 / 0 }}",
    "{{ nothing.at.all }}",
    "{{ messages[9].content }}",
    "{{ messages | nofilter }}",
    "{{ messages[0] + 1 }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ range(10 ** 9) | list }}",
    "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "{% for m in messages %}{% if m.role == 'tool' %}{{ m.content }}{% endif %}{% endfor %}",
    "{% if loop.index %}",
    "{% endfor %}",
    "{{",
    "{# a remark",
    "\ud800",
    "",
    "word ",
]
TEMPLATES: Cases = st.builds(
    lambda pieces, wrong: "".join([*pieces, *wrong]),
    st.lists(st.sampled_from(PIECES[:3]), min_size=1, max_size=3),
    mostly(st.just([]), st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=3)),
)

# ─── Grammars ───

WORDS: dict[str, Cases] = {
    "type": st.sampled_from(["object", "array", "string", "integer", "number", "null", "boolean"]),
    "enum": st.lists(JSON, max_size=3),
    "const": JSON,
    "pattern": st.sampled_from(["a+", "^\\d{3}$", "(", "[^\\W]", "\\b", "é", "(a|b)*", "\\u0000"]),
    "format": st.sampled_from(["date", "time", "date-time", "ipv4", "uuid", "email", "x", ""]),
    "$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/a", "#/no", "http://x", "#a", "#/-1"]),
    "required": st.lists(st.sampled_from(["a", "b", 'say "hi"', ""]), max_size=2),
    "minItems": st.integers(-1, 4),
    "minimum": st.sampled_from([0, -5, 1, 12, 5.5, 1e308, 2**62, 2**63, -(2**63)]),
    "maximum": st.sampled_from([3, -1, 0, 400, 1e308, 2**62, 10**30]),
    "maxLength": st.sampled_from([0, 3, 20_000, 2.0, 1e30, 2**62]),
    "uniqueItems": st.booleans(),
    "multipleOf": st.sampled_from([1, 3, 0.5, 0.1, 97, 9973, 999_999, 1e-9, 0, -1]),
    "maxItems": st.sampled_from([0, 3, 9_000, 10**6, 2**62]),
    "x": JSON,
}
NODES: Cases = st.deferred(
    lambda: st.lists(
        st.sampled_from([*WORDS, "type", "type", *sorted(SCHEMA_KEYWORDS)]), max_size=4, unique=True
    ).flatmap(lambda words: st.fixed_dictionaries({word: _keyword(word) for word in words}))
)


def _keyword(word: str) -> Cases:
    if word in ("properties", "$defs", "definitions", "patternProperties"):
        names = st.sampled_from(["a", "b", 'say "hi"', "x\\y", "", "é"])
        return st.dictionaries(names, NODES, max_size=2)
    if word in ("items", "additionalProperties"):
        return NODES | st.booleans()
    if word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        return st.lists(NODES, max_size=2)
    return mostly(WORDS.get(word, st.integers(0, 5)), JSON)


def nested(opening: str, middle: str, closing: str) -> list[str]:
    """At depths about Python's limit of recursion, and far beyond it."""
    return [opening * n + middle + closing * n for n in (30, 150, 250, 330, 480, 900, 50_000)]


ATOMS_OF_REGEX = ["a", ".", "\\d", "[^a-z]", "[é-ü]", "(", ")", "|", "*", "+?", "{2,5}", "{99999}"]
ATOMS_OF_REGEX += [
    "^",
    "$",
    "\\b",
    "(?=a)",
    "(?P<n>a)",
    "\\1",
    "(?i)",
    "[",
    "]",
    "\\",
    "\ud800",
    "\0",
]
REGEXES: Cases = st.one_of(
    st.lists(st.sampled_from(ATOMS_OF_REGEX), max_size=7).map("".join),
    st.text(max_size=10),
    st.sampled_from([*nested("(", "a", ")"), *nested("(?:", "a", "|b)+"), *nested("[", "a", "]")]),
)
DEEP_SCHEMAS = nested('{"items": ', "{}", "}") + nested('{"anyOf": [', "{}", "]}")
GRAMMARS: Cases = st.one_of(
    st.tuples(st.just("json_schema"), mostly(NODES, ANYTHING)),
    st.tuples(
        st.just("json_schema"),
        st.sampled_from([*DEEP_SCHEMAS, '{"type": "integer", "minimum": 1e400}', "{", "NaN"])
        | st.sampled_from(["minLength", "maximum", "const", "minItems", "minProperties"]).map(
            lambda word: f'{{"type": ["integer", "string", "array", "object"], "{word}": 1e400}}'
        ),
    ),
    st.tuples(st.just("regex"), mostly(REGEXES, ANYTHING)),
)

# ─── What a model says ───

CALLS_OF_FORMATS = [written_call(name) for name in FORMATS]
NOISE = ["\n", " ", '"', "'", "{", "}", "[", "]", "(", ")", "\\", "<", "/>", "\0", "\ud800", IM_END]
NOISE += [
    IM_START,
    "search(",
    "null",
    "NaN",
    "1e999",
    "9" * 5000,
    "[" * 3000,
    "{" * 3000,
    "-" * 9000,
]
NOISE += ["f(x=" + "-" * 3000, "f(x=" + "1+" * 3000, "search(a='", "<tool_call>", "```json"]
SAID: Cases = st.tuples(
    st.sampled_from(FORMATS),
    st.lists(
        st.sampled_from(CALLS_OF_FORMATS).flatmap(
            lambda call: st.integers(0, len(call)).map(lambda end: call[:end])
        )
        | st.sampled_from(CALLS_OF_FORMATS + NOISE)
        | st.text(max_size=12),
        max_size=5,
    ).map("".join),
)

# ─── .gguf files ───


def ggufs(whole: bytes) -> Cases:
    """Cut anywhere; or bits flipped, mostly in the header, where most is to be broken."""
    header = min(len(whole), 24_000)
    place = st.integers(0, 400) | st.integers(0, header - 1) | st.integers(0, len(whole) - 1)
    flips = st.lists(st.tuples(place, st.integers(0, 7)), min_size=1, max_size=4)
    return st.one_of(
        place.map(lambda end: whole[:end]), flips.map(lambda each: flipped(whole, each))
    )


def flipped(whole: bytes, flips: list[tuple[int, int]]) -> bytes:
    broken: Any = bytearray(whole)
    for place, bit in flips:
        broken[place] ^= 1 << bit
    return bytes(broken)
