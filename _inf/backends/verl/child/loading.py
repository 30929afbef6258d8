"""Whether SGLang took every weight of a model, seen in the scheduler's process while it loads.

It corrects sglang 0.5.9, `srt/model_loader/loader.py` and the `load_weights` of `srt/models/`: a
weight whose name a model class does not know is dropped without a word, and a parameter that no
weight was loaded into holds whatever was in memory. Here both are errors: at the start as a line in
the log, which the caller's process finds with `refusal`; in an update as the engine's answer (only
dropped ones: an update may come in parts). Quantized models are left alone: their parameters are
not the checkpoint's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

REFUSED = "inf: refused: "
SHOWN_NAMES = 3


class WeightsNotTaken(Exception):
    """A sentence that names the weights that were dropped or never set."""


def refusal(log: str) -> str | None:
    """The sentence that a start's log has for weights that were not taken, if there is one."""
    found = re.search(f"^{re.escape(REFUSED)}(.*)$", log, re.MULTILINE)
    return found[1] if found else None


def check_loading(*, trust_remote_code: bool) -> None:
    """Called once, in the scheduler's process, before the model is built."""
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.model_loader.loader import DefaultModelLoader

    load = DefaultModelLoader.load_weights_and_postprocess

    def load_checked(model: Any, weights: Iterable[Any], target_device: Any) -> None:
        if getattr(model, "quant_config", None) is not None:
            load(model, weights, target_device)
            return
        Taken(model, trust_remote_code).watch()
        _fill_with_nan(model)
        try:
            load(model, weights, target_device)
            _check_set(model)
        except WeightsNotTaken as fault:
            print(f"\n{REFUSED}{fault}", flush=True)
            raise

    DefaultModelLoader.load_weights_and_postprocess = staticmethod(load_checked)
    update = ModelRunner.update_weights_from_tensor

    def update_checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return update(self, *args, **kwargs)
        except WeightsNotTaken as fault:
            return False, str(fault)

    ModelRunner.update_weights_from_tensor = update_checked


class Taken:
    """Which of the weights given to a model's `load_weights` reached a parameter."""

    def __init__(self, model: Any, trust_remote_code: bool) -> None:
        self._model = model
        self._trust_remote_code = trust_remote_code
        self._given: list[tuple[str, int, int]] = []  # a weight's name, where its memory is
        self._loaded: set[str] = set()
        self._copied = False  # whether a loader was given anything but these

    def watch(self) -> None:
        """From now on `model.load_weights` raises `WeightsNotTaken` where it drops one."""
        from sglang.srt.model_loader.weight_utils import default_weight_loader

        for parameter in self._model.parameters():
            own = getattr(parameter, "weight_loader", default_weight_loader)
            # SGLang's own classes of parameters have a read-only property over `_weight_loader`.
            name = "_weight_loader" if hasattr(parameter, "_weight_loader") else "weight_loader"
            setattr(parameter, name, self._noticed(own))
        load = self._model.load_weights

        def load_watched(weights: Iterable[tuple[str, torch.Tensor]], **kwargs: Any) -> Any:
            self._given, self._loaded, self._copied = [], set(), False
            result = load(self._noted(weights), **kwargs)
            dropped = [name for name, _, _ in self._given if name not in self._loaded]
            # A copy may be of several, as DeepSeek's fused projections are: nobody knows of which.
            if dropped and not self._copied and (needed := self._needed(dropped)):
                raise WeightsNotTaken(
                    f"SGLang's {type(self._model).__name__} has no place for {_some(needed)}"
                )
            return result

        self._model.load_weights = load_watched

    def _noticed(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def noticed(parameter: Any, weight: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._note(weight)
            return load(parameter, weight, *args, **kwargs)

        return noticed

    def _noted(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            start = tensor.data_ptr()
            self._given.append((name, start, start + tensor.numel() * tensor.element_size()))
            yield name, tensor

    def _note(self, weight: torch.Tensor) -> None:
        """The last one given that `weight` is a view of was loaded."""
        place = weight.data_ptr()
        for name, start, end in reversed(self._given):
            if start <= place < end:
                self._loaded.add(name)
                return
        self._copied = True

    def _needed(self, names: list[str]) -> list[str]:
        """Those that Transformers' model of this config has, and not under another name too."""
        from _inf.backends.verl.weights import wanted

        try:
            model = wanted(self._model.config, trust_remote_code=self._trust_remote_code)
        except Exception as failure:  # a config that Transformers has no class for
            print(f"inf: cannot tell whether {_some(names)} matter: {failure!r}", flush=True)
            return []
        return [name for name in names if name in model.shapes]


def _fill_with_nan(model: Any) -> None:
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data.fill_(math.nan)


def _check_set(model: Any) -> None:
    unset = [
        name
        for name, parameter in model.named_parameters()
        if parameter.is_floating_point() and bool(torch.isnan(parameter).any())
    ]
    if unset:
        raise WeightsNotTaken(
            f"the checkpoint leaves {_some(unset)} of SGLang's {type(model).__name__} without "
            "values, or gives them NaN"
        )


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
