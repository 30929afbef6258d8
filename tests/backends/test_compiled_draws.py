"""The C functions that filter and draw give the tokens that PyTorch's operators give."""

from __future__ import annotations

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
