"""Checks new weights for a running engine, all of them, before the first one is loaded: none
unknown, none missing, all finite and of the right shape.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from _inf.backends.model_info import auto_class
from _inf.errors import ConfigError, did_you_mean, shown
from _inf.runtime import quiet

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

NamedTensors = list[tuple[str, torch.Tensor]]

# In older state dicts only; every engine computes them from the config.
_ROTARY = re.compile(r".*\brotary_emb\.(inv_freq|cos_cached|sin_cached)")
_SHOWN_FAULTS = 3
DDP_PREFIX = "module."
DDP_NAMES = (
    "Names that begin with module. come from DistributedDataParallel: give the model inside it "
    "(ddp.module), or its state dict. "
)


@dataclasses.dataclass(frozen=True)
class ExpectedWeights:
    """A model's weights. `shapes`: by name, one name per tensor. `tied`: other names of a tensor,
    to its name in `shapes`. `computed`: names of buffers that no checkpoint holds. `what`: what
    messages call it. `own`: the engine's, which may come too if they are the same."""

    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    computed: frozenset[str] = frozenset()
    what: str = "this model"
    own: Mapping[str, torch.Tensor] = dataclasses.field(default_factory=dict)


def expected_weights(hf_config: PretrainedConfig, trust_remote_code: bool) -> ExpectedWeights:
    """Return the names and shapes that Transformers gives a model's weights; allocates nothing."""
    return weights_of(without_weights(hf_config, trust_remote_code))


def without_weights(hf_config: PretrainedConfig, trust_remote_code: bool) -> PreTrainedModel:
    """Return Transformers' model of a config; allocates nothing."""
    with quiet.third_party(), torch.device("meta"):  # verl's config asks for flash attention
        model: PreTrainedModel = auto_class(hf_config).from_config(
            copy.deepcopy(hf_config),
            attn_implementation="eager",
            trust_remote_code=trust_remote_code,
        )
    return model


def weights_of(
    model: PreTrainedModel, state: Mapping[str, torch.Tensor] | None = None
) -> ExpectedWeights:
    """state: the model's own, if not all of its state dict."""
    state = model.state_dict(keep_vars=True) if state is None else state
    first: dict[int, str] = {}
    tied = {name: first.setdefault(id(tensor), name) for name, tensor in state.items()}
    return ExpectedWeights(
        {name: tuple(tensor.shape) for name, tensor in state.items() if tied[name] == name},
        {name: owner for name, owner in tied.items() if owner != name},
        frozenset(name for name, _ in model.named_buffers() if name not in state),
    )


def checked(weights: object, model: ExpectedWeights, key: str = "weights") -> NamedTensors:
    """Return all the weights to send, or raise a `ConfigError` about `key` that lists the
    faults."""
    tensors: dict[str, torch.Tensor] = {}
    faults: list[str] = []
    for name, tensor in _pairs(weights, key):
        if name in model.computed or _ROTARY.fullmatch(name):
            continue
        if name in model.own:
            if not _same(tensor, model.own[name]):
                faults.append(f"{name} differs from the model's own, so the adapter must be merged")
            continue
        fault = f"{name} comes twice" if name in tensors else _fault(name, tensor, model)
        if fault is not None:
            faults.append(fault)
        tensors[name] = tensor
    if not faults:
        broken = (name for name, tensor in tensors.items() if not _is_finite(tensor))
        faults += [f"{name} holds NaN or infinite values" for name in broken]
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
        hint = DDP_NAMES if any(name.startswith(DDP_PREFIX) for name in tensors) else ""
        raise ConfigError.of(
            key, f"{'; '.join(faults)}. {hint}The engine keeps the weights that it has."
        )
    return list(tensors.items())


def _pairs(weights: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(weights, torch.nn.Module):
        weights = weights.state_dict()
    try:
        items = iter(weights.items() if isinstance(weights, Mapping) else weights)
    except TypeError:
        raise ConfigError.of(
            key,
            f"expected a module, a state dict or pairs of (name, tensor), got {shown(weights)}",
        ) from None
    for index, item in enumerate(items):
        if not (isinstance(item, Sequence) and len(item) == 2 and isinstance(item[0], str)):
            raise ConfigError.of(f"{key}[{index}]", f"expected (name, tensor), got {shown(item)}")
        yield item[0], item[1]


def whole(tensor: object) -> torch.Tensor:
    """A tensor without its history, all of it where it is spread over ranks."""
    full: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach()


def _same(tensor: object, own: torch.Tensor) -> bool:
    """Whether a tensor is a weight of the engine's, perhaps rounded to the dtype of either."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_meta or tensor.shape != own.shape:
        return False
    given = whole(tensor).to(own.device)
    return bool(torch.equal(given.to(own.dtype), own) or torch.equal(own.to(given.dtype), given))


def _fault(name: str, tensor: Any, model: ExpectedWeights) -> str | None:
    shape = model.shapes.get(model.tied.get(name, name))
    if shape is None:
        if "lora_" in name and model.what == ExpectedWeights.what:
            return (
                f"{name} is an adapter's; load it with load_adapter(), or merge it first (peft: "
                "merge_and_unload)"
            )
        near = did_you_mean(name, [*model.shapes, *model.tied]).removeprefix("; ")
        near = "" if name.startswith(DDP_PREFIX) or not near else f" ({near})"
        return f"{model.what} has no {name}{near}"
    if not isinstance(tensor, torch.Tensor) or tensor.is_meta or not tensor.is_floating_point():
        what = f"{tensor.dtype} on {tensor.device}" if hasattr(tensor, "dtype") else shown(tensor)
        return f"{name} must be a tensor of floats with values, got {what}"
    if tuple(tensor.shape) != shape:
        return f"{name} has the shape {tuple(tensor.shape)}, and {model.what}'s has {shape}"
    return None


def _is_finite(tensor: torch.Tensor) -> bool:
    """Unlike `isfinite`, the extremes take no memory of a tensor's size."""
    here = (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach()
    here = here.float() if here.itemsize == 1 else here  # PyTorch 2.9 has none of float8
    # A rank may have no part of a tensor.
    return not here.numel() or bool(torch.stack(here.aminmax()).isfinite().all())
