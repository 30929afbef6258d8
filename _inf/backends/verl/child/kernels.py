"""The C functions of `kernels.c`, `products.c` and `attention.c`, for tensors in float32 on a CPU.

PyTorch's operators take microseconds to start and, for one row, next to nothing to compute; a
decoder layer has dozens of them between its matrix products. Here each chain of them is one call,
and `recorded_step` makes one of a whole step.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch

if TYPE_CHECKING:
    from _inf.backends.verl.child.recording import Recording

# Of a C function: tensors and structures stand for their addresses.
Argument: TypeAlias = "torch.Tensor | ctypes.Structure | float | None"
_LONG, _POINTER, _FLOAT = ctypes.c_long, ctypes.c_void_p, ctypes.c_float


class _ROWS(ctypes.c_long):
    """How many rows a function computes."""


# In the order of `run`'s cases.
_ARGUMENTS = {
    "normalize": (*(_POINTER,) * 4, _FLOAT, _ROWS, _LONG, _POINTER),
    "silu_and_mul": (_POINTER, _ROWS, _LONG, _POINTER),
    "rotate": (_POINTER, _LONG, _LONG, _LONG, _POINTER, _LONG, _POINTER, _ROWS),
    "attend": (_POINTER, *(_POINTER, _LONG) * 3, _POINTER, _POINTER, _POINTER),
    "multiply": (*(_POINTER,) * 3, _ROWS, *(_LONG,) * 4, _POINTER),
    "embed": (_POINTER, _POINTER, _ROWS, _LONG, _POINTER),
    "copy_rows": (_POINTER, _LONG, _ROWS, _LONG, _POINTER),
    "add_adapters": (
        *(_POINTER, _POINTER, _LONG),
        *(_POINTER, _LONG) * 2,
        _LONG,
        _POINTER,
        _POINTER,
    ),
}
_NUMBERS = list(_ARGUMENTS)
NO_MEMORY = "no memory for a step's attention or adapters"


class Step(ctypes.Structure):
    """`Step` in attention.c."""

    _fields_ = [
        *((name, _POINTER) for name in ("table", "requests", "lengths", "slots")),
        *((name, _LONG) for name in ("table_step", "rows", "heads", "kv_heads", "width")),
        *((name, _LONG) for name in ("value_width", "window")),
        *((name, _FLOAT) for name in ("scale", "cap")),
    ]


class RecordedCall(ctypes.Structure):
    """`Call` in kernels.c."""

    _fields_ = [
        ("function", _LONG), ("p", _POINTER * 9), ("n", _LONG * 6), ("each", _LONG),
        ("epsilon", _FLOAT),
    ]  # fmt: skip


class Kernels:
    """What `compiled_libraries.kernel_library` has compiled."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._functions = {name: self._library[name] for name in _ARGUMENTS}
        for name, function in self._functions.items():
            function.argtypes = _ARGUMENTS[name]
        self._library.run.argtypes = ctypes.POINTER(RecordedCall), _LONG, _LONG
        # Of a processor's vector: what the columns of a panel must be a multiple of.
        self.lanes = ctypes.c_int.in_dll(self._library, "lanes").value
        self.recording: Recording | None = None  # gets each call
        self.step = functools.partial(DecodingStep, self.call)

    def call(self, function: str, *arguments: Argument) -> int:
        if self.recording:
            of_each = zip(arguments, _ARGUMENTS[function], strict=True)
            rows = (value for value, kind in of_each if kind is _ROWS and isinstance(value, int))
            self.recording.add(function, arguments, *rows)
        return int(self._functions[function](*map(address, arguments)))

    def recorded(
        self,
        function: str,
        arguments: tuple[Argument, ...],
        each: int,
        address: Callable[[Argument], float | None],
    ) -> RecordedCall:
        """each: how many rows it has for one of the step."""
        of_kind: dict[type, list[Any]] = {_POINTER: [], _LONG: [], _FLOAT: [], _ROWS: []}
        for value, kind in zip(arguments, _ARGUMENTS[function], strict=True):
            of_kind[kind].append(address(value))
        pointers, numbers = (_POINTER * 9)(*of_kind[_POINTER]), (_LONG * 6)(*of_kind[_LONG])
        epsilon = of_kind[_FLOAT] or [0]
        return RecordedCall(_NUMBERS.index(function), pointers, numbers, each, *epsilon)

    def run(self, calls: ctypes.Array[RecordedCall], rows: int) -> None:
        if not self._library.run(calls, len(calls), rows):
            raise MemoryError(NO_MEMORY)

    def normalize(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """RMSNorm of x, or of residual + x; returns that sum too. All are contiguous. Not in place:
        a model may still use what it gave."""
        out, width = torch.empty_like(x), x.shape[-1]
        summed = x if residual is None else torch.empty_like(x)
        both = (None, None) if residual is None else (residual, summed)
        self.call("normalize", x, *both, weight, epsilon, x.numel() // width, width, out)
        return out, summed

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """x: rows x 2 widths, contiguous."""
        width = x.shape[-1] // 2
        out = x.new_empty(*x.shape[:-1], width)
        self.call("silu_and_mul", x, out.numel() // width, width, out)
        return out

    def rotate(
        self, x: torch.Tensor, width: int, angles: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Rotate the heads of this width of each position's row, in place where `in_rows` has no
        need of a copy. angles: a position's cosines, then sines."""
        rows = in_rows(x, len(positions))
        sizes = rows.stride(0), rows.shape[1] // width, width
        self.call("rotate", rows, *sizes, angles, angles.shape[-1], positions, len(rows))
        return rows.view(x.shape)

    def multiply(
        self, x: torch.Tensor, panels: torch.Tensor, width: int, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """x @ weight.T + bias. x: contiguous. panels: of a `PackedWeight`. width: of the output."""
        out = x.new_empty(*x.shape[:-1], width)
        sizes = out.numel() // width, x.shape[-1], *panels.shape[1:], width
        self.call("multiply", x, panels, bias, *sizes, out)
        return out

    def step_of(self, batch: ForwardBatch) -> DecodingStep | None:
        """None if the batch is not computed in C."""
        if not decodes_in_float32(batch):
            return None
        rows = batch.req_pool_indices, batch.seq_lens, batch.out_cache_loc
        table = batch.req_to_token_pool.req_to_token
        return self.step(batch.token_to_kv_pool.get_kv_buffer, table, *rows)


def decodes_in_float32(batch: ForwardBatch) -> bool:
    """Whether it decodes, and its cache is in float32 and in SGLang's plain form."""
    pool, table = batch.token_to_kv_pool, batch.req_to_token_pool.req_to_token
    return (
        batch.forward_mode.is_decode()
        and type(pool) is MHATokenToKVPool
        and {pool.dtype, pool.store_dtype} == {torch.float32}
        and table.dtype is torch.int32
    )


def address(value: Argument) -> float | None:
    """Of a tensor's first number, or of a structure; another value as it is."""
    if isinstance(value, torch.Tensor):
        return int(value.data_ptr())
    return ctypes.addressof(value) if isinstance(value, ctypes.Structure) else value


def in_rows(x: torch.Tensor, rows: int) -> torch.Tensor:
    """rows x numbers, those of a row one after the other; a copy only if they are not so in x."""
    x = x.reshape(rows, x.numel() // max(rows, 1))
    return x if x.stride(1) == 1 else x.contiguous()


class DecodingStep:
    """What the layers of one decoding step share: where each row's tokens are in the cache.

    call: of `Kernels`. table: requests x longest, a request's slots; the others are of each
    row: its request's number, how many tokens it has, and the slot of the newest.
    """

    def __init__(
        self,
        call: Callable[..., int],
        caches: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
        table: torch.Tensor,
        *of_each_row: torch.Tensor,
    ) -> None:
        self._call, self._caches, self._table = call, caches, table
        self._of_each_row = [column.to(torch.int64) for column in of_each_row]
        self._shared: dict[tuple[float, ...], Step] = {}

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: RadixAttention
    ) -> torch.Tensor:
        """Store the new keys and values, and return rows x (heads * width of a value). Models give
        all three in many shapes, and Gemma 3 in another order in memory."""
        heads, value_width = layer.tp_q_head_num, layer.v_head_dim
        widths = heads, layer.tp_k_head_num, layer.qk_head_dim, value_width
        # Gemma 2's cap may be None.
        alike = *widths, layer.sliding_window_size, layer.scaling, layer.logit_cap or 0.0
        shared = self._shared.get(alike) or self._share(alike)
        q, k, v = (in_rows(x, shared.rows) for x in (q, k, v))
        out = q.new_empty(shared.rows, heads * value_width)
        keys, values = self._caches(layer.layer_id)
        _, kv_heads, width, _ = widths
        there = q.shape[1], k.shape[1], v.shape[1], *keys.shape[1:], *values.shape[1:]
        sizes = heads * width, kv_heads * width, kv_heads * value_width
        if there != (*sizes, kv_heads, width, kv_heads, value_width):
            raise ValueError(
                f"layer {layer.layer_id} of this model does not fit its tensors: {there} numbers "
                f"of query, key, value and caches, in place of {sizes}; SGLang computes it wrongly"
            )
        new = q, q.stride(0), k, k.stride(0), v, v.stride(0)
        if not self._call("attend", shared, *new, keys, values, out):
            raise MemoryError(NO_MEMORY)
        return out

    def _share(self, alike: tuple[float, ...]) -> Step:
        pointers = (self._table.data_ptr(), *(column.data_ptr() for column in self._of_each_row))
        rows = len(self._of_each_row[0])
        self._shared[alike] = Step(*pointers, self._table.stride(0), rows, *alike)
        return self._shared[alike]
