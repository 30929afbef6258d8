"""Draws the tokens of a batch in place of SGLang's `layers/sampler.py`.

A batch with seeds of SGLang's own (its deterministic mode) takes SGLang's path. On a GPU no step
waits for the device here, unless a row has filters, and then as often for one row as for many.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from _inf.backends import draws
from _inf.backends.verl.child.compiled_draws import CompiledDraws
from _inf.backends.verl.child.masks import custom_rows
from _inf.backends.verl.patch_table import Replace, Wrap
from _inf.backends.verl.sglang_format import LOGPROB_IDS, SAMPLING_MASK, SEED

SMALLEST = torch.finfo(torch.float32).tiny  # of normal numbers, 1.2e-38
KEPT = "inf_kept"  # on SGLang's record of a batch: what the filters left, for rows that ask for it

Sample = Callable[..., torch.Tensor]


def sample(
    original: Sample,
    probs: torch.Tensor,
    sampling_seed: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    if sampling_seed is not None:
        return original(probs, sampling_seed, positions)
    return draws.draw(probs).int()


def sample_filtered(
    compiled: CompiledDraws | None,
    original: Sample,
    probs: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    need_min_p_sampling: bool,
    sampling_seed: torch.Tensor | None,
    positions: torch.Tensor,
) -> torch.Tensor:
    if sampling_seed is not None or probs.device.type != "cpu":
        return original(
            probs, top_ks, top_ps, min_ps, need_min_p_sampling, sampling_seed, positions
        )
    filters = (column[:, None] for column in (top_ks, top_ps, min_ps))
    return draws.draw((compiled or draws).filtered(probs, *filters)).int()


def sample_beside_nan(
    sample: Sample,
    self: Any,
    probs: torch.Tensor,
    info: SamplingBatchInfo,
    positions: torch.Tensor,
    simple: bool,
) -> torch.Tensor:
    """Draw any token for a row of NaN; its log probs stay NaN, for which the parent raises an
    error. A row of a softmax is NaN everywhere or nowhere."""
    if not simple or probs.device.type == "cpu":  # without filters, a GPU's draw takes NaN
        probs = probs.contiguous()  # for min_p SGLang passes a part of float32 logits to a kernel
        broken = probs[:, :1].isnan()
        if broken.any():  # the caller reads the log probs from its own tensor
            probs = torch.where(broken, 1.0 / probs.shape[1], probs)
    return sample(self, probs, info, positions, simple)


def sample_own_rows(
    compiled: CompiledDraws | None,
    sample: Sample,
    self: Any,
    probs: torch.Tensor,
    info: SamplingBatchInfo,
    *args: object,
) -> torch.Tensor:
    """Draw rows with a seed or a sampling mask here, from the tokens that our filters leave, and
    note these for the mask. The other rows are SGLang's."""
    asked = _asked(info)
    if not asked:
        return sample(self, probs, info, *args)
    if len(asked) == len(probs):
        tokens = torch.empty(len(probs), dtype=torch.int32, device=probs.device)
    else:
        tokens = sample(self, probs, info, *args)
    rows = _placed([row for row, _, _ in asked], probs)
    kept = probs if len(asked) == len(probs) else probs[rows]
    if info.need_top_k_sampling or info.need_top_p_sampling or info.need_min_p_sampling:
        filters = (column[rows, None] for column in (info.top_ks, info.top_ps, info.min_ps))
        kept = (compiled or draws).filtered(kept, *filters)
    places, seeds = [_place(req) for _, req, _ in asked], [custom.get(SEED) for *_, custom in asked]
    by_seed = (compiled or draws).draw_by_seed
    drawn = draws.draw_rows(kept, seeds, places, by_seed=by_seed)
    tokens[rows] = drawn.to(tokens.dtype)
    if masked := [n for n, (*_, custom) in enumerate(asked) if SAMPLING_MASK in custom]:
        left = kept[_placed(masked, probs)].nonzero()
        vars(info)[KEPT] = [asked[number][0] for number in masked], left
    return tokens


def raise_zeros(sample: Sample, self: Any, probs: torch.Tensor, *args: Any) -> torch.Tensor:
    """Draw; then, on a CPU, put `SMALLEST` in the place of each probability below it. SGLang takes
    the logarithm of all of them, which takes ten times as long with zeros (MKL's, PyTorch 2.9)."""
    tokens = sample(self, probs, *args)
    if probs.is_cpu:
        probs.clamp_(min=SMALLEST)
    return tokens


def return_zeros(
    attach: Callable[..., None], self: Any, output: Any, logprobs: torch.Tensor, *args: Any
) -> None:
    """Return the log prob of 0 for the tokens that `raise_zeros` changed. The log probs of a batch
    of greedy rows are not from probabilities."""
    if logprobs.is_cpu and not args[2].is_all_greedy:
        # Of twice as much, as logarithms are rounded.
        torch.threshold_(logprobs, math.log(2 * SMALLEST), -math.inf)
    attach(self, output, logprobs, *args)


def agree_with_others(agree: Callable[..., None], self: Any, *args: object) -> None:
    if self.tp_sync_group.size() > 1:
        agree(self, *args)


