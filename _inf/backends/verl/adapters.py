"""LoRA adapters in an engine of SGLang's, each with a key of its own, so that rows of a replaced
adapter share nothing with rows of the new one, not even cached prefixes.

sglang 0.5.9 (`lora/lora.py`, `lora/lora_manager.py`, `lora/mem_pool.py`) reads only `r` and
`lora_alpha` of a config, takes every tensor that is not `lora_A` for `lora_B`, and dies in the
first step with an adapter that has `k_proj` without `q_proj`, or `up_proj` without `gate_proj`. It
is given adapters of one rank, scaled already, with zeros for what is missing.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from _inf.backends import new_adapters, new_weights
from _inf.backends.base import Adapting
from _inf.backends.loaded_adapters import LoadedAdapters, NewAdapter
from _inf.backends.verl.abilities import WholeVerlBackend
from _inf.backends.verl.corrected_rollout import CorrectedRollout
from _inf.backends.verl.engine import Engine
from _inf.backends.verl.server_arguments import MAX_RANK, OWN, SLOTS, TARGETS
from _inf.errors import ConfigError, InferenceError

if TYPE_CHECKING:
    from peft import LoraConfig
    from sglang.srt.managers.io_struct import GenerateReqInput, LoRAUpdateOutput

# SGLang computes those of a group in one product.
GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_NAME = re.compile(
    r"base_model\.model\.(.+\.layers\.\d+\.(?:self_attn|mlp)\."
    rf"(?:{'|'.join(TARGETS)}))\.lora_([AB])\.weight"
)


class SglangAdapters(LoadedAdapters):
    """The adapters of a rollout's engine."""

    def __init__(self, rollout: CorrectedRollout) -> None:
        super().__init__()
        self._rollout, own = rollout, rollout.server_arguments
        self._most = own[SLOTS] - 1  # one place is the model's own
        self._max_rank = own[MAX_RANK]

    def checked(self, name: str, weights: object, peft_config: object) -> NewAdapter:
        self._check_place(name)
        known, key = self._loaded.get(name), f"adapters.{name}"
        model, form = self._rollout.model_config, known.form if known else None
        built = model.hf_config, model.trust_remote_code
        new = new_adapters.checked(
            name, weights, peft_config, form, lambda: new_weights.without_weights(*built)
        )
        assert new.form is not None
        shapes = self._rollout.expected_weights.shapes
        tensors = sglang_tensors(key, new.form.config, new.tensors, shapes)
        if (rank := _rank(tensors)) > self._max_rank:
            raise ConfigError.of(
                key,
                f"its rank is {rank}, and the engine was started with {OWN}{MAX_RANK} "
                f"{self._max_rank}.",
            )
        return NewAdapter(new.form, tensors)

    def _check_place(self, name: str) -> None:
        if name not in self._loaded and len(self._loaded) >= self._most:
            raise ConfigError.of(
                f"adapters.{name}",
                f"{self._most} adapters are loaded, and the engine takes no more: unload one, or "
                f"start the engine with a larger {OWN}{SLOTS} (now {self._most + 1}: one place for "
                "the model, the others for adapters).",
            )

    async def _load(self, name: str, new: NewAdapter) -> str:
        from safetensors.torch import save_file
        from sglang.srt.managers.io_struct import LoadLoRAAdapterReqInput

        self._check_place(name)
        engine, rank, key = self._rollout.engine(), _rank(new.tensors), uuid.uuid4().hex
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
        folder = self._rollout.host.folder / f"adapter-{key}"
        folder.mkdir()
        try:
            await asyncio.to_thread(
                save_file, dict(new.tensors), folder / "adapter_model.safetensors"
            )
            about = json.dumps({**config, "target_modules": list(TARGETS)})
            (folder / "adapter_config.json").write_text(about, "utf-8")
            request = LoadLoRAAdapterReqInput(lora_name=key, lora_path=str(folder), lora_id=key)
            await _answered(engine, request)
        finally:
            shutil.rmtree(folder)
        return key

    async def _unload(self, key: str) -> None:
        """Unload it; that empties the prefix cache."""
        from sglang.srt.managers.io_struct import UnloadLoRAAdapterReqInput

        engine = self._rollout.engine()
        await engine.prefix_cache.empty()  # which waits until rows that were aborted have ended
        await _answered(engine, UnloadLoRAAdapterReqInput(lora_name=key, lora_id=key))


