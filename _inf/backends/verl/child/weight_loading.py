"""Checks that SGLang loads every weight of a model.

A weight that is dropped and a parameter that is not loaded are errors: at the start a line in the
log, which the caller's process finds with `refusal`; in an update the engine's answer (only for
dropped weights, because an update may come in parts). Quantized models are not checked, because
their parameters differ from the checkpoint's.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import torch

from _inf.backends.verl.patch_table import Process, Replace, Wrap
from _inf.errors import error_text

if TYPE_CHECKING:
    from sglang.srt.managers.tp_worker import BaseTpWorker

REFUSED = "inf: refused: "
SHOWN_NAMES = 3

Weights = Iterable[tuple[str, torch.Tensor]]


class WeightsNotTaken(Exception):
    """A sentence that names the weights that were dropped or never set."""


def refusal(log: str) -> str | None:
    """Find the sentence about weights that were not loaded in the log of a start, if any."""
    match = re.search(f"^{re.escape(REFUSED)}(.*)$", log, re.MULTILINE)
    return match[1] if match else None


def load_checked(
    trust_remote_code: bool,
    load: Callable[[torch.nn.Module, Weights, torch.device], None],
    model: torch.nn.Module,
    weights: Weights,
    target_device: torch.device,
) -> None:
    if getattr(model, "quant_config", None) is not None:
        load(model, weights, target_device)
        return
    DroppedWeights(model, trust_remote_code).watch()
    for _, parameter in _floats(model):
        parameter.data.fill_(math.nan)
    try:
        load(model, weights, target_device)
        if unset := [name for name, tensor in _floats(model) if _has_nan(tensor)]:
            raise WeightsNotTaken(
                f"the checkpoint leaves {_some(unset)} of SGLang's {type(model).__name__} without "
                "values, or gives them NaN"
            )
    except WeightsNotTaken as fault:
        print(f"\n{REFUSED}{fault}", flush=True)
        raise


def answer_a_refused_update(
    update: Callable[..., tuple[bool, str]], worker: BaseTpWorker, request: object
) -> tuple[bool, str]:
    """A dropped weight, or memory that cannot be opened, is the engine's answer, and not the end of
    its process."""
    try:
        return update(worker, request)
    except WeightsNotTaken as fault:  # on all ranks alike
        return False, str(fault)
    except Exception as failure:
        if worker.tp_size > 1:  # the other ranks have taken these weights
            raise
        return False, error_text(failure)


def _has_nan(tensor: torch.Tensor) -> bool:
    """The sum tells it at once where it is a number; it may be NaN by infinities alone. There is no
    sum of numbers of 8 bits."""
    may = tensor.itemsize == 1 or bool(tensor.sum().isnan())
    return may and bool(tensor.isnan().any())


def _floats(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, p) for name, p in model.named_parameters() if p.is_floating_point()]


class DroppedWeights:
    """Finds the weights passed to a model's `load_weights` that reached no parameter."""

    def __init__(self, model: torch.nn.Module, trust_remote_code: bool) -> None:
        self._model = model
        self._trust_remote_code = trust_remote_code
        self._memory: list[tuple[str, int, int]] = []  # a weight's name, start and end in memory
        self._loaded: set[str] = set()
        self._copied = False  # whether a parameter was loaded from a copy

    def watch(self) -> None:
        """Make `model.load_weights` raise `WeightsNotTaken` if it drops a weight."""
        from sglang.srt.model_loader.weight_utils import default_weight_loader

        for parameter in self._model.parameters():
            load = getattr(parameter, "weight_loader", default_weight_loader)
            # SGLang's own classes of parameters have a read-only property over `_weight_loader`.
            name = "_weight_loader" if hasattr(parameter, "_weight_loader") else "weight_loader"
            setattr(parameter, name, functools.partial(self._load_parameter, load))
        self._model.load_weights = functools.partial(self._load_model, self._model.load_weights)

    def _load_model(
        self, load: Callable[..., object], weights: Weights, **kwargs: object
    ) -> object:
        self._memory, self._loaded, self._copied = [], set(), False
        result = load(self._recorded(weights), **kwargs)
        dropped = [name for name, _, _ in self._memory if name not in self._loaded]
        # A copy may hold several weights, as DeepSeek's fused projections do; which is unknown.
        if dropped and not self._copied and (needed := self._needed(dropped)):
            raise WeightsNotTaken(
                f"SGLang's {type(self._model).__name__} has no place for {_some(needed)}"
            )
        return result

    def _recorded(self, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            start = tensor.data_ptr()
            self._memory.append((name, start, start + tensor.numel() * tensor.element_size()))
            yield name, tensor

    def _load_parameter(
        self,
        load: Callable[..., object],
        parameter: torch.nn.Parameter,
        weight: torch.Tensor,
        *args: object,
        **kwargs: object,
    ) -> object:
        """Record the weight that `weight` is a view of as loaded."""
        address = weight.data_ptr()
        names = (name for name, start, end in reversed(self._memory) if start <= address < end)
        if (name := next(names, None)) is None:
            self._copied = True
        else:
            self._loaded.add(name)
        return load(parameter, weight, *args, **kwargs)

    def _needed(self, names: list[str]) -> list[str]:
        """The names that Transformers' model of this config has as the first name of a tensor."""
        from _inf.backends.new_weights import expected_weights

        try:
            model = expected_weights(self._model.config, self._trust_remote_code)
        except Exception as failure:  # a config that Transformers has no class for
            print(f"inf: cannot tell whether {_some(names)} matter: {failure!r}", flush=True)
            return []
        return [name for name in names if name in model.shapes]


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def patches(process: Process) -> list[Replace]:
    # fmt: off
    return [
        Wrap("sglang.srt.model_loader.loader:DefaultModelLoader.load_weights_and_postprocess",
             functools.partial(load_checked, process.trust_remote_code),
             "load_weights of models/ silently drops a weight that a class does not know, and a "
             "parameter for which no weight was loaded keeps whatever was in memory"),
        Wrap("sglang.srt.managers.tp_worker:BaseTpWorker.update_weights_from_tensor",
             answer_a_refused_update,
             "managers/scheduler_update_weights_mixin.py: an exception in an update ends the "
             "process"),
    ]
    # fmt: on
