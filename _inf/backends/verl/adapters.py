"""LoRA adapters beside the weights of an engine of SGLang's, each with an id of its own, so that
rows of one that was replaced share nothing with those of its successor: not even cached prefixes.

sglang 0.5.9 (`lora/lora.py`, `lora/lora_manager.py`, `lora/mem_pool.py`) reads only `r` and
`lora_alpha` of a config, takes every tensor that is not `lora_A` for `lora_B`, and dies in the
first step with an adapter that has `k_proj` without `q_proj`, or `up_proj` without `gate_proj`. It
is given adapters of one rank, scaled already, with zeros for what is missing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from _inf.backends.new_weights import NamedTensors
from _inf.backends.verl.server_arguments import ENABLE, MAX_RANK, OWN, SLOTS, TARGETS
from _inf.errors import ConfigError, InferenceError

if TYPE_CHECKING:
    from peft import LoraConfig

    from _inf.backends.verl.engine import Engine

# SGLang computes those of a group in one product.
GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_NAME = re.compile(
    r"base_model\.model\.(.+\.layers\.\d+\.(?:self_attn|mlp)\."
    rf"(?:{'|'.join(TARGETS)}))\.lora_([AB])\.weight"
)


@dataclasses.dataclass(frozen=True)
class Adapter:
    """A loaded adapter. id: SGLang's name for it. config: PEFT's, as it was given."""

    id: str
    version: int
    config: dict[str, Any]


class Adapters:
    """Those of an engine, by name. They change while no call runs."""

    def __init__(self, server_arguments: Mapping[str, Any]) -> None:
        self.loaded: dict[str, Adapter] = {}
        self.versions: dict[str, int] = {}  # of unloaded ones too, so that none comes again
        self.enabled = bool(server_arguments.get(ENABLE))
        self._most = server_arguments.get(SLOTS, 1) - 1  # one place is the model's own
        self._max_rank = server_arguments.get(MAX_RANK, 0)

    def of(self, name: str) -> Adapter:
        if name not in self.loaded:  # it was when the call was checked
            raise ConfigError.of("adapter", f"{name!r} was unloaded.")
        return self.loaded[name]

    def check_place(self, name: str) -> None:
        """Raise `ConfigError` if no adapter of this name can be loaded."""
        if name not in self.loaded and len(self.loaded) >= self._most:
            raise ConfigError.of(
                f"adapters.{name}",
                f"{self._most} are loaded, with which the engine is full: unload one, or start it "
                f"with a larger {OWN}{SLOTS} ({self._most + 1}: the model's own place and theirs).",
            )

    def check_rank(self, name: str, rank: int) -> None:
        if rank > self._max_rank:
            raise ConfigError.of(
                f"adapters.{name}",
                f"its rank is {rank}, and the engine was started with {OWN}{MAX_RANK} "
                f"{self._max_rank}.",
            )

    def next_version(self, name: str) -> int:
        return self.versions.get(name, -1) + 1

    def put(self, name: str, adapter: Adapter) -> None:
        self.loaded[name], self.versions[name] = adapter, adapter.version

    def count_up(self) -> None:
        """Give each adapter its next version: the model's own weights are others now."""
        for name, adapter in self.loaded.items():
            self.put(name, dataclasses.replace(adapter, version=adapter.version + 1))


def sglang_tensors(
    key: str, config: LoraConfig, tensors: NamedTensors, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[int, dict[str, torch.Tensor]]:
    """Return the adapter's rank, and its tensors as SGLang needs them, float32.

    tensors: PEFT's, checked. shapes: of the model's weights. Raises `ConfigError` about `key`.
    """
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors:
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
    return rank, sent


def _scaling(config: LoraConfig, module: str, rank: int) -> float:
    """PEFT's (0.21, `tuners/lora/layer.py`, `update_layer`)."""
    from peft.utils.other import get_pattern_key

    alphas = config.alpha_pattern or {}
    alpha = alphas.get(get_pattern_key(list(alphas), module), config.lora_alpha)
    return float(alpha / (rank**0.5 if config.use_rslora else rank))


async def send(engine: Engine, folder: Path, rank: int, tensors: dict[str, torch.Tensor]) -> str:
    """Load an adapter into the engine; returns its id. folder: a new one for its files, which are
    deleted at the end."""
    from safetensors.torch import save_file
    from sglang.srt.managers.io_struct import LoadLoRAAdapterReqInput

    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(TARGETS)}
    folder.mkdir()
    try:
        await asyncio.to_thread(save_file, tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(config), "utf-8")
        name = uuid.uuid4().hex
        request = LoadLoRAAdapterReqInput(lora_name=name, lora_path=str(folder), lora_id=name)
        await _answered(engine, request)
    finally:
        shutil.rmtree(folder)
    return name


async def forget(engine: Engine, adapter: Adapter) -> None:
    from sglang.srt.managers.io_struct import UnloadLoRAAdapterReqInput

    await engine.prefix_cache.empty()  # which waits until rows that were aborted have ended
    await _answered(engine, UnloadLoRAAdapterReqInput(lora_name=adapter.id, lora_id=adapter.id))


async def _answered(engine: Engine, request: Any) -> None:
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


async def _shielded(work: asyncio.Future[Any]) -> Any:
    return await asyncio.shield(work)
