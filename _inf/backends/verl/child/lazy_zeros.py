"""The KV cache of a CPU in memory that the kernel zeroes page by page, when it is first used."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from _inf.runtime.free_memory import reserve


def create_lazily(folder: Path, create: Callable[..., None], pool: Any) -> None:
    """folder: the engine's."""
    if torch.device(pool.device).type != "cpu":
        return create(pool)
    with _LazyZeros() as lazy:
        create(pool)
    reserve(folder, lazy.reserved)  # another engine's start would take it for free memory


class _LazyZeros(TorchFunctionMode):
    """Within it, `torch.zeros(shape, dtype=..., device=...)` touches no memory; reserved: how many
    bytes so far."""

    def __init__(self) -> None:
        super().__init__()
        self.reserved = 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is not torch.zeros:
            return function(*args, **(kwargs or {}))
        [shape], dtype = args, (kwargs or {})["dtype"]
        count = torch.Size(shape).numel()
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        self.reserved += count * dtype.itemsize
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = mmap.mmap(-1, count * dtype.itemsize, flags=private)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(pages, dtype=dtype).view(shape)
