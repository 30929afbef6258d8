"""Values that callers, files and models may hand over: right, nearly right and absurd."""

from __future__ import annotations

import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

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
WORDS = "no yes on null ~ 1e3 0512 1:30 0x_ 0b_ 2020-13-45 ??? ${ ${a} ${rollout.n} [[ a.b".split()
WORDS += ["", " ", "\0", "\ud800", "${oc.env:NO_SUCH}", "{a: b", "é\u0301", "\u202e\u200d\ufeff"]
WORDS += ["👩‍🔬🏔️", "a" * 5000, "[" * 1500, "ﷺ" * 300, IM_END]
THINGS: list[Any] = [b"", b"\xff", [], (), {}, set(), frozenset({1}), [None], ITSELF, DEEP]
THINGS += [Speechless(), object(), int, len, range(3), iter([1]), lambda: 0, {HUGE: 1}, {None: 1}]


def one_of(values: list[Any]) -> Cases:
    """`sampled_from`, which would print them all, for values that cannot be printed."""
    return st.integers(0, len(values) - 1).map(lambda place: values[place])


ATOMS: Cases = st.one_of(
    one_of([*NUMBERS, *WORDS, *THINGS]),
    st.integers() | st.floats(),
    st.text(max_size=6) | st.text(st.characters(categories=["Cs", "Cc", "Cf", "Mn"]), max_size=4),
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


def mostly(right: Any, wrong: Cases = ATOMS) -> Cases:
    """Three right ones (cases, or values in a list) to a wrong one, so that the rest of a case is
    reached too."""
    right = one_of(right) if isinstance(right, list) else right
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
