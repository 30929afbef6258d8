"""The C functions that filter and draw give the tokens that PyTorch's operators give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from _inf.backends import draws
from _inf.backends.verl import compiled_libraries
from _inf.backends.verl.child.compiled_draws import CompiledDraws

pytestmark = pytest.mark.verl
WIDTH = 5_000


@pytest.fixture(scope="module")
def compiled() -> CompiledDraws:
    path = compiled_libraries.kernel_library()
    assert path is not None, "there must be a gcc"
    return CompiledDraws(path)


def probabilities(seed: int, rows: int, width: int, scale: float) -> torch.Tensor:
    logits = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    return (logits * scale).softmax(-1)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    width=st.sampled_from([1, 2, 37, WIDTH]),
    scale=st.sampled_from([0.0, 0.1, 1.0, 3.0, 10.0]),
    masked=st.booleans(),
    filters=st.lists(
        st.tuples(
            st.sampled_from([1, 5, 50, 1500, 2**30]),
            st.sampled_from([0.01, 0.3, 0.5, 0.9, 0.95, 1.0]),
            st.sampled_from([0.0, 0.0, 0.01, 0.1, 0.5, 1.0]),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_filters_leave_as_many_tokens_and_as_likely_ones(
    compiled: CompiledDraws,
    seed: int,
    width: int,
    scale: float,
    masked: bool,
    filters: list[tuple[int, float, float]],
) -> None:
    probs = probabilities(seed, len(filters), width, scale)
    if masked and width > 2:
        probs[:, ::3] = 0  # as a grammar does
    top_k, top_p, min_p = zip(*filters, strict=True)
    columns = [torch.tensor(column)[:, None] for column in (top_k, top_p, min_p)]
    kept, expected = compiled.filtered(probs, *columns), draws.filtered(probs, *columns)
    # Which of some equally likely tokens are kept is a sort's choice there.
    assert torch.equal(kept.sort(-1).values, expected.sort(-1).values)
    assert torch.equal(kept, torch.where(kept > 0, probs, 0))
    if scale == 1.0 and not masked:
        assert torch.equal(kept, expected)


@settings(max_examples=50, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=40),
    position=st.integers(0, 100_000),
    width=st.sampled_from([1, 2, 37, WIDTH]),
    scale=st.sampled_from([0.0, 1.0, 3.0, 100.0]),
)
def test_seeds_draw_the_tokens_that_they_draw_with_operators(
    compiled: CompiledDraws, seeds: list[int], position: int, width: int, scale: float
) -> None:
    probs = probabilities(position, len(seeds), width, scale)
    where = probs, seeds, [position + row for row in range(len(seeds))]
    assert torch.equal(compiled.draw_by_seed(*where), draws.draw_by_seed(*where))
    for broken in (torch.nan, 0.0):
        tokens = compiled.draw_by_seed(torch.full_like(probs, broken), *where[1:])
        assert ((tokens >= 0) & (tokens < width)).all()


def test_two_scores_that_rounding_could_swap_are_drawn_with_operators(
    compiled: CompiledDraws, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = -draws._negative_noise(draws.keys_of([7], [3]), WIDTH)
    probs = torch.full((1, WIDTH), 1e-9)
    probs[0, [11, 4000]] = 0.2 * noise[0, [11, 4000]]  # so both have the score 0.2
    monkeypatch.setattr(draws, "draw_by_seed", lambda *_: torch.tensor([5]))
    assert compiled.draw_by_seed(probs, [7], [3]).tolist() == [5]


@pytest.mark.parametrize("width", [1, 31, 32, 33, 320])
def test_masks_rule_out_the_tokens_whose_bit_is_0(compiled: CompiledDraws, width: int) -> None:
    words = torch.randint(-(2**31), 2**31, (3, 10), dtype=torch.int32)
    logits = torch.randn(3, width)
    logits[2] = torch.nan
    allowed = (words[:, :, None] >> torch.arange(32)).flatten(1)[:, :width] & 1 == 1
    expected = torch.where(allowed | logits.isnan(), logits, -torch.inf)
    compiled.apply_bits(logits, words)
    torch.testing.assert_close(logits, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("in[i] > last", "in[i] >= last", "keep_likely"),
        ("+ second", "- second", "draw_by_keys"),
        ("word >> i & 1", "word >> (i ^ 1) & 1", "apply_bits"),
    ],
)
def test_library_that_computes_something_else_is_refused(
    miscompiled: Callable[[str, str], Path], right: str, wrong: str, named: str
) -> None:
    library = miscompiled(right, wrong)
    with pytest.raises(RuntimeError, match=f"compiled_kernels: {named} "):
        CompiledDraws(library)
