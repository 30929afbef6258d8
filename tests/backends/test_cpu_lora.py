"""The scheduler's own products of adapters on a CPU, against plain matrix products."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from _inf.backends.verl import environment
from _inf.backends.verl.compiled_libraries import kernel_library

pytestmark = [pytest.mark.engine, pytest.mark.verl]  # it imports the whole stack
WIDE, OUT, MOST = 24, (40, 8, 8), 4  # a layer's inputs, its outputs in three slices; the rank
RANKS, SCALINGS = [0, 2, MOST], [0.0, 0.5, 2.0]  # by place; the first is the model's own


@pytest.fixture(scope="module")
def lora():
    environment.prepare("auto")
    from _inf.backends.verl.child import lora

    return lora


def batch(lengths: list[int], decoding: bool) -> Any:
    """What of SGLang's `ForwardBatch` is read: rows with so many new tokens each."""
    mode = SimpleNamespace(
        is_decode=lambda: decoding, is_target_verify=lambda: False, is_extend=lambda: not decoding
    )
    tensor = torch.tensor(lengths, dtype=torch.int32)
    return SimpleNamespace(
        forward_mode=mode,
        batch_size=len(lengths),
        extend_seq_lens=tensor,
        extend_seq_lens_cpu=lengths,
    )


@pytest.mark.parametrize(
    ("places", "lengths", "decoding"),
    [
        ([1], [5], False),
        ([0, 0], [1, 1], True),
        ([0, 0], [3, 2], False),
        ([2, 1, 0, 2, 2], [1] * 5, True),  # two rows with one adapter, side by side and apart
        ([1, 0, 1, 2], [3, 2, 1, 4], False),
        ([2, 2], [3, 1], False),
        ([2, 2], [90, 1], False),  # too many for the C function
        ([2, 0], [90, 1], False),
    ],
)
@pytest.mark.parametrize("in_c", [True, False])
def test_layer_gets_what_its_adapters_add(lora, places, lengths, decoding, in_c):
    torch.manual_seed(0)
    inner = torch.randn(len(RANKS), 3 * MOST, WIDE)
    outer = torch.randn(len(RANKS), sum(OUT), MOST)
    x, output = torch.randn(sum(lengths), WIDE), torch.randn(sum(lengths), sum(OUT))
    offsets = [0, *itertools.accumulate(OUT)]
    expected, of_tokens = (
        output.clone(),
        torch.tensor(places).repeat_interleave(torch.tensor(lengths)),
    )
    for token, place in enumerate(of_tokens.tolist()):
        rank = RANKS[place]
        for number, (begin, end) in enumerate(itertools.pairwise(offsets)):
            a = inner[place, number * rank : (number + 1) * rank]
            added = outer[place, begin:end, :rank] @ (a @ x[token])
            expected[token, begin:end] += SCALINGS[place] * added
    from _inf.backends.verl.child.kernels import Kernels

    compiled = lora.CompiledAdapters(Kernels(kernel_library())) if in_c else None
    products = lora.CpuLora(len(RANKS), torch.device("cpu"), compiled=compiled)
    products.prepare_lora_batch(batch(lengths, decoding), places, RANKS, SCALINGS, False)
    ends = torch.tensor(offsets, dtype=torch.int32)
    result = products.run_qkv_lora(x, inner, outer, output_offset=ends, base_output=output)
    assert result is output
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