class AdaptingEngine(Engine):
    """An engine whose requests can name an adapter."""

    def __init__(self, adapters: SglangAdapters, *args: Any, **kwargs: Any) -> None:
        self._adapters = adapters
        super().__init__(*args, **kwargs)

    async def _before_sending(self, request: GenerateReqInput) -> None:
        """Name the request's adapter by its key."""
        await super()._before_sending(request)
        if name := request.lora_path:
            request.lora_id, request.lora_path = self._adapters.of(name).key, None

    def _version_of(self, request: GenerateReqInput) -> Callable[[], int]:
        name = request.lora_path
        return (lambda: self._adapters.of(name).version) if name else super()._version_of(request)


class AdaptingRollout(CorrectedRollout):
    """A rollout whose engine has adapters."""

    @functools.cached_property
    def adapters(self) -> SglangAdapters:
        return SglangAdapters(self)

    @property
    def engine_kind(self) -> Callable[..., Engine]:
        return functools.partial(AdaptingEngine, self.adapters)

    def weights_changed(self) -> None:
        self.adapters.count_up()


class AdaptingVerlBackend(WholeVerlBackend, Adapting):
    """One whose engine was started with `enable_lora`."""

    rollout: AdaptingRollout

    @property
    def loaded(self) -> LoadedAdapters:  # type: ignore[override]
        return self.rollout.adapters


def _rank(tensors: Mapping[str, torch.Tensor]) -> int:
    return next(len(tensor) for name, tensor in tensors.items() if name.endswith("lora_A.weight"))


def sglang_tensors(
    key: str,
    config: LoraConfig,
    tensors: Mapping[str, torch.Tensor],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, torch.Tensor]:
    """Return an adapter's tensors as SGLang needs them: float32, all of one rank.

    tensors: PEFT's, checked. shapes: of the model's weights. Raises `ConfigError` about `key`.
    """
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if (match := _NAME.fullmatch(name)) is None:
            raise ConfigError.of(
                key,
                f"it has {name}; SGLang 0.5.9 serves adapters of {', '.join(TARGETS)} in attention "
                "and dense layers only. rollout.name: hf serves it, or adapter_path merges it.",
            )
        pairs.setdefault(match[1], {})[match[2]] = tensor.float().cpu()
    rank = max(len(pair["A"]) for pair in pairs.values())
    sent: dict[str, torch.Tensor] = {}
    for module, pair in pairs.items():
        own = len(pair["A"])
        parent, _, leaf = module.rpartition(".")
        scaled = pair["B"] * _scaling(config, module, own)
        sent[f"{module}.lora_A.weight"] = pad(pair["A"], (0, 0, 0, rank - own))
        sent[f"{module}.lora_B.weight"] = pad(scaled, (0, rank - own))
        for sibling in next((group for group in GROUPS if leaf in group), ()):
            if (missing := f"{parent}.{sibling}") not in pairs:
                outputs, inputs = shapes[f"{missing}.weight"]
                sent[f"{missing}.lora_A.weight"] = torch.zeros(rank, inputs)
                sent[f"{missing}.lora_B.weight"] = torch.zeros(outputs, rank)
    return sent


def _scaling(config: LoraConfig, module: str, rank: int) -> float:
    """PEFT's (0.21, `tuners/lora/layer.py`, `update_layer`)."""
    from peft.utils.other import get_pattern_key

    alphas = config.alpha_pattern or {}
    alpha = alphas.get(get_pattern_key(list(alphas), module), config.lora_alpha)
    return float(alpha / (rank**0.5 if config.use_rslora else rank))


async def _answered(engine: Engine, request: object) -> None:
    """Past SGLang's `load_lora_adapter` and `unload_lora_adapter`
    (`managers/tokenizer_communicator_mixin.py`): the latter waits without end if a row of the
    adapter was ever aborted while it waited, and an unloaded adapter is loaded again on demand."""
    if engine.refusal is not None:
        raise InferenceError(engine.refusal)
    # Shielded, because after a cancelled request SGLang never answers a later one.
    asked = asyncio.ensure_future(
        engine.tokenizer_manager.update_lora_adapter_communicator(request)
    )
    [answer, *_] = await engine.or_death(_shielded(asked))
    if not answer.success:
        raise InferenceError(f"The engine refused the adapter: {answer.error_message}")


async def _shielded(work: asyncio.Future[list[LoRAUpdateOutput]]) -> list[LoRAUpdateOutput]:
    return await asyncio.shield(work)
