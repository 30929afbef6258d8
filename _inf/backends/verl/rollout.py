"""verl's `SGLangRollout`, subclassed where it loses the truth.

In: a `DataProto` with left-padded `input_ids`, `attention_mask`, `position_ids` (rows x prompt
length), and per row, in `non_tensor_batch`, `raw_prompt_ids` and `sampling_params` (SGLang's
names; without them verl's own hold, `val_kwargs` where `meta_info["validate"]` is true). Out:
verl's own `DataProto` with `attention_mask` and `rollout_log_probs` corrected, `response_mask`
added, and in `non_tensor_batch["rows"]` what the engine really answered, a `RequestOutput` each.

What it corrects is in verl 0.6.1, `workers/rollout/sglang_rollout/sglang_rollout.py`. It knows
nothing of text.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.distributed.device_mesh import init_device_mesh
from verl import DataProto
from verl.workers.config import HFModelConfig, RolloutConfig

from _inf.backends.verl import memory, patches, weights
from _inf.backends.verl.conversation import Conversing, conversing, transcribed
from _inf.backends.verl.engine import Call, Engine, current_call, sglang_rollout
from _inf.conversation.episode import Episode
from _inf.errors import ConfigError, InferenceError, shown
from _inf.request.prompts import is_empty
from _inf.response.columns import column
from _inf.runtime import quiet
from _inf.runtime.host import Host, current_host
from _inf.tools.user_module import import_beside
from _inf.types import CancelToken, RequestOutput

__all__ = ["DataProto", "HFModelConfig", "Rollout", "rollout_config"]

_TURNS = "this call has one turn; use the engine's generate() or rollout_batch() with {}="
NOT_ONE_TURN = {
    "tools_kwargs": _TURNS.format("tools_kwargs"),
    "interaction_kwargs": _TURNS.format("interaction_kwargs"),
    "multi_modal_data": "the engine takes text only",
}
MESH = ("dp", "infer_tp", "infer_pp")

patches.apply()


class Rollout(Conversing):
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
        self.weight_version = 0
        self._server_arguments = server_arguments
        current_host.set(host)
        super().__init__(config, model_config, device_mesh=None)

    def _initialize_tools(self, *args: Any) -> tuple[Any, ...]:
        """Tools are a call's (`conversing`), and their file is read by `_inf.tools.loading`."""
        return [], {}, None, [], None

    def _initialize_interactions(self, config: Any) -> dict[str, Any]:
        """Their modules may lie beside the file: verl takes those that are imported already
        (`interactions/utils/interaction_registry.py`)."""
        path = config.multi_turn.interaction_config_path
        try:
            for index, entry in enumerate(OmegaConf.load(path).interaction if path else ()):
                if "." not in entry.class_name.strip("."):
                    raise ConfigError(
                        f"rollout.multi_turn.interaction_config_path: {path}: interaction[{index}]."
                        f"class_name: {shown(entry.class_name)} is not the dotted path of a class, "
                        "such as verl.interactions.gsm8k_interaction.Gsm8kInteraction."
                    )
                import_beside(path, entry.class_name.rpartition(".")[0])
            return dict(super()._initialize_interactions(config))
        except ConfigError:
            raise
        except Exception as failure:
            raise ConfigError(
                f"rollout.multi_turn.interaction_config_path: {path} cannot be loaded: "
                f"{type(failure).__name__}: {failure}"
            ) from failure

    def _init_distributed_env(self, *args: Any, **kwargs: Any) -> None:
        """Gloo greets on stdout, once a group."""
        with quiet.descriptors():
            super()._init_distributed_env(*args, **kwargs)
            shape = self._device_mesh_cpu.mesh.shape
            # verl's workers hand one in; `update_weights` gathers over its `infer_tp`.
            self.device_mesh = init_device_mesh("cpu", shape, mesh_dim_names=MESH)
        self.host.on_stop.append(self._leave_groups)

    def _leave_groups(self) -> None:
        """torch keeps each of the six, with three threads and four open files, until it is told."""
        with contextlib.suppress(RuntimeError, ValueError):  # the caller has ended all of them
            for mesh in (self._device_mesh_cpu, self.device_mesh):
                for group in mesh.get_all_groups():
                    torch.distributed.destroy_process_group(group)

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
        cancel: CancelToken | None = None,
        report: Callable[[int, int], None] | None = None,
        episodes: Sequence[Episode] = (),
        **kwargs: Any,
    ) -> DataProto:
        """verl's call, from any thread. `cancel` can end it early; `report` is told, on the
        engine's thread, the rows finished and the tokens generated so far. With `episodes`, one a
        row, it goes verl's multi-turn way. Raises `ConfigError` for a column that asks for it
        without them."""
        if not episodes:
            _check_one_turn(prompts)
        params = prompts.non_tensor_batch.pop("sampling_params", None)
        per_row = None if params is None else list(params)
        call = Call(self.host, cancel or CancelToken(), per_row, report)
        token = current_call.set(call)
        rollout = conversing(self, episodes) if episodes else self
        try:
            output = super(Rollout, rollout).generate_sequences(prompts, **kwargs)
        finally:
            current_call.reset(token)
        if self._tp_size > 1:  # every rank of a group gets the answer, the first one had the rows
            group = self._device_mesh_cpu["tp"]
            first = int(group.mesh[0])
            sent = (call.rows, list(episodes))
            [(call.rows, episodes)] = sglang_rollout.broadcast_pyobj(
                [sent], self._rank, group.get_group(), src=first, force_cpu_device=True
            )
        if episodes:
            return transcribed(output, episodes, self.weight_version)
        return _corrected(output, call.rows) if call.rows else output

    def stream(
        self,
        ids: list[int],
        params: dict[str, Any],
        put: Callable[[RequestOutput], None],
        cancel: CancelToken,
    ) -> concurrent.futures.Future[None]:
        """One request; `put` gets its output so far, on the engine's thread."""
        return self.host.submit(self._first().stream(ids, params, put), cancel)

    def _first(self) -> Any:
        """The engine, which only the first rank of a tensor-parallel group has."""
        if self._engine is None:
            raise InferenceError(
                f"Rank {self._rank} is not the first of its tensor-parallel group: stream(), "
                "score() and get_logprobs() are the first rank's to call, generate() and the rest "
                "all ranks'."
            )
        return self._engine

    @property
    def on_cpu(self) -> bool:
        """Whether the engine computes on the CPU."""
        return self._server_arguments.get("device") == "cpu"

    @property
    def pool(self) -> tuple[int, int] | None:
        """Tokens of the KV cache, and of a page of it; None on a rank that has no engine."""
        if self._engine is None:
            return None
        held = self._engine.scheduler_info["max_total_num_tokens"]
        return held, self._engine.server_args.page_size

    @property
    def dtype(self) -> torch.dtype:
        """What the engine computes in, also where the config says auto."""
        return self._engine.tokenizer_manager.model_config.dtype

    @functools.cached_property
    def _wanted(self) -> weights.ExpectedWeights:
        about = self.model_config
        return weights.wanted(about.hf_config, trust_remote_code=about.trust_remote_code)

    def replace_weights(self, given: Any, version: int | None) -> int:
        """Check `given`, then load it between two calls; the new version's number."""
        weights.check_version(version)
        tensors = weights.checked(given, self._wanted)
        return self.host.run_alone(weights.send(self, tensors, version))

    def sleep(self) -> memory.SleepResult:
        """Give the accelerator's memory back when the calls inside have ended."""
        return self.host.run_alone(memory.sleep(self))

    def wake_up(self) -> None:
        """Take it again, weights and all."""
        self.host.run_alone(memory.wake_up(self))

    def score(
        self, sequences: Sequence[tuple[list[int], int]], cancel: CancelToken, *, likeliest: int = 0
    ) -> list[RequestOutput]:
        """For each `(ids, start)` a row whose `prompt_logprobs` begin before `ids[start]`.

        likeliest: 1 gives `likeliest_logprobs` too, at a few hundredths of the time on a CPU."""
        engine, call = self._first(), Call(self.host, cancel)

        async def all_of_them() -> list[RequestOutput]:
            scored = (
                engine.score(*each, call, row, likeliest) for row, each in enumerate(sequences)
            )
            return list(await asyncio.gather(*scored))

        return self.host.run(all_of_them(), cancel)


def _check_one_turn(prompts: DataProto) -> None:
    """verl's datasets have these columns in every row, empty where there is nothing to say."""
    for name, instead in NOT_ONE_TURN.items():
        for row, value in enumerate(prompts.non_tensor_batch.get(name, ())):
            if value is not None and not is_empty(value):
                raise ConfigError(f"non_tensor_batch[{name!r}][{row}]: {shown(value)}: {instead}.")


def _corrected(output: DataProto, rows: list[RequestOutput]) -> DataProto:
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
    """verl's typed config from plain values; its nested parts are dataclasses too. `multi_turn`
    stays off in it: `conversing` switches it on for the calls that need it."""
    settings = {**settings, "multi_turn": {**settings["multi_turn"], "enable": False}}
    parts = vars(RolloutConfig(name="sglang"))
    nested = {
        name: type(parts[name])(**value)
        for name, value in settings.items()
        if dataclasses.is_dataclass(parts[name])
    }
    return RolloutConfig(**(settings | nested))
