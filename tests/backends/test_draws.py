"""Tokens are drawn as often as their probabilities say, and filters leave what they should."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from _inf.backends import draws

DRAWS = 200_000


def test_noise_is_that_of_its_seed_and_position() -> None:
    assert torch.equal(draws.noise(1, 2, 100), draws.noise(1, 2, 100))
    assert not torch.equal(draws.noise(1, 2, 100), draws.noise(1, 3, 100))
    assert not torch.equal(draws.noise(1, 2, 100), draws.noise(2, 2, 100))
    assert (draws.noise(7, 0, 100_000) > 0).all()


@pytest.mark.parametrize("width", [1, 2, 6, 100, 1000])
def test_tokens_are_drawn_as_often_as_their_probabilities_say(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    weights = torch.rand(1, width, generator=generator) ** 4
    weights[0, ::3] = 0.0 if width > 1 else 1.0  # never drawn
    tokens = draws.draw(weights.expand(DRAWS, -1), generator)
    counts = torch.bincount(tokens, minlength=width)
    assert len(counts) == width and not counts[weights[0] == 0].any()
    expected = weights[0].double() / weights.sum() * DRAWS
    often = expected > 10
    squares = (counts - expected)[often] ** 2 / expected[often]
    # A chi-squared sum: its mean is the degrees of freedom, its variance twice that.
    freedom = int(often.sum()) - 1
    assert squares.sum() < freedom + 5 * (2 * freedom) ** 0.5 + 1e-6


def test_each_row_has_its_own_draw() -> None:
    one_hot = torch.eye(300)[torch.randperm(300)]
    assert torch.equal(draws.draw(one_hot), one_hot.argmax(1))
    assert len(set(draws.draw(torch.ones(50, 10_000)).tolist())) > 30


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
    seed: int, width: int, spread: float, filters: list[tuple[int, float, float]]
) -> None:
    logits = torch.randn(len(filters), width, generator=torch.Generator().manual_seed(seed))
    probs = torch.softmax(logits.double() * spread, -1)
    columns = (torch.tensor(values)[:, None] for values in zip(*filters, strict=True))
    for kept, row, (top_k, top_p, min_p) in zip(
        draws.filtered(probs, *columns), probs, filters, strict=True
    ):
        expected, before = torch.zeros(width).double(), 0.0
        for rank, token in enumerate(row.argsort(descending=True).tolist()):
            value = float(row[token])
            unfiltered = top_p >= 1 or before <= top_p
            if rank < top_k and unfiltered and value >= float(row.max()) * min_p:
                expected[token] = row[token]
            before += value
        close = torch.isclose(kept, expected)
        # At the edge of top_p the sums' rounding may decide otherwise for one token.
        assert close.sum() >= width - 1
