"""A subclass of verl's `SGLangRollout` that corrects its lengths, masks and log probs (verl 0.6.1,
`workers/rollout/sglang_rollout/sglang_rollout.py`)."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from verl import DataProto
from verl.utils.device import get_visible_devices_keyword
from verl.workers.config import HFModelConfig, RolloutConfig

from _inf.backends.verl.caller_patches import PATCHES
from _inf.backends.verl.calls import Call, current_call
from _inf.backends.verl.engine import Engine, build_engine, sglang_rollout
from _inf.backends.verl.patch_table import apply
from _inf.backends.verl.raw_batches import check_one_turn, corrected
from _inf.backends.verl.tensor_parallel import ALONE, Ranks
from _inf.errors import InferenceError
from _inf.runtime import quiet
from _inf.runtime.calls import CancelToken
from _inf.runtime.host import Host, current_host
from _inf.runtime.processes import Worker

if TYPE_CHECKING:
    from _inf.backends.new_weights import ExpectedWeights

__all__ = ["DataProto", "HFModelConfig", "RolloutConfig", "CorrectedRollout"]

MESH = ("dp", "infer_tp", "infer_pp")
GREEDY = {"temperature": 0, "top_p": 1, "top_k": -1}  # as verl writes it

apply(PATCHES)


class CorrectedRollout(sglang_rollout.SGLangRollout):
    """verl's rollout, callable from any thread, with correct lengths and masks."""

    def __init__(
        self,
        config: RolloutConfig,
        model_config: HFModelConfig,
        host: Host,
        scheduler: Worker,
        server_arguments: dict[str, Any],
    ) -> None:
        self.host = host
        self.weight_version = 0
        self._scheduler, self.server_arguments = scheduler, server_arguments
        current_host.set(host)
        super().__init__(config, model_config, device_mesh=None)

    def _init_distributed_env(self, *args: object, **kwargs: object) -> None:
        """Create the process groups without the line that Gloo prints for each group."""
        # verl sorts the devices' names as numbers: it fails at a UUID, and of "1,0" its engine
        # takes another GPU than this process. It gets this rank's number instead.
        keyword = get_visible_devices_keyword()
        own = os.environ[keyword]
        with quiet.descriptors():
            os.environ[keyword] = os.environ["LOCAL_RANK"]
            try:
                super()._init_distributed_env(*args, **kwargs)
            finally:
                os.environ[keyword] = own
            mesh = self._device_mesh_cpu
            # verl's workers pass a mesh; `update_weights` gathers over its `infer_tp`.
            self.device_mesh = init_device_mesh("cpu", mesh.mesh.shape, mesh_dim_names=MESH)
        group, ranks = mesh.get_group("tp"), mesh["tp"].mesh.tolist()
        self.ranks = Ranks(group, ranks, mesh.get_rank())
        names = ",".join(self.ranks.gathered(own)).split(",")
        os.environ[keyword] = ",".join(dict.fromkeys(name.strip() for name in names))
        self.host.on_stop.append(self._leave_groups)

    def _leave_groups(self) -> None:
        """Destroy the six process groups, each of which keeps three threads and four open files."""
        with contextlib.suppress(RuntimeError, ValueError):  # the caller has already destroyed them
            for mesh in (self._device_mesh_cpu, self.device_mesh):
                for group in mesh.get_all_groups():
                    torch.distributed.destroy_process_group(group)

    def _init_inference_engine(self, *args: object, **kwargs: object) -> None:
        """Build our `Engine`. The other ranks of a group wait for it, and fail if it does."""
        start = super()._init_inference_engine
        arguments = self._scheduler, self.server_arguments, self.config.free_cache_engine
        build_engine.set(functools.partial(self.engine_kind, *arguments))
        self.ranks.agreed(lambda: start(*args, **kwargs))

    def generate_sequences(self, prompts: DataProto, **kwargs: object) -> DataProto:
        """Run verl's call, from any thread.

        prompts: left-padded `input_ids`, `attention_mask`, `position_ids` (rows x prompt length);
            per row, in `non_tensor_batch`, `raw_prompt_ids` and `sampling_params` (SGLang's names;
            without them verl's own, or `val_kwargs` if `meta_info["validate"]` is true; greedy if
            `meta_info["do_sample"]` is false, or, without either, the config's `do_sample`, which
            verl does not read).

        Returns verl's own `DataProto` with `attention_mask` and `rollout_log_probs` corrected,
        `response_mask` added, and in `non_tensor_batch["rows"]` the engine's answers. Raises
        `ConfigError` for a column that asks for more than one turn. A row's images are in
        `multi_modal_data`.
        """
        check_one_turn(prompts)
        if "multi_modal_data" in prompts.non_tensor_batch:
            from _inf.parts.images.raw_batches import with_inputs

            with_inputs(prompts, self.model_config.hf_config, self.model_config.local_path)
        meta = prompts.meta_info
        if not (self.config.do_sample or "do_sample" in meta or meta.get("validate")):
            kwargs = {**GREEDY, **kwargs}
        call = Call(self.host, CancelToken())
        output = self.run(prompts, call, **kwargs)
        return corrected(output, call.rows) if call.rows else output

    def run(self, prompts: DataProto, call: Call, **kwargs: object) -> DataProto:
        """Run verl's call as `call`, which has the engine's raw answers afterwards."""
        params = prompts.non_tensor_batch.pop("sampling_params", None)
        call.sampling_params = None if params is None else list(params)
        call.ranks = self.ranks_of_call()
        if call.ranks.size > 1:  # the same on every rank that makes it
            asked = repr((prompts.batch["input_ids"].tolist(), call.sampling_params))
            call.asked = hashlib.blake2b(asked.encode(), digest_size=16).hexdigest()
        token = current_call.set(call)
        try:
            with call.ranks.turn:
                return super().generate_sequences(prompts, **kwargs)
        except Exception:
            if call.failure is not None:  # after `shutdown` verl finds its groups destroyed
                raise call.failure from None
            raise
        finally:
            current_call.reset(token)
            # For some seconds the event loop keeps timers that were cancelled, and so their call.
            call.sampling_params = call.requests = None

    def ranks_of_call(self) -> Ranks:
        """The ranks that make the call that begins here; of one by a tool there is only this."""
        return self.ranks if current_call.get(None) is None else ALONE

    def engine(self) -> Engine:
        """The engine, which only the first rank of a tensor-parallel group has."""
        if self._engine is None:
            raise InferenceError(
                f"Rank {self._rank} is not the first of its tensor-parallel group: stream(), "
                "score() and get_logprobs() can be called on the first rank only, the other calls "
                "on all ranks."
            )
        engine: Engine = self._engine
        return engine

    @property
    def engine_kind(self) -> Callable[..., Engine]:
        """Makes its engine."""
        return Engine

    def weights_changed(self) -> None:
        """Called when new weights are in use."""

    @functools.cached_property
    def expected_weights(self) -> ExpectedWeights:
        from _inf.backends.new_weights import expected_weights

        return expected_weights(self.model_config.hf_config, self.model_config.trust_remote_code)

    @property
    def on_cpu(self) -> bool:
        return self.server_arguments.get("device") == "cpu"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the engine computes, also if the config says auto."""
        return self._engine.tokenizer_manager.model_config.dtype
