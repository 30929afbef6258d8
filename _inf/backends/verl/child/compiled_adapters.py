"""The C function of `adapters.c`: what LoRA adapters add to a layer's output.

A layer has four of these sums, and with PyTorch's operators each is three to a dozen calls that
compute next to nothing. A recorded step has them too: rows may have other adapters at each step.
"""

from __future__ import annotations

import ctypes

import torch

from _inf.backends.verl.child.kernels import NO_MEMORY, Kernels

_POINTER = ctypes.c_void_p
_COLUMNS = ("rows", "places", "ranks", "scalings")


class _Adapters(ctypes.Structure):
    """`Adapters` in adapters.c."""

    _fields_ = [*((name, _POINTER) for name in _COLUMNS), ("count", ctypes.c_long)]


class CompiledAdapters:
    """The adapters of a step's rows."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._tokens = 0
        self._columns: tuple[torch.Tensor, ...] = ()
        self._shared = _Adapters()  # always the same one, because recorded steps read it

    def begin(self, places: list[int], ranks: list[int], scalings: list[float]) -> None:
        """Begin a step. places: each row's place in the buffers; ranks, scalings: by place; a row
        of rank 0 has no adapter."""
        own = [row for row, place in enumerate(places) if ranks[place]]
        rows = torch.tensor(sorted(own, key=lambda row: places[row]), dtype=torch.int64)
        scales = torch.tensor(scalings, dtype=torch.float32)
        self._tokens = len(places)
        self._columns = rows, torch.tensor(places), torch.tensor(ranks), scales
        for name, column in zip(_COLUMNS, self._columns, strict=True):
            setattr(self._shared, name, column.data_ptr())
        self._shared.count = len(own)

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
        all_rows = len(x) == self._tokens or self._kernels.recording is not None
        if (
            not all_rows
            or offsets.dtype is not torch.int32
            or not all(each.dtype is torch.float32 and each.is_contiguous() for each in tensors)
        ):
            return False
        inputs = x, x.shape[1], inner, inner.stride(0), outer, outer.shape[2], len(offsets) - 1
        if not self._kernels.call("add_adapters", self._shared, *inputs, offsets, output):
            raise MemoryError(NO_MEMORY)
        return True
