"""The C function of `adapters.c`: what LoRA adapters add to a layer's output.

A layer has four of these sums, and with PyTorch's operators each is three to a dozen calls that
compute next to nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch

_LONG, _POINTER = ctypes.c_long, ctypes.c_void_p
_ARGUMENTS = (*(_POINTER,) * 2, _LONG, _POINTER, _LONG, _POINTER, _LONG, _LONG, *(_POINTER,) * 2)


class _Adapters(ctypes.Structure):
    """`Adapters` in adapters.c."""

    _fields_ = [
        *((name, _POINTER) for name in ("rows", "places", "ranks", "scalings")),
        ("count", _LONG),
    ]


class CompiledAdapters:
    """What `compiled_libraries.kernel_library` has compiled. Raises `RuntimeError` if the function
    computes something else than PyTorch's operators."""

    def __init__(self, path: Path) -> None:
        self._add = ctypes.CDLL(str(path)).add_adapters
        self._add.argtypes = _ARGUMENTS
        _compare_with_pytorch(self)

    def step(self, places: list[int], ranks: list[int], scalings: list[float]) -> AdaptersOfStep:
        return AdaptersOfStep(self._add, places, ranks, scalings)


class AdaptersOfStep:
    """The adapters of one step's rows. places: each row's place in the buffers; ranks, scalings: by
    place; a row of rank 0 has no adapter."""

    def __init__(
        self, add: Callable[..., int], places: list[int], ranks: list[int], scalings: list[float]
    ) -> None:
        self._add, self._tokens = add, len(places)
        own = [row for row, place in enumerate(places) if ranks[place]]
        rows = torch.tensor(sorted(own, key=lambda row: places[row]), dtype=torch.int64)
        self._columns = rows, torch.tensor(places), torch.tensor(ranks), torch.tensor(scalings)
        self._shared = _Adapters(*(column.data_ptr() for column in self._columns), len(own))

    def add(
        self,
        x: torch.Tensor,
        inner: torch.Tensor,
        outer: torch.Tensor,
        offsets: torch.Tensor,
        output: torch.Tensor,
    ) -> bool:
        """Add to the output, in place. inner: places x (slices * rank) x inputs; outer: places x
        outputs x rank, both with room for a larger rank; offsets: where the slices of the output
        begin and end, int32. False, and nothing done, for tensors that it is not meant for."""
        tensors = x, inner, outer, output
        if (
            len(x) != self._tokens
            or offsets.dtype is not torch.int32
            or not all(each.dtype is torch.float32 and each.is_contiguous() for each in tensors)
        ):
            return False
        of_x, of_inner = (x.data_ptr(), x.shape[1]), (inner.data_ptr(), inner.stride(0))
        of_outer = outer.data_ptr(), outer.shape[2]
        where = len(offsets) - 1, offsets.data_ptr(), output.data_ptr()
        if not self._add(ctypes.byref(self._shared), *of_x, *of_inner, *of_outer, *where):
            raise MemoryError("no memory for the products of a step's adapters")
        return True


def _compare_with_pytorch(compiled: CompiledAdapters) -> None:
    draw = torch.Generator().manual_seed(0)
    x, output = torch.randn(3, 40, generator=draw), torch.randn(3, 30, generator=draw)
    inner, outer = torch.randn(3, 8, 40, generator=draw), torch.randn(3, 30, 4, generator=draw)
    ranks, scalings, expected = [0, 2, 4], [0.0, 0.5, 2.0], output.clone()
    for row, place in ((0, 2), (2, 1)):
        for slice, (start, end) in enumerate(((0, 20), (20, 30))):
            rank = ranks[place]
            of_slice = inner[place, slice * rank : (slice + 1) * rank]
            added = outer[place, start:end, :rank] @ (of_slice @ x[row])
            expected[row, start:end] += scalings[place] * added
    offsets = torch.tensor([0, 20, 30], dtype=torch.int32)
    compiled.step([2, 0, 1], ranks, scalings).add(x, inner, outer, offsets, output)
    if not torch.allclose(output, expected, rtol=1e-4, atol=1e-4):
        raise RuntimeError(
            "compiled_kernels: add_adapters in adapters.c was compiled to something else than "
            "PyTorch's operators compute; set compiled_kernels: false, and report it"
        )
