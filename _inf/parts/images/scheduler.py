"""Corrects how SGLang's scheduler keeps images."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from sglang.srt.managers import mm_utils
from torch.nn.functional import scaled_dot_product_attention

from _inf.backends.verl.patch_table import Process, Replace, Wrap

if TYPE_CHECKING:
    from sglang.srt.layers.attention.vision import VisionSdpaAttention
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


def attend_within_each(
    forward: Callable[..., torch.Tensor],
    self: VisionSdpaAttention,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bsz: int,
    cu_seqlens: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    **others: object,
) -> torch.Tensor:
    """Attend within each image, or window of one. q, k, v: patches x heads x width. cu_seqlens:
    where each begins, and the last one's end."""
    plain = self.flatten_batch and not self.softmax_in_single_precision
    if cu_seqlens is None or attention_mask is not None or not plain:
        return forward(self, q, k, v, bsz, cu_seqlens, attention_mask, **others)
    lengths = cu_seqlens.diff().tolist()
    each = zip(*(x.transpose(0, 1).split(lengths, dim=1) for x in (q, k, v)), strict=True)
    return torch.cat([scaled_dot_product_attention(*qkv) for qkv in each], dim=1).transpose(0, 1)


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
        *(() if process.device != "cpu" else [
            Wrap("sglang.srt.layers.attention.vision:VisionSdpaAttention.forward",
                 attend_within_each,
                 "it computes each patch with all patches of all images, masks the others, and "
                 "keeps up to 128 masks, of 28 MB each for an image of 1,024 x 1,024")]),
        Wrap("sglang.srt.model_loader.loader:_initialize_model", load_new_names_too,
             "models/qwen3_vl.py drops the weights of the image encoder, model.visual"),
    ]
    # fmt: on
