"""Products with packed weights are those with plain ones, and weights survive being packed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from _inf.backends.verl import environment

pytestmark = [pytest.mark.engine, pytest.mark.verl]  # it imports the whole stack
WIDE, OUT = 96, 40


@pytest.fixture(scope="module", autouse=True)
def packed_linear():
    environment.prepare("auto")
    from _inf.backends.verl.child import packed_linear

    return packed_linear


@pytest.fixture(scope="module", params=["oneDNN", "C"])
def kernels(compiled_kernels, request):
    """What multiplies few rows."""
    return compiled_kernels if request.param == "C" else None


@pytest.fixture(autouse=True)
def as_in_the_scheduler():
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def layer(dtype: torch.dtype = torch.float32, out: int = OUT, wide: int = WIDE) -> torch.nn.Module:
    with torch.inference_mode(False):
        module = torch.nn.Module()
        weight = torch.randn(out, wide).to(dtype)
        module.weight = torch.nn.Parameter(weight, requires_grad=False)
        return module


def plain(self: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """In place of `UnquantizedLinearMethod.apply`."""
    return linear(x, layer.weight, bias)


def is_packed(module: torch.nn.Module) -> bool:
    return hasattr(module.weight, "packed")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 64, 500])
def test_packed_product_is_the_plain_one(packed_linear, kernels, dtype, with_bias, rows):
    module = layer(dtype)
    bias = torch.randn(OUT).to(dtype) if with_bias else None
    x = torch.randn(rows, WIDE).to(dtype)
    exact = linear(x.double(), module.weight.double(), None if bias is None else bias.double())
    output = packed_linear.packed_linear(kernels, plain, None, module, x, bias)
    assert is_packed(module) == (dtype in packed_linear._packable_dtypes())
    assert output.dtype == dtype
    close = {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 0.1}
    torch.testing.assert_close(output.double(), exact, **close)
    if kernels and dtype == torch.float32 and rows <= packed_linear.FEW_ROWS:  # in C
        own = [packed_linear.packed_linear(kernels, plain, None, module, r[None], bias) for r in x]
        assert torch.equal(output, torch.cat([*own, output[:0]]))


def test_head_keeps_the_plain_copy_that_the_embedding_reads_and_in_another_dtype_is_sglangs(
    packed_linear, kernels, monkeypatch
):
    arguments = SimpleNamespace(rl_on_policy_target=None)
    monkeypatch.setattr(packed_linear, "get_global_server_args", lambda: arguments)

    def logits_of(head: Any, *, fp32: bool = False) -> Any:
        processor = SimpleNamespace(use_fp32_lm_head=fp32)
        return packed_linear.packed_head(kernels, lambda *_: None, processor, hidden, head)

    head, hidden = layer(), torch.randn(3, WIDE)
    before = head.weight.clone()
    torch.testing.assert_close(logits_of(head), linear(hidden, before))
    assert is_packed(head) and torch.equal(head.weight, before)
    packed_linear.unpack_all(head)
    assert not is_packed(head) and torch.equal(head.weight, before)
    assert logits_of(head, fp32=True) is None
    arguments.rl_on_policy_target = "fsdp"
    assert logits_of(head) is None
