"""Repeats decoding steps on a CPU in one call of C (`run` in kernels.c).

For few rows, a good part of a step is the Python of the model's layers. The first decoding step is
recorded: the model's own code runs once, while a list is made of the C functions that it calls and
of the PyTorch operators between them. Later steps, of as many rows or fewer, make the calls on that
list. A model that uses an operator without a counterpart in C runs as before.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from _inf.backends.verl.child import packed_linear
from _inf.backends.verl.child.kernels import (
    Kernels,
    RecordedCall,
    Step,
    address,
    decodes_in_float32,
)
from _inf.backends.verl.patch_table import Process, Replace, Wrap

_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.INFO)  # a line for each recording, in the engine's log
_aten: Any = torch.ops.aten
_ALLOCATIONS = (_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty)
_INPUTS = ("input_ids", "positions", "seq_lens", "req_pool_indices", "out_cache_loc")  # of a row
_FEWEST = 8  # rows that a recording has room for
_COMPARED = 2  # steps after a recording


class CannotRecord(Exception):
    """Names what a model computes that has no counterpart in C."""


@dataclasses.dataclass(frozen=True)
class _Call:
    function: str
    arguments: tuple[Any, ...]
    each: int  # its rows for one row of the step


@dataclasses.dataclass(frozen=True)
class _Head:
    """The call of a model's `LogitsProcessor`, which ends its step and is not recorded."""

    process: Callable[..., Any]  # of input_ids, hidden_states, head and batch
    head: torch.nn.Module
    hidden: torch.Tensor
    result: Any


