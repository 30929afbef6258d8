"""Corrects how SGLang's scheduler keeps images."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from sglang.srt.managers import mm_utils

from _inf.backends.verl.patch_table import Process, Replace, Wrap

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import MultimodalInputs, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler

    Weights = Iterable[tuple[str, torch.Tensor]]

NEW_NAMES = re.compile(r"^model\.(visual\.)|^(model\.)language_model\.")


def number_of_images(owner: object) -> Callable[[list[int], MultimodalInputs], list[int]]:
    """Writes the number of a row's images in place of their tokens, for the prefix cache."""

    def padded(ids: list[int], inputs: MultimodalInputs) -> list[int]:
        ids = list(ids)
        for item in inputs.mm_items:
            for start, last in item.offsets:
                ids[start : last + 1] = [item.pad_value] * (last + 1 - start)
        return ids

    return padded


def with_their_tokens(prepare: Callable[[ScheduleBatch], None], batch: ScheduleBatch) -> None:
    """Read the log probs of a prompt's tokens from its own ids."""
    padded = {req: req.origin_input_ids for req in batch.reqs if req.multimodal_inputs is not None}
    for req in padded:
        req.origin_input_ids = req.origin_input_ids_unpadded
    try:
        prepare(batch)
    finally:
        for req, ids in padded.items():
            req.origin_input_ids = ids


def flush_images_too(flush: Callable[[Scheduler], bool], scheduler: Scheduler) -> bool:
    mm_utils.embedding_cache.clear()
    return flush(scheduler)


def load_new_names_too(
    initialize: Callable[..., torch.nn.Module], *args: object
) -> torch.nn.Module:
    model = initialize(*args)
    if hasattr(model, "visual"):
        model.load_weights = functools.partial(_with_old_names, model.load_weights)
    return model


def _with_old_names(load: Callable[..., object], weights: Weights, **kwargs: object) -> object:
    return load(((NEW_NAMES.sub(r"\1\2", name), weight) for name, weight in weights), **kwargs)


def patches(process: Process) -> list[Replace]:
    # fmt: off
    return [
        Replace("sglang.srt.managers.tp_worker:TpModelWorker.get_pad_input_ids_func",
                number_of_images,
                "managers/mm_utils.py takes an image's token that the model has sampled for an "
                "image too, and the process dies for want of its pixels"),
        Wrap("sglang.srt.managers.schedule_batch:ScheduleBatch.prepare_for_extend",
             with_their_tokens,
             "in a prompt's log probs an image's tokens are the numbers, cut to the vocabulary"),
        Wrap("sglang.srt.managers.scheduler:Scheduler.flush_cache", flush_images_too,
             "after new weights it keeps the images that the old ones have encoded"),
        Wrap("sglang.srt.model_loader.loader:_initialize_model", load_new_names_too,
             "models/qwen3_vl.py drops the weights of the image encoder, model.visual"),
    ]
    # fmt: on
