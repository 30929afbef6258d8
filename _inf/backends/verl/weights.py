"""Checks new weights, all of them, and then sends them to a running engine.

In: a module, a state dict or pairs of (name, tensor), with Transformers' names. Out: pairs checked
against the model: none unknown, none missing, all finite and of the right shape. Then verl's own
`SGLangRollout.update_weights` sends them in buckets.

It corrects that SGLang (0.5.9, `model_executor/model_runner.py`) silently drops unknown names and
dies of a wrong shape, and that verl (0.6.1, `sglang_rollout.py`) lets calls run between two
buckets, ignores the engine's answer, and turns the caller's own CPU tensors into shared memory.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from _inf.backends.verl.memory import drain
from _inf.errors import ConfigError, InferenceError, did_you_mean, shown
from _inf.runtime import quiet

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from _inf.backends.verl.rollout import Rollout

NamedTensors = list[tuple[str, torch.Tensor]]

# In older state dicts only; SGLang computes them from the config.
_ROTARY = re.compile(r".*\brotary_emb\.(inv_freq|cos_cached|sin_cached)")
_SHOWN_FAULTS = 3
HALF_WAY = (
    "An update of the weights ended half way, so the engine holds some old and some new ones; "
    "call update_weights() again with all of them, or restart()."
)


@dataclasses.dataclass(frozen=True)
class ExpectedWeights:
    """A model's weights. `shapes`: by name, one name per tensor. `tied`: other names of a tensor,
    to its name in `shapes`. `computed`: names of buffers that no checkpoint holds."""

    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]
    computed: frozenset[str]


def expected_weights(hf_config: PretrainedConfig, *, trust_remote_code: bool) -> ExpectedWeights:
    """Return the names and shapes that Transformers gives a model's weights; allocates nothing."""
    from transformers import AutoModelForCausalLM

    with quiet.third_party(), torch.device("meta"):  # verl's config asks for flash attention
        model = AutoModelForCausalLM.from_config(
            copy.deepcopy(hf_config),
            attn_implementation="eager",
            trust_remote_code=trust_remote_code,
        )
    state = model.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    tied = {name: first.setdefault(id(tensor), name) for name, tensor in state.items()}
    return ExpectedWeights(
        {name: tuple(tensor.shape) for name, tensor in state.items() if tied[name] == name},
        {name: owner for name, owner in tied.items() if owner != name},
        frozenset(name for name, _ in model.named_buffers() if name not in state),
    )


def checked(weights: object, model: ExpectedWeights) -> NamedTensors:
    """Return all the weights to send, or raise a `ConfigError` that lists the faults."""
    tensors: dict[str, torch.Tensor] = {}
    faults: list[str] = []
    for name, tensor in _pairs(weights):
        if name in model.computed or _ROTARY.fullmatch(name):
            continue
        fault = f"{name} comes twice" if name in tensors else _fault(name, tensor, model)
        if fault is not None:
            faults.append(fault)
        tensors[name] = tensor
    for alias, owner in model.tied.items():
        tensor = tensors.pop(alias, None)
        if tensor is None or faults:
            continue
        first = tensors.setdefault(owner, tensor)
        if not (tensor is first or torch.equal(tensor, first)):
            faults.append(f"{alias} differs from {owner}, and this model ties the two")
    missing = [name for name in model.shapes if name not in tensors]
    if missing:
        faults.append(f"{len(missing)} of {len(model.shapes)} are missing, first {missing[0]}")
    if len(faults) > _SHOWN_FAULTS:
        faults[_SHOWN_FAULTS:] = [f"and {len(faults) - _SHOWN_FAULTS} more"]
    if faults:
        raise ConfigError(
            f"weights: {'; '.join(faults)}. The engine keeps the weights that it has."
        )
    return list(tensors.items())


def _pairs(weights: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(weights, torch.nn.Module):
        weights = weights.state_dict()
    try:
        items = iter(weights.items() if isinstance(weights, Mapping) else weights)
    except TypeError:
        raise ConfigError(
            f"weights: expected a module, a state dict or pairs of (name, tensor), "
            f"got {shown(weights)}"
        ) from None
    for index, item in enumerate(items):
        if not (isinstance(item, Sequence) and len(item) == 2 and isinstance(item[0], str)):
            raise ConfigError(f"weights[{index}]: expected (name, tensor), got {shown(item)}")
        yield item[0], item[1]


def _fault(name: str, tensor: Any, model: ExpectedWeights) -> str | None:
    shape = model.shapes.get(model.tied.get(name, name))
    if shape is None:
        if "lora_" in name:
            return f"{name} is an adapter's; merge it first (peft: merge_and_unload)"
        return f"this model has no {name}{did_you_mean(name, [*model.shapes, *model.tied])}"
    if not isinstance(tensor, torch.Tensor) or tensor.is_meta or not tensor.is_floating_point():
        what = f"{tensor.dtype} on {tensor.device}" if hasattr(tensor, "dtype") else shown(tensor)
        return f"{name} must be a tensor of floats with values, got {what}"
    if tuple(tensor.shape) != shape:
        return f"{name} has the shape {tuple(tensor.shape)}, and the model's has {shape}"
    here = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return None if bool(torch.isfinite(here).all()) else f"{name} holds NaN or infinite values"


async def send(rollout: Rollout, tensors: NamedTensors, version: int | None) -> int:
    """Send the weights on the engine's loop while no call runs; return the new version."""
    engine = rollout._engine
    if engine is not None:  # with tensor parallelism only the first rank of a group has one
        if engine.refusal not in (None, HALF_WAY):  # asleep
            raise InferenceError(engine.refusal)
        await drain(engine)
        engine.refusal = HALF_WAY
    # Only the sender's own children can open CPU shared memory; other ranks' need CUDA memory.
    device = "cpu" if rollout.on_cpu else "cuda" if rollout._tp_size > 1 else None
    own = ((name, _copied(tensor, device)) for name, tensor in tensors)
    try:
        await rollout.update_weights(own)
    except Exception as failure:
        raise InferenceError(f"{HALF_WAY} It failed with {failure!r}.") from failure
    rollout.weight_version = rollout.weight_version + 1 if version is None else version
    if engine is not None:
        engine.tokenizer_manager.server_args.weight_version = str(rollout.weight_version)
        engine.refusal = None
    return int(rollout.weight_version)


def _copied(tensor: torch.Tensor, device: str | None) -> torch.Tensor:
    """Copy a CPU tensor, because sending turns it into shared memory for the rest of its life."""
    whole = (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()
    if whole.is_cpu and device != "cuda":
        return whole.clone(memory_format=torch.contiguous_format)
    return whole if device is None else whole.to(device)


def check_version(version: object) -> None:
    """Raise unless the version is None or a whole number from 0 on."""
    whole = isinstance(version, int) and not isinstance(version, bool) and version >= 0
    if version is not None and not whole:
        raise ConfigError(f"version: expected a whole number from 0 on, got {shown(version)}")
