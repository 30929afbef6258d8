"""What callers, files and models may hand over: right, nearly right and absurd."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from _inf.config import Config
from _inf.config.load import FLAT
from tests.support.tiny import IM_END

Cases = st.SearchStrategy[Any]


class Speechless:
    """Nobody can print it."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


HUGE = 10**5000  # more digits than Python prints, and no float
ITSELF: list[Any] = []
ITSELF.append(ITSELF)
DEEP: Any = []
for _ in range(3000):
    DEEP = [DEEP]
NUMBERS: list[Any] = [0, -1, 1, 2, 7, 2**31 - 1, 2**31, 2**63 - 1, 2**63, HUGE, -HUGE, 0.0, -0.0]
NUMBERS += [0.5, 1.0, 1.5, 2.0, -2.5, 5e-324, 1e-7, 1e39, 1e308, float("nan"), float("inf")]
NUMBERS += [float("-inf"), np.float32(0.5), np.float16("nan"), np.float64(1.0), np.int64(3)]
NUMBERS += [np.uint8(200), np.bool_(True), np.array(0.5), np.array([1, 2]), torch.tensor(0.5)]
NUMBERS += [torch.tensor(3), torch.tensor(True), torch.tensor([1, 2]), torch.ones(1, device="meta")]
NUMBERS += [Decimal("0.5"), Decimal("nan"), Fraction(1, 2), Fraction(HUGE), 1j, True, False, None]
WORDS = [
    "",
    " ",
    "no",
    "yes",
    "on",
    "null",
    "~",
    "1e3",
    "0512",
    "1:30",
    "0x_",
    "0b_",
    "\0",
    "\ud800",
]
WORDS += [
    "2020-13-45",
    "???",
    "${a}",
    "${rollout.n}",
    "${oc.env:NO_SUCH}",
    "${",
    "[[",
    "{a: b",
    "a.b",
]
WORDS += ["é\u0301", "\u202e\u200d\ufeff", "👩‍🔬🏔️", "a" * 5000, "[" * 1500, "ﷺ" * 300, IM_END]
THINGS: list[Any] = [b"", b"\xff", [], (), {}, set(), frozenset({1}), [None], ITSELF, DEEP]
THINGS += [Speechless(), object(), int, len, range(3), iter([1]), lambda: 0, {HUGE: 1}, {None: 1}]


def one_of(values: list[Any]) -> Cases:
    """`sampled_from`, which would print them all, for values that cannot be printed."""
    return st.integers(0, len(values) - 1).map(lambda place: values[place])


ATOMS: Cases = st.one_of(
    one_of(NUMBERS),
    one_of(WORDS),
    one_of(THINGS),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.text(st.characters(categories=["Cs", "Cc", "Cf", "Mn"]), max_size=4),
)
ANYTHING: Cases = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=2).map(tuple),
        st.dictionaries(one_of(["a", "type", "", 5, None, HUGE]), inner, max_size=2),
    ),
    max_leaves=5,
)
JSON: Cases = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


def mostly(right: Cases, wrong: Cases) -> Cases:
    """Three right ones to a wrong one, so that the rest of a case is reached too."""
    return st.integers(0, 3).flatmap(lambda chance: right if chance else wrong)


def mutated(text: bytes, chance: random.Random) -> bytes:
    """A few bytes flipped, put in, taken out or doubled, or the end cut off."""
    damaged = bytearray(text)
    for _ in range(chance.randint(1, 4)):
        place, how = chance.randrange(len(damaged) + 1), chance.randrange(5)
        if how == 0 and place < len(damaged):
            damaged[place] ^= 1 << chance.randrange(8)
        elif how == 1:
            damaged[place:place] = bytes([chance.randrange(256)])
        elif how == 2:
            del damaged[place : place + chance.randint(1, 9)]
        elif how == 3:
            damaged[place:place] = damaged[place : place + 40]
        elif chance.random() < 0.2:
            del damaged[place:]
    return bytes(damaged)


def damaged(whole: Cases) -> Cases:
    """Bytes with some of them wrong."""
    return st.builds(mutated, whole, st.randoms(use_true_random=False))


