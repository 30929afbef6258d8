"""verl's `SGLangRollout`, subclassed where it loses the truth.

In: a `DataProto` with left-padded `input_ids`, `attention_mask`, `position_ids` (rows x prompt
length), and per row, in `non_tensor_batch`, `raw_prompt_ids` and `sampling_params` (SGLang's
names). Out: verl's own `DataProto` with `attention_mask` and `rollout_log_probs` corrected,
`response_mask` added, and in `non_tensor_batch["rows"]` what the engine really answered, a `Row`
each.

What it corrects is in verl 0.6.1, `workers/rollout/sglang_rollout/sglang_rollout.py`. It knows
nothing of text.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from verl import DataProto
from verl.workers.config import HFModelConfig, RolloutConfig

from _inf import quiet
from _inf.batch import column
from _inf.upstream import seams
from _inf.upstream.engine import Call, Engine, Row, current_call, sglang_rollout
from _inf.upstream.host import Host, Ticket, current_host

__all__ = ["DataProto", "HFModelConfig", "Rollout", "rollout_config"]

seams.mend()


class Rollout(sglang_rollout.SGLangRollout):
    """verl's rollout, callable from any thread, telling the truth about lengths and masks."""

    def __init__(
        self,
        config: RolloutConfig,
        model_config: HFModelConfig,
        *,
        host: Host,
        server_arguments: dict[str, Any],
    ) -> None:
        self.host = host
        self._server_arguments = server_arguments
        current_host.set(host)
        super().__init__(config, model_config, device_mesh=None)

    def _init_distributed_env(self, *args: Any, **kwargs: Any) -> None:
        """Gloo greets on stdout, once a group."""
        with quiet.descriptors():
            super()._init_distributed_env(*args, **kwargs)

    def _init_inference_engine(self, *args: Any, **kwargs: Any) -> None:
        """verl calls the class by its module's global name: the seam for ours."""
        upstream = sglang_rollout.AsyncEngine
        sglang_rollout.AsyncEngine = functools.partial(
            Engine, self._server_arguments, self.config.free_cache_engine
        )
        try:
            super()._init_inference_engine(*args, **kwargs)
        finally:
            sglang_rollout.AsyncEngine = upstream

    def generate_sequences(
        self,
        prompts: DataProto,
        *,
        ticket: Ticket | None = None,
        report: Callable[[int, int], None] | None = None,
        **kwargs: Any,
    ) -> DataProto:
        """verl's call, from any thread. `ticket` can end it early; `report` is told, on the
        engine's thread, the rows finished and the tokens generated so far."""
        params = prompts.non_tensor_batch.pop("sampling_params", None)
        per_row = None if params is None else list(params)
        call = Call(self.host, ticket or Ticket(), per_row, report)
        token = current_call.set(call)
        try:
            output = super().generate_sequences(prompts, **kwargs)
        finally:
            current_call.reset(token)
        return _corrected(output, call.rows) if call.rows else output

    def stream(
        self, ids: list[int], params: dict[str, Any], put: Callable[[Row], None], ticket: Ticket
    ) -> concurrent.futures.Future[None]:
        """One request, `put` a `Row` at a time on the engine's thread; the future ends with it."""
        return self.host.submit(self._engine.stream(ids, params, put), ticket)

    def score(self, sequences: Sequence[tuple[list[int], int]], ticket: Ticket) -> list[Row]:
        """For each `(ids, start)` a row whose `prompt_logprobs` begin before `ids[start]`."""

        async def all_of_them() -> list[Row]:
            return list(await asyncio.gather(*(self._engine.score(*each) for each in sequences)))

        return self.host.run(all_of_them(), ticket)


def _corrected(output: DataProto, rows: list[Row]) -> DataProto:
    """verl looks for the first EOS to tell answer from padding (`get_response_mask`), which counts
    padding as answer where a row was cut by length or stopped by another id, and it pads log probs
    with the pad token's id. The engine's own lengths are right."""
    batch = output.batch
    width = batch["responses"].shape[1]
    lengths = torch.tensor([len(row.token_ids) for row in rows])
    mask = (torch.arange(width)[None, :] < lengths[:, None]).to(batch["attention_mask"].dtype)
    batch["response_mask"] = mask
    batch["attention_mask"] = torch.cat([batch["attention_mask"][:, :-width], mask], dim=1)
    if "rollout_log_probs" in batch:
        batch["rollout_log_probs"] = batch["rollout_log_probs"] * mask
    output.non_tensor_batch["rows"] = column(rows)
    return output


def rollout_config(settings: dict[str, Any]) -> RolloutConfig:
    """verl's typed config from plain values; its nested parts are dataclasses too."""
    parts = vars(RolloutConfig(name="sglang"))
    nested = {
        name: type(parts[name])(**value)
        for name, value in settings.items()
        if dataclasses.is_dataclass(parts[name])
    }
    return RolloutConfig(**(settings | nested))
