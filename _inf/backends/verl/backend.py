"""Implements `Backend` with verl's rollout: a batch is one `DataProto` into
`SGLangRollout.generate_sequences`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy
import torch

from _inf.backends import new_weights
from _inf.backends.base import Adapting, Backend, Scoring, Sleeping, Updating
from _inf.backends.loaded_adapters import LoadedAdapters
from _inf.backends.pausing import PausingRows
from _inf.backends.verl import SGLANG_MODE, changes
from _inf.backends.verl.calls import Call, current_call
from _inf.backends.verl.corrected_rollout import CorrectedRollout, DataProto
from _inf.backends.verl.server_arguments import CAPTURE_EXPERTS
from _inf.backends.verl.sglang_format import sglang_params, whole_row
from _inf.errors import ConfigError, InferenceError
from _inf.request.prompts import object_array
from _inf.runtime.calls import IN_A_CALL, CancelToken
from _inf.runtime.host import Host
from _inf.types import ModelInfo, Put, Report, Request, RequestOutput, Rows, Scored, SleepResult


class VerlBackend(PausingRows, Scoring, Updating, Sleeping, Backend):
    """verl's `SGLangRollout` with SGLang, in this process and a child process."""

    name = "sglang"

    def __init__(self, rollout: CorrectedRollout, host: Host, model: ModelInfo) -> None:
        captures = rollout.server_arguments.get(CAPTURE_EXPERTS)
        lacks = () if captures else {"routed_experts"}
        super().__init__(host, model, SGLANG_MODE.supports.difference(lacks))
        self.rollout = rollout

    @property
    def weight_version(self) -> int:  # type: ignore[override]
        return self.rollout.weight_version

    @property
    def on_cpu(self) -> bool:  # type: ignore[override]
        return self.rollout.on_cpu

    def generate(
        self, requests: Sequence[Request], cancel: CancelToken, report: Report | None
    ) -> list[RequestOutput]:
        call = Call(self.host, cancel, report=report, requests=requests)
        self.rollout.run(data_proto(requests, self.model), call)
        return [*map(whole_row, requests, call.rows)]

    @contextlib.asynccontextmanager
    async def in_call(self, cancel: CancelToken) -> AsyncIterator[None]:
        current_call.set(Call(self.host, cancel))
        yield
        await self.rollout.engine().empty_after_call()

    async def turn(self, request: Request, put: Put | None = None) -> RequestOutput:
        return await self.rollout.engine().turn(request, put)

    def await_rows(self, rows: Rows, cancel: CancelToken) -> list[RequestOutput]:
        await_rows = super().await_rows
        return self.rollout.ranks_of_call().shared("rows", lambda: await_rows(rows, cancel))

    def stream(self, request: Request, put: Put, cancel: CancelToken) -> Future[None]:
        self.rollout.engine()  # refused on a rank that has none
        return super().stream(request, put, cancel)

    def score(
        self,
        sequences: Sequence[Scored],
        cancel: CancelToken,
        likeliest: int = 1,
        adapter: str | None = None,
    ) -> list[RequestOutput]:
        scored = self.rollout.engine().score(sequences, Call(self.host, cancel), likeliest, adapter)
        return self.host.run(scored, cancel)

    async def freeze(self) -> None:
        await changes.freeze(self.rollout.engine())

    async def thaw(self) -> None:
        await changes.thaw(self.rollout.engine())

    def ending(self) -> contextlib.AbstractContextManager[None]:
        return changes.ending(self.rollout.engine())

    def pause(self, mode: str) -> None:
        self._check_one_rank("pause()")
        super().pause(mode)

    def _check_one_rank(self, what: str) -> None:
        if (size := self.rollout.ranks.size) > 1:
            raise ConfigError(
                f"{what} needs rollout.tensor_model_parallel_size 1, and it is {size}: while the "
                "ranks of a group are in a call, they take no other one."
            )

    def reset_prefix_cache(self) -> None:
        self._check_one_rank("reset_prefix_cache()")
        self.change(self.rollout.engine().prefix_cache.empty(), keep=True)

    def update_weights(
        self, new: Any, version: int | None, *, keep: bool = False, recompute: bool = False
    ) -> int:
        ranks, begun = self.rollout.ranks, threading.Lock()
        if keep:
            self._check_one_rank("update_weights(running='keep')")
        if ranks.size > 1 and current_call.get(None) is not None:
            raise InferenceError(IN_A_CALL)  # which has the ranks' turn
        with ranks.turn:
            tensors = ranks.agreed(lambda: self._checked(new))
            sending = changes.send_weights(
                self.rollout, tensors, version, begun, recompute=recompute
            )
            try:
                return self.change(sending, keep=keep)
            except BaseException as failure:
                if begun.acquire(blocking=False):  # the other ranks wait for it
                    ranks.agree(failure)
                raise

    def _checked(self, new: Any) -> new_weights.NamedTensors:
        self.check_alive()
        return new_weights.checked(new, self.rollout.expected_weights)

    def sleep(self) -> SleepResult:
        alone, rollout = self.host.run_alone, self.rollout
        return rollout.ranks_of_call().shared("sleep", lambda: alone(changes.sleep(rollout)))

    def wake_up(self) -> None:
        alone, rollout = self.host.run_alone, self.rollout
        rollout.ranks_of_call().shared("wake_up", lambda: alone(changes.wake_up(rollout)))


class AdaptingVerlBackend(VerlBackend, Adapting):
    """One whose engine was started with `enable_lora`."""

    @property
    def loaded(self) -> LoadedAdapters:  # type: ignore[override]
        assert self.rollout.adapters is not None
        return self.rollout.adapters


def data_proto(requests: Sequence[Request], model: ModelInfo) -> DataProto:
    """Return the batch that verl's rollout takes, with one row per request.

    `input_ids`, `attention_mask`, `position_ids`: int64, rows x longest prompt, left-padded; in
    `non_tensor_batch` the unpadded `raw_prompt_ids` (without them verl strips real tokens that
    equal the pad token) and `sampling_params`, one dict per row with SGLang's names.
    """
    rows = [request.known_ids for request in requests]
    width = max(map(len, rows))
    pad = model.tokenizer.pad_token_id
    # Not torch.tensor, which takes four times as long.
    ids = torch.from_numpy(numpy.array([[pad] * (width - len(row)) + row for row in rows]))
    lengths = torch.tensor([len(row) for row in rows])
    mask = (torch.arange(width)[None, :] >= width - lengths[:, None]).long()
    return DataProto.from_dict(
        tensors={
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0),
        },
        non_tensors={
            "raw_prompt_ids": object_array(rows),
            "sampling_params": object_array([*map(sglang_params, requests)]),
        },
        meta_info={"eos_token_id": sorted(model.eos_token_ids)},
    )