# ─── Configs ───


def leaves(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Every key and its default, by dotted path."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found[f"{path}{key}"] = value
        if isinstance(value, dict):
            found |= leaves(value, f"{path}{key}.")
    return found


DEFAULTS = leaves(Config().to_dict())
MISSPELT = [
    "temprature",
    "rollout.temprature",
    "rollout.n.x",
    "Rollout",
    "rollout.multi_turn.enabled",
]
MISSPELT += [
    "rollout.",
    "a b",
    "rollout.engine_kwargs.sglang.tp_size",
    "rollout.engine_kwargs.x",
]
PATHS: Cases = mostly(
    st.sampled_from(sorted(DEFAULTS)) | st.sampled_from(sorted(FLAT)), st.sampled_from(MISSPELT)
)
KEYS: Cases = PATHS.flatmap(
    lambda path: st.tuples(
        st.just(path),
        mostly(
            st.just(DEFAULTS.get(FLAT.get(path, path))) | st.sampled_from([1, 0.5, True, "auto"]),
            ANYTHING,
        ),
    )
)
CONFIGS: Cases = st.tuples(st.lists(KEYS, max_size=3), st.lists(KEYS, max_size=2))

SCALARS = [
    *WORDS,
    "1",
    "0.5",
    "true",
    ".nan",
    "-.inf",
    "'1'",
    '"\\ud800"',
    "!!bool maybe",
    "!!int ''",
]
SCALARS += ["!!timestamp x", "!!float x", "!!binary _", "!!set {a}", "!!python/object:os.x {}"]
SCALARS += [
    "&a 1",
    "*a",
    "*b",
    "{<<: *a}",
    "&b [*b]",
    "|\n  text",
    ">-\n  text",
    "? [a]",
    "- 1",
    "@",
]
SCALARS += ["2001-12-14t21:59:43.10-05:00", "+12_3", "0o17", "1" * 5000, "{a: {b: [1, {c: 2}]}}"]


def spelt(path: str) -> Cases:
    """What stands behind the colon."""
    right = json.dumps(DEFAULTS.get(FLAT.get(path, path)))
    return mostly(st.just(right), st.sampled_from(SCALARS) | st.text(max_size=8))


LINES: Cases = st.builds(
    lambda pair, end: f"{pair[0].rpartition('.')[2]}: {pair[1]}{end}",
    PATHS.flatmap(lambda path: st.tuples(st.just(path), spelt(path))),
    st.sampled_from(["\n", "\n", " # why\n", "\n---\n", "\t\n", "\r\n", "\n..."]),
)
BLOCKS: Cases = st.lists(LINES, max_size=4).flatmap(
    lambda lines: st.sampled_from(
        [
            "".join(lines),
            "".join(lines),
            "rollout:\n" + "".join(f"  {line}" for line in lines),
            "rollout:\n  multi_turn:\n" + "".join(f"    {line}" for line in lines),
            "x: &a {n: 1}\nrollout:\n  <<: *a\n" + "".join(f"  {line}" for line in lines),
        ]
    )
)
FLOWS: Cases = PATHS.flatmap(
    lambda path: spelt(path).map(
        lambda scalar: f"{path.replace('.', ': {')}: {scalar}{'}' * path.count('.')}\n".encode(
            "utf-8", "replace"
        )
    )
)
BOMB = "a: &x0 [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n, name in enumerate("bcdefghij", 1)
)
YAMLS: Cases = st.one_of(
    FLOWS,
    BLOCKS.map(lambda text: (text + BOMB).encode("utf-8", "replace")),
    BLOCKS.map(lambda text: text.encode("utf-8", "surrogatepass")),
    damaged(BLOCKS.map(lambda text: text.encode("utf-8", "replace"))),
)
ASSIGNMENTS: Cases = st.lists(
    st.builds(
        lambda pair, equals: equals.join(pair),
        PATHS.flatmap(lambda path: st.tuples(st.just(path), spelt(path))),
        mostly(st.just("="), st.sampled_from(["", "==", ":"])),
    ),
    max_size=3,
)
