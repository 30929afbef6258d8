"""Lists what a decoding step computes, so that `recorded_step` can repeat it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from _inf.backends.verl.child.kernels import Argument

if TYPE_CHECKING:
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from torch._ops import OpOverload

_aten = torch.ops.aten
_ALLOCATIONS = (_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty)
INPUTS = "input_ids", "positions", "seq_lens", "req_pool_indices", "out_cache_loc"  # of a row


def inputs_of(batch: ForwardBatch) -> tuple[torch.Tensor, ...]:
    rows = batch.input_ids, batch.positions, batch.seq_lens
    return *rows, batch.req_pool_indices, batch.out_cache_loc


class CannotRecord(Exception):
    """Names what a model computes that has no counterpart in C."""


@dataclasses.dataclass(frozen=True)
class _Call:
    function: str
    arguments: tuple[Argument, ...]
    each: int  # its rows for one row of the step


@dataclasses.dataclass(frozen=True)
class Head:
    """The call of a model's `LogitsProcessor`, which ends its step and is not recorded."""

    process: Callable[..., LogitsProcessorOutput]  # of input_ids, hidden_states, head and batch
    head: torch.nn.Module
    hidden: torch.Tensor
    result: LogitsProcessorOutput


class Recording(TorchDispatchMode):
    """Lists what is computed while it is entered. All tensors of the step live until its end, so
    that an address belongs to one of them."""

    def __init__(self, rows: int, other_inputs: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._rows = rows
        self._other_inputs = set(map(storage, other_inputs))
        self.calls: list[_Call] = []
        self.computed: dict[int, torch.UntypedStorage] = {}  # by its address
        self.head: Head | None = None

    def add(self, function: str, arguments: tuple[Argument, ...], rows: int | None = None) -> None:
        each, rest = (1, 0) if rows is None else divmod(rows, self._rows)
        if rest:
            raise CannotRecord(f"{function} of {rows} rows in a step of {self._rows}")
        tensors = (value for value in arguments if isinstance(value, torch.Tensor))
        if not self._other_inputs.isdisjoint(map(storage, tensors)):
            raise CannotRecord(f"{function} of something else than {', '.join(INPUTS)}")
        self.calls.append(_Call(function, arguments, each))

    def __torch_dispatch__(
        self,
        function: OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        with self:
            result = function.decompose(*args, **(kwargs or {}))
        if result is NotImplemented:
            result = function(*args, **(kwargs or {}))
            self._note(function, args, result)
        return result

    def _note(self, function: OpOverload, args: tuple[Any, ...], result: object) -> None:
        view = _is_view(args, result)
        if function is _aten.embedding.default and _is_plain(*args[:2]):
            table, numbers = args[:2]
            self.add("embed", (table, numbers, len(numbers), table.shape[1], result), len(numbers))
        elif function is _aten.clone.default and args[0].dim() == 2 and args[0].stride(1) == 1:
            rows, width = args[0].shape
            self.add("copy_rows", (args[0], args[0].stride(0), rows, width, result), rows)
        elif function.overloadpacket not in _ALLOCATIONS and (
            function._schema.is_mutable or not view
        ):
            raise CannotRecord(function.name())
        if isinstance(result, torch.Tensor) and not view:
            self.computed[storage(result)] = result.untyped_storage()


def storage(tensor: torch.Tensor) -> int:
    """The address of the memory that the tensor and its views share."""
    if tensor.layout is not torch.strided:
        raise CannotRecord(f"a tensor in the layout {tensor.layout}")
    return int(tensor.untyped_storage().data_ptr())


def _is_plain(table: torch.Tensor, numbers: torch.Tensor) -> bool:
    types = table.dtype is torch.float32 and numbers.dtype is torch.int64
    return types and table.is_contiguous() and numbers.dim() == 1 and numbers.is_contiguous()


def _is_view(args: Iterable[object], result: object) -> bool:
    """Whether each tensor of the result is one of the arguments', or a view of it."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    given = {storage(arg) for arg in args if isinstance(arg, torch.Tensor)}
    return all(isinstance(each, torch.Tensor) and storage(each) in given for each in results)