def return_kept(
    attach: Callable[..., None], self: Any, output: Any, logprobs: torch.Tensor, *args: Any
) -> None:
    """Return the noted tokens and their log probs in the place of the likeliest ones."""
    attach(self, output, logprobs, *args)
    rows, left = vars(args[2]).pop(KEPT, ((), None))
    if left is None:
        return
    values = logprobs[_placed(rows, logprobs)[left[:, 0]], left[:, 1]].cpu()
    left = left.cpu()
    counts = torch.bincount(left[:, 0], minlength=len(rows)).tolist()
    of_each_row = values.split(counts), left[:, 1].split(counts)
    for row, logprobs_left, tokens in zip(rows, *of_each_row, strict=True):
        output.next_token_top_logprobs_val[row] = logprobs_left.tolist()
        output.next_token_top_logprobs_idx[row] = tokens.tolist()


def return_named(
    attach: Callable[..., None], self: Any, output: Any, logprobs: torch.Tensor, *args: Any
) -> None:
    """Return the log probs of the ids that rows ask for in the place of the likeliest ones."""
    attach(self, output, logprobs, *args)
    named = [
        (row, ids)
        for row, _, custom in custom_rows(args[2].penalizer_orchestrator.reqs())
        if (ids := custom.get(LOGPROB_IDS))
    ]
    if not named:
        return
    rows = _placed([row for row, ids in named for _ in ids], logprobs)
    columns = _placed([token for _, ids in named for token in ids], logprobs)
    values = logprobs[rows, columns].cpu().split([len(ids) for _, ids in named])
    for (row, ids), of_row in zip(named, values, strict=True):
        output.next_token_top_logprobs_val[row] = of_row.tolist()
        output.next_token_top_logprobs_idx[row] = ids


def temperature_of_top_k_1(build: Callable[..., Any], batch: ScheduleBatch, vocab_size: int) -> Any:
    info = build(batch, vocab_size)
    # SGLang gives a greedy row temperature 1.
    info.is_all_greedy &= all(req.sampling_params.temperature == 1.0 for req in batch.reqs)
    return info


def _asked(info: SamplingBatchInfo) -> list[tuple[int, Req, dict[str, Any]]]:
    """Those of `custom_rows` with a seed or a sampling mask."""
    return [
        (row, req, custom)
        for row, req, custom in custom_rows(info.penalizer_orchestrator.reqs())
        if SEED in custom or SAMPLING_MASK in custom
    ]


def _place(req: Req) -> int:
    """The place of the token that is drawn in the request's answer. Its `output_ids` lack a token
    in the overlap schedule; a step that computes a part of a prompt only has no place."""
    tokens: int = req.kv_committed_len - len(req.origin_input_ids)
    return max(0, tokens)


def _placed(numbers: list[int], like: torch.Tensor) -> torch.Tensor:
    """A list would be copied to a GPU only after all that was begun there has ended."""
    return torch.tensor(numbers).to(like.device, non_blocking=True)


def patches(compiled: CompiledDraws | None = None) -> list[Replace]:
    """The table of patches; of rows for one function the later ones are outside."""
    module = "sglang.srt.layers.sampler"
    # fmt: off
    return [
        Wrap(f"{module}:sampling_from_probs_torch", sample,
             "torch.multinomial draws a random number for each token of the vocabulary, on one "
             "core; on a GPU a row of NaN ends the process"),
        Wrap(f"{module}:top_k_top_p_min_p_sampling_from_probs_torch",
             functools.partial(sample_filtered, compiled),
             "it sorts the whole vocabulary to keep a few tokens"),
        Wrap(f"{module}:Sampler._sample_from_probs", functools.partial(sample_own_rows, compiled),
             "seeds need deterministic inference, which a CPU does not have; it does not say which "
             "tokens the filters leave, and beside min_p a GPU filters one after the other"),
        Wrap(f"{module}:Sampler._attach_logprobs_to_output", return_kept,
             "it does not say which tokens the filters leave"),
        Wrap(f"{module}:Sampler._attach_logprobs_to_output", return_named,
             "with token_ids_logprob, its own parameter, a row without it that begins beside one "
             "with it gets the log probs of the whole vocabulary (layers/utils/logprob.py)"),
        Wrap(f"{module}:Sampler._sample_from_probs", sample_beside_nan,
             "a row whose logits are NaN ends the whole process when it is sampled"),
        Wrap(f"{module}:Sampler._sample_from_probs", raise_zeros,
             "its logarithm of probabilities is slow on a CPU where a grammar or a low temperature "
             "leaves zeros"),
        Wrap(f"{module}:Sampler._attach_logprobs_to_output", return_zeros,
             "the other half of the row above"),
        Wrap(f"{module}:Sampler._sync_token_ids_across_tp", agree_with_others,
             "beside a grammar one rank, too, agrees on each step's tokens with itself"),
        Wrap("sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo.from_schedule_batch",
             temperature_of_top_k_1,
             "a batch of top_k=1 rows counts as greedy, and their log probs lose the temperature "
             "that they have beside any other row"),
    ]
    # fmt: on
