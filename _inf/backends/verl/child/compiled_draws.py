"""The C functions of `draws.c`: filters, seeds and grammars' masks in float32 on a CPU.

They give what PyTorch's operators give, in a small part of the time; what is not in float32 on a
CPU goes to the functions of `_inf/backends/draws.py`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch

from _inf.backends import draws

# The arguments of each function begin with a matrix: its address, rows and columns.
_MATRIX = (ctypes.c_void_p, ctypes.c_long, ctypes.c_long)


class CompiledDraws:
    """What `compiled_libraries.kernel_library` has compiled."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._keep, self._draw = library.keep_likely, library.draw_by_keys
        self._apply_bits = library.apply_bits
        self._keep.argtypes = (*_MATRIX, *(ctypes.c_void_p,) * 4)
        self._draw.argtypes = (*_MATRIX, *(ctypes.c_void_p,) * 2)
        self._apply_bits.argtypes = (*_MATRIX, ctypes.c_void_p, ctypes.c_long)

    def filtered(
        self, probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
    ) -> torch.Tensor:
        if not fits(probs):
            return draws.filtered(probs, top_k, top_p, min_p)
        filters = top_k.int().contiguous(), top_p.contiguous(), min_p.contiguous()
        kept = torch.empty_like(probs)
        columns = (column.data_ptr() for column in filters)
        if not self._keep(probs.data_ptr(), *probs.shape, *columns, kept.data_ptr()):
            raise MemoryError("no memory for the filters of a step's probabilities")
        return kept

    def draw_by_seed(
        self, probs: torch.Tensor, seeds: Sequence[int | None], positions: Sequence[int]
    ) -> torch.Tensor:
        if not fits(probs):
            return draws.draw_by_seed(probs, seeds, positions)
        keys = draws.keys_of(seeds, positions)
        tokens = torch.empty(len(probs), dtype=torch.int64)
        if not self._draw(probs.data_ptr(), *probs.shape, keys.data_ptr(), tokens.data_ptr()):
            raise MemoryError("no memory for the draws of a step's seeds")
        for row in (tokens < 0).nonzero()[:, 0].tolist():
            tokens[row] = draws.draw_by_seed(
                probs[row : row + 1], seeds[row : row + 1], positions[row : row + 1]
            )
        return tokens

    def apply_bits(self, logits: torch.Tensor, mask: torch.Tensor) -> None:
        """Set the logits of tokens whose bit is 0 to -inf, in place. logits: `fits`; mask:
        rows x words of 32 bits, contiguous."""
        self._apply_bits(logits.data_ptr(), *logits.shape, mask.data_ptr(), mask.shape[1])


def fits(numbers: torch.Tensor) -> bool:
    return numbers.is_cpu and numbers.dtype is torch.float32 and numbers.is_contiguous()
