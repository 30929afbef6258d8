"""Repeats decoding steps on a CPU in one call of C (`run` in kernels.c).

For few rows, a good part of a step is the Python of the model's layers. The first decoding step is
recorded: the model's own code runs once, while a list is made of the C functions that it calls and
of the PyTorch operators between them. Later steps, of as many rows or fewer, make the calls on that
list. A model that uses an operator without a counterpart in C runs as before.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from torch.utils._python_dispatch import _disable_current_modes

from _inf.backends.verl.child import packed_linear
from _inf.backends.verl.child.kernels import (
    Argument,
    Kernels,
    RecordedCall,
    Step,
    address,
    decodes_in_float32,
)
from _inf.backends.verl.child.recording import (
    INPUTS,
    CannotRecord,
    Head,
    Recording,
    inputs_of,
    storage,
)
from _inf.backends.verl.patch_table import Process, Replace, Wrap

if TYPE_CHECKING:
    from sglang.srt.layers.logits_processor import LogitsProcessor, LogitsProcessorOutput
    from sglang.srt.model_executor.model_runner import ModelRunner

_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.INFO)  # a line for each recording, in the engine's log
_FEWEST = 8  # rows that a recording has room for
_COMPARED = 2  # steps after a recording


class RecordedStep:
    """The calls of a recording, for up to `capacity` rows, with memory for what they compute.

    inputs: for each of `INPUTS` the tensor of `capacity` numbers that the calls read.
    """

    def __init__(
        self, kernels: Kernels, recording: Recording, inputs: list[torch.Tensor], rows: int
    ) -> None:
        self._kernels, self._inputs, self._head = kernels, inputs, _head_of(recording)
        self.capacity = len(inputs[0])
        self._kept_alive = recording.calls  # their weights and caches
        places = _places(recording, self._head.hidden)
        sizes: dict[int, int] = {}  # of a place: bytes for a row
        for start, place in places.items():
            needed = recording.computed[start].nbytes() // rows
            sizes[place] = max(sizes.get(place, 0), needed)
        memory = {
            place: torch.empty(size * self.capacity, dtype=torch.uint8)
            for place, size in sizes.items()
        }

        def moved(value: Argument) -> float | None:
            if not isinstance(value, torch.Tensor) or storage(value) not in places:
                return address(value)
            start = storage(value)
            return int(memory[places[start]].data_ptr() + value.data_ptr() - start)

        calls = [kernels.recorded(c.function, c.arguments, c.each, moved) for c in recording.calls]
        self._calls = (RecordedCall * len(calls))(*calls)
        arguments = (value for call in recording.calls for value in call.arguments)
        self._attention = {id(step): step for step in arguments if isinstance(step, Step)}
        self._memory, width = memory, self._head.hidden.shape[1]
        place = memory[places[storage(self._head.hidden)]].view(self._head.hidden.dtype)
        self._hidden = place[: self.capacity * width].view(self.capacity, width)

    def repeat(self, batch: ForwardBatch) -> torch.Tensor:
        """Return the last layer's hidden states of each row."""
        rows = len(batch.input_ids)
        for column, given in zip(self._inputs, inputs_of(batch), strict=True):
            column[:rows] = given
        for step in self._attention.values():
            step.rows = rows
        self._kernels.run(self._calls, rows)
        return self._hidden[:rows].clone()

    def logits(self, batch: ForwardBatch) -> LogitsProcessorOutput:
        """Return what the model's `forward` does."""
        return self._head.process(batch.input_ids, self.repeat(batch), self._head.head, batch)


def _head_of(recording: Recording) -> Head:
    head = recording.head
    if head is None:
        raise CannotRecord("its logits without SGLang's LogitsProcessor")
    whole = head.hidden.is_contiguous() and head.hidden.storage_offset() == 0
    if not whole or storage(head.hidden) not in recording.computed:
        raise CannotRecord("hidden states that are a part of something else")
    return head


def _places(recording: Recording, hidden: torch.Tensor) -> dict[int, int]:
    """Return a place in memory for each storage that is computed, by its address. Two share a place
    if the last use of one is before the first use of the other."""
    uses: dict[int, list[int]] = {}
    for index, call in enumerate(recording.calls):
        for value in call.arguments:
            if isinstance(value, torch.Tensor) and storage(value) in recording.computed:
                uses.setdefault(storage(value), []).append(index)
    uses[storage(hidden)].append(len(recording.calls))
    places: dict[int, int] = {}
    ends: list[int] = []  # of a place: its last use
    for start, indices in uses.items():  # in the order of their first use
        free = (place for place, end in enumerate(ends) if end < indices[0])
        place = next(free, len(ends))
        ends[place : place + 1] = [indices[-1]]
        places[start] = place
    return places


class RecordedSteps:
    """Runs the decoding steps of a model; SGLang asks it as it asks a runner of CUDA graphs.

    A recorded step computes bit by bit what the model's own code does. The first steps after a
    recording are computed both ways, so that a model whose code depends on something else than the
    inputs is found out.
    """

    def __init__(self, kernels: Kernels, runner: ModelRunner) -> None:
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

    def replay(self, batch: ForwardBatch, **named: object) -> LogitsProcessorOutput:
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

    def _record(self, batch: ForwardBatch, named: dict[str, object]) -> RecordedStep:
        """Record a step of these rows; of one row twice, since a step from one row to the next is
        not known of one alone."""
        rows = max(2, len(batch.input_ids))
        capacity = max(_FEWEST, 1 << (rows - 1).bit_length())
        inputs = [torch.zeros(capacity, dtype=torch.int64) for _ in INPUTS]
        recorded = copy.copy(batch)
        for name, column, given in zip(INPUTS, inputs, inputs_of(batch), strict=True):
            column[:rows] = given
            setattr(recorded, name, column[:rows])
        own = set(map(storage, inputs))
        others = (value for value in vars(recorded).values() if isinstance(value, torch.Tensor))
        recording = Recording(rows, (value for value in others if storage(value) not in own))
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
    forward: Callable[..., LogitsProcessorOutput],
    processor: LogitsProcessor,
    input_ids: torch.Tensor,
    hidden_states: torch.Tensor,
    lm_head: torch.nn.Module,
    batch: ForwardBatch,
    *others: object,
    **named: object,
) -> LogitsProcessorOutput:
    arguments = input_ids, hidden_states, lm_head, batch, *others
    if (recording := kernels.recording) is None:
        return forward(processor, *arguments, **named)
    if any(other is not None for other in (*others, *named.values())):
        raise CannotRecord("more than hidden states for SGLang's LogitsProcessor")
    kernels.recording = None
    with _disable_current_modes():
        result = forward(processor, *arguments)
    recording.head = Head(processor, lm_head, hidden_states, result)
    return result


def record_steps(
    kernels: Kernels, init: Callable[[ModelRunner], None], runner: ModelRunner
) -> None:
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
