"""Tokens are drawn as often as their probabilities say, and filters leave what they should."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from _inf.backends import draws

DRAWS = 20_000


@pytest.mark.parametrize("width", [1, 2, 6, 97, 1000])
def test_tokens_are_drawn_as_often_as_their_probabilities_say(width):
    generator = torch.Generator().manual_seed(width)
    weights = torch.rand(width, generator=generator) ** 4
    weights[::3] = 0.0 if width > 1 else 1.0  # never drawn
    rows = weights.expand(DRAWS, -1)
    for tokens in (
        draws.draw_by_seed(rows, [5] * DRAWS, range(DRAWS)),
        draws.draw_by_seed(rows, range(DRAWS), [0] * DRAWS),
        draws.draw(rows, generator),
    ):
        assert_as_often(torch.bincount(tokens, minlength=width), weights)


def test_rows_without_a_seed_beside_others_are_drawn_by_chance():
    probs = torch.full((200, 1000), 1e-3)
    seeds = [number if number % 2 else None for number in range(200)]
    drawn = [draws.draw_rows(probs, seeds, range(200)) for _ in range(2)]
    assert torch.equal(drawn[0][1::2], drawn[1][1::2])
    assert (drawn[0] != drawn[1])[::2].sum() > 90
    alone = draws.draw_by_seed(probs[:1], [41], [41])
    assert drawn[0][41] == alone[0]


def assert_as_often(counts: torch.Tensor, weights: torch.Tensor | None = None) -> None:
    """By a chi-squared sum: its mean is the degrees of freedom, its variance twice that."""
    weights = torch.ones(len(counts)) if weights is None else weights
    assert len(counts) == len(weights) and not counts[weights == 0].any()
    expected = weights.double() / weights.sum() * counts.sum()
    often = expected > 10
    squares = (counts - expected)[often] ** 2 / expected[often]
    freedom = int(often.sum()) - 1
    assert squares.sum() < freedom + 5 * (2 * freedom) ** 0.5 + 1e-6


@pytest.fixture(scope="module")
def in_c_too():
    """The functions, and where verl is installed those in C."""
    if importlib.util.find_spec("verl") is None:
        return [draws]
    from _inf.backends.verl.child.compiled_draws import CompiledDraws
    from _inf.backends.verl.compiled_libraries import kernel_library

    return [draws, CompiledDraws(kernel_library())]


@settings(max_examples=50, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=40),
    position=st.integers(0, 100_000),
    width=st.sampled_from([1, 2, 37, 5000]),
    scale=st.sampled_from([0.0, 1.0, 3.0, 100.0]),
)
def test_seeds_draw_the_same_tokens_in_c_and_any_of_a_row_without_probabilities(
    in_c_too, seeds, position, width, scale
):
    generator = torch.Generator().manual_seed(position)
    probs = (torch.randn(len(seeds), width, generator=generator) * scale).softmax(-1)
    places = range(position, position + len(seeds))
    drawn = [each.draw_by_seed(probs, seeds, places) for each in in_c_too]
    assert all(torch.equal(tokens, drawn[0]) for tokens in drawn)
    for broken in (torch.nan, 0.0):
        tokens = in_c_too[-1].draw_by_seed(torch.full_like(probs, broken), seeds, places)
        assert ((tokens >= 0) & (tokens < width)).all()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    width=st.sampled_from([5, 1024, 3000]),
    spread=st.sampled_from([0.1, 3.0, 10.0]),
    filters=st.lists(
        st.tuples(
            st.sampled_from([1, 2, 50, 1023, 1024, 1025, 2**30]),
            st.sampled_from([1e-6, 0.5, 0.9, 0.999, 1.0]),
            st.sampled_from([0.0, 0.01, 0.5, 1.0]),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_filters_leave_what_a_sort_of_the_whole_vocabulary_leaves(
    in_c_too, seed, width, spread, filters
):
    logits = torch.randn(len(filters), width, generator=torch.Generator().manual_seed(seed))
    probs = torch.softmax(logits * spread, -1)
    columns = [torch.tensor(values)[:, None] for values in zip(*filters, strict=True)]
    left = [each.filtered(probs, *columns) for each in in_c_too]
    for row, (top_k, top_p, min_p), *all_kept in zip(probs, filters, *left, strict=True):
        expected, before = torch.zeros(width), 0.0
        for rank, token in enumerate(row.argsort(descending=True).tolist()):
            value = float(row[token])
            unfiltered = top_p >= 1 or before <= top_p
            if rank < top_k and unfiltered and value >= float(row.max()) * min_p:
                expected[token] = row[token]
            before += value
        # At the edge of top_p the sums' rounding may decide otherwise for one token.
        assert all(torch.isclose(kept, expected).sum() >= width - 1 for kept in all_kept)