class Recording(TorchDispatchMode):
    """Lists what is computed while it is entered. All tensors of the step live until its end, so
    that an address belongs to one of them."""

    def __init__(self, rows: int, other_inputs: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._rows = rows
        self._other_inputs = set(map(_storage, other_inputs))
        self.calls: list[_Call] = []
        self.computed: dict[int, torch.UntypedStorage] = {}  # by its address
        self.head: _Head | None = None

    def add(self, function: str, arguments: tuple[Any, ...], rows: int | None = None) -> None:
        each, rest = (1, 0) if rows is None else divmod(rows, self._rows)
        if rest:
            raise CannotRecord(f"{function} of {rows} rows in a step of {self._rows}")
        tensors = (value for value in arguments if isinstance(value, torch.Tensor))
        if not self._other_inputs.isdisjoint(map(_storage, tensors)):
            raise CannotRecord(f"{function} of something else than {', '.join(_INPUTS)}")
        self.calls.append(_Call(function, arguments, each))

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with self:
            result = function.decompose(*args, **(kwargs or {}))
        if result is NotImplemented:
            result = function(*args, **(kwargs or {}))
            self._note(function, args, result)
        return result

    def _note(self, function: Any, args: Any, result: Any) -> None:
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
            self.computed[_storage(result)] = result.untyped_storage()


def _storage(tensor: torch.Tensor) -> int:
    """The address of the memory that the tensor and its views share."""
    if tensor.layout is not torch.strided:
        raise CannotRecord(f"a tensor in the layout {tensor.layout}")
    return int(tensor.untyped_storage().data_ptr())


def _is_plain(table: torch.Tensor, numbers: torch.Tensor) -> bool:
    types = table.dtype is torch.float32 and numbers.dtype is torch.int64
    return types and table.is_contiguous() and numbers.dim() == 1 and numbers.is_contiguous()


def _is_view(args: Any, result: Any) -> bool:
    """Whether each tensor of the result is one of the arguments', or a view of it."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    given = {_storage(arg) for arg in args if isinstance(arg, torch.Tensor)}
    return all(isinstance(each, torch.Tensor) and _storage(each) in given for each in results)


class RecordedStep:
    """The calls of a recording, for up to `capacity` rows, with memory for what they compute.

    inputs: for each of `_INPUTS` the tensor of `capacity` numbers that the calls read.
    """

    def __init__(
        self, kernels: Kernels, recording: Recording, inputs: dict[str, torch.Tensor], rows: int
    ) -> None:
        self._kernels, self._inputs, self._head = kernels, inputs, _head_of(recording)
        self.capacity = len(inputs["input_ids"])
        self._kept_alive = recording.calls  # their weights and caches
        places = _places(recording, self._head.hidden)
        sizes: dict[int, int] = {}  # of a place: bytes for a row
        for storage, place in places.items():
            needed = recording.computed[storage].nbytes() // rows
            sizes[place] = max(sizes.get(place, 0), needed)
        memory = {
            place: torch.empty(size * self.capacity, dtype=torch.uint8)
            for place, size in sizes.items()
        }

        def moved(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or _storage(value) not in places:
                return address(value)
            start = _storage(value)
            return memory[places[start]].data_ptr() + address(value) - start

        calls = [kernels.recorded(c.function, c.arguments, c.each, moved) for c in recording.calls]
        self._calls = (RecordedCall * len(calls))(*calls)
        arguments = (value for call in recording.calls for value in call.arguments)
        self._attention = {id(step): step for step in arguments if isinstance(step, Step)}
        self._memory, width = memory, self._head.hidden.shape[1]
        place = memory[places[_storage(self._head.hidden)]].view(self._head.hidden.dtype)
        self._hidden = place[: self.capacity * width].view(self.capacity, width)

    def repeat(self, batch: ForwardBatch) -> torch.Tensor:
        """Return the last layer's hidden states of each row."""
        rows = len(batch.input_ids)
        for name, column in self._inputs.items():
            column[:rows] = getattr(batch, name)
        for step in self._attention.values():
            step.rows = rows
        self._kernels.run(self._calls, rows)
        return self._hidden[:rows].clone()

    def logits(self, batch: ForwardBatch) -> Any:
        """Return what the model's `forward` does."""
        return self._head.process(batch.input_ids, self.repeat(batch), self._head.head, batch)


def _head_of(recording: Recording) -> _Head:
    head = recording.head
    if head is None:
        raise CannotRecord("its logits without SGLang's LogitsProcessor")
    whole = head.hidden.is_contiguous() and head.hidden.storage_offset() == 0
    if not whole or _storage(head.hidden) not in recording.computed:
        raise CannotRecord("hidden states that are a part of something else")
    return head


def _places(recording: Recording, hidden: torch.Tensor) -> dict[int, int]:
    """Return a place in memory for each storage that is computed, by its address. Two share a place
    if the last use of one is before the first use of the other."""
    uses: dict[int, list[int]] = {}
    for index, call in enumerate(recording.calls):
        for value in call.arguments:
            if isinstance(value, torch.Tensor) and _storage(value) in recording.computed:
                uses.setdefault(_storage(value), []).append(index)
    uses[_storage(hidden)].append(len(recording.calls))
    places: dict[int, int] = {}
    ends: list[int] = []  # of a place: its last use
    for storage, indices in uses.items():  # in the order of their first use
        free = (place for place, end in enumerate(ends) if end < indices[0])
        place = next(free, len(ends))
        ends[place : place + 1] = [indices[-1]]
        places[storage] = place
    return places


class RecordedSteps:
    """Runs the decoding steps of a model; SGLang asks it as it asks a runner of CUDA graphs.

    A recorded step computes bit by bit what the model's own code does. The first steps after a
    recording are computed both ways, so that a model whose code depends on something else than the
    inputs is found out.
    """

    def __init__(self, kernels: Kernels, runner: Any) -> None:
        self._kernels, self._runner = kernels, runner
        self._step: RecordedStep | None = None
        self._made_of: tuple[int, ...] = ()
        self._to_compare = 0  # steps
        self._possible = True

    def can_run(self, batch: ForwardBatch) -> bool:
        return (
            self._possible
            and batch.input_embeds is None
            and len(batch.input_ids) <= packed_linear.FEW_ROWS
            and decodes_in_float32(batch)
        )

    def replay(self, batch: ForwardBatch, **named: Any) -> Any:
        pools = batch.token_to_kv_pool, batch.req_to_token_pool
        made_of = packed_linear.unpackings, *map(id, pools)
        step = self._step
        try:
            if step is None or made_of != self._made_of or len(batch.input_ids) > step.capacity:
                self._step = step = self._record(batch, named)
                self._made_of, self._to_compare = made_of, _COMPARED
            repeated = step.logits(batch)
            if self._to_compare:
                computed = self._runner.forward_decode(batch, **named)
                both = repeated.next_token_logits, computed.next_token_logits
                if any(logits.isnan().any() for logits in both):
                    return computed  # NaN is never equal: a later step is compared
                if not torch.equal(*both):
                    raise CannotRecord("something that changes from step to step")
                self._to_compare -= 1
            return repeated
        except CannotRecord as obstacle:
            _LOG.info("Decoding steps are not recorded: the model computes %s", obstacle)
            self._possible, self._step = False, None
            return self._runner.forward_decode(batch, **named)

    def _record(self, batch: ForwardBatch, named: dict[str, Any]) -> RecordedStep:
        """Record a step of these rows; of one row twice, since a step from one row to the next is
        not known of one alone."""
        rows = max(2, len(batch.input_ids))
        capacity = max(_FEWEST, 1 << (rows - 1).bit_length())
        inputs = {name: torch.zeros(capacity, dtype=torch.int64) for name in _INPUTS}
        recorded = copy.copy(batch)
        for name, column in inputs.items():
            column[:rows] = getattr(batch, name)
            setattr(recorded, name, column[:rows])
        own = set(map(_storage, inputs.values()))
        others = (value for value in vars(recorded).values() if isinstance(value, torch.Tensor))
        recording = Recording(rows, (value for value in others if _storage(value) not in own))
        self._kernels.recording = recording
        try:
            with recording:
                result = self._runner.forward_decode(recorded, **named)
        finally:
            self._kernels.recording = None
        if recording.head is None or result is not recording.head.result:
            raise CannotRecord("something after SGLang's LogitsProcessor")
        _LOG.info("Decoding steps of up to %d rows are recorded.", capacity)
        return RecordedStep(self._kernels, recording, inputs, rows)


def at_the_head(
    kernels: Kernels,
    forward: Callable[..., Any],
    processor: Any,
    input_ids: torch.Tensor,
    hidden_states: torch.Tensor,
    lm_head: torch.nn.Module,
    batch: Any,
    *others: Any,
    **named: Any,
) -> Any:
    arguments = input_ids, hidden_states, lm_head, batch, *others
    if (recording := kernels.recording) is None:
        return forward(processor, *arguments, **named)
    if any(other is not None for other in (*others, *named.values())):
        raise CannotRecord("more than hidden states for SGLang's LogitsProcessor")
    kernels.recording = None
    with _disable_current_modes():
        result = forward(processor, *arguments)
    recording.head = _Head(processor, lm_head, hidden_states, result)
    return result


def record_steps(kernels: Kernels, init: Callable[[Any], None], runner: Any) -> None:
    init(runner)
    if runner.is_generation:
        runner.graph_runner = RecordedSteps(kernels, runner)


def patches(process: Process) -> list[Replace]:
    if (kernels := process.kernels) is None:
        return []
    # fmt: off
    return [
        Wrap("sglang.srt.model_executor.model_runner:ModelRunner.init_device_graphs",
             functools.partial(record_steps, kernels),
             "its graphs of a CPU need torch.compile and AMX"),
        Wrap("sglang.srt.layers.logits_processor:LogitsProcessor.forward",
             functools.partial(at_the_head, kernels),
             "the other half of the row above: here a recording ends"),
    ]
    # fmt: on
