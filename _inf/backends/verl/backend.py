"""Implements `Backend` with verl's rollout: a batch is one `DataProto` into
`SGLangRollout.generate_sequences`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from concurrent.futures import Future

import numpy
import torch

from _inf.backends.base import Backend
from _inf.backends.verl.calls import Call, current_call
from _inf.backends.verl.corrected_rollout import CorrectedRollout, DataProto
from _inf.backends.verl.sglang_format import sglang_params, whole_row
from _inf.request.prompts import object_array
from _inf.runtime.calls import CancelToken
from _inf.runtime.host import Host
from _inf.types import ModelInfo, Put, Report, Request, RequestOutput, Rows


class VerlBackend(Backend):
    """verl's `SGLangRollout` with SGLang, in this process and a child process."""

    name = "sglang"

    def __init__(
        self, rollout: CorrectedRollout, host: Host, model: ModelInfo, features: Collection[str]
    ) -> None:
        super().__init__(host, model, features)
        self.rollout = rollout

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
