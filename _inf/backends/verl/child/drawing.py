"""Draws the tokens of a batch in place of SGLang's `layers/sampler.py`.

A batch with seeds of SGLang's own (its deterministic mode) takes SGLang's path. On a GPU no step
waits for the device here, unless a row has filters, and then as often for one row as for many.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from _inf.backends import draws
from _inf.backends.verl.child.compiled_draws import CompiledDraws
from _inf.backends.verl.patch_table import Process, Replace, Wrap
from _inf.backends.verl.sglang_format import KEEP_FILTERED, SEED, custom_of

if TYPE_CHECKING:
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput

SMALLEST = torch.finfo(torch.float32).tiny  # of normal numbers, 1.2e-38
KEPT = "inf_kept"  # on SGLang's record of a batch: rows that ask for it, and what filters left them

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


def sample_beside_nan(
    sample: Sample,
    self: object,
    probs: torch.Tensor,
    info: SamplingBatchInfo,
    positions: torch.Tensor,
    simple: bool,
) -> torch.Tensor:
    """Draw any token for a row of NaN; its log probs stay NaN, for which the parent raises an
    error. A row of a softmax is NaN everywhere or nowhere."""
    if not simple:  # without filters a draw takes NaN
        probs = probs.contiguous()  # for min_p SGLang passes a part of float32 logits to a kernel
        broken = probs[:, :1].isnan()
        if broken.any():  # the caller reads the log probs from its own tensor
            probs = torch.where(broken, 1.0 / probs.shape[1], probs)
    return sample(self, probs, info, positions, simple)


def sample_own_rows(
    compiled: CompiledDraws | None,
    sample: Sample,
    self: object,
    probs: torch.Tensor,
    info: SamplingBatchInfo,
    *args: object,
) -> torch.Tensor:
    """Draw rows with a seed or `KEEP_FILTERED` here, and on a CPU all rows, from the tokens that
    our filters leave. The other rows are SGLang's."""
    own = _own_rows(info, every=probs.device.type == "cpu")
    if not own:
        return sample(self, probs, info, *args)
    if len(own) == len(probs):
        tokens = torch.empty(len(probs), dtype=torch.int32, device=probs.device)
    else:
        tokens = sample(self, probs, info, *args)
    rows = _placed([row for row, _, _ in own], probs)
    kept = probs if len(own) == len(probs) else probs[rows]
    if info.need_top_k_sampling or info.need_top_p_sampling or info.need_min_p_sampling:
        filters = (column[rows, None] for column in (info.top_ks, info.top_ps, info.min_ps))
        kept = (compiled or draws).filtered(kept, *filters)
    places, seeds = [_place(req) for _, req, _ in own], [custom.get(SEED) for *_, custom in own]
    by_seed = (compiled or draws).draw_by_seed
    drawn = draws.draw_rows(kept, seeds, places, by_seed=by_seed)
    tokens[rows] = drawn.to(tokens.dtype)
    if masked := [n for n, (*_, custom) in enumerate(own) if KEEP_FILTERED in custom]:
        left = kept[_placed(masked, probs)].nonzero()
        vars(info)[KEPT] = [own[number][0] for number in masked], left
    return tokens


def raise_zeros(sample: Sample, self: object, probs: torch.Tensor, *args: object) -> torch.Tensor:
    """Draw; then, on a CPU, put `SMALLEST` in the place of each probability below it. SGLang takes
    the logarithm of all of them, which takes ten times as long with zeros (MKL's, PyTorch 2.9)."""
    tokens = sample(self, probs, *args)
    if probs.is_cpu:
        probs.clamp_(min=SMALLEST)
    return tokens


def return_zeros(
    attach: Callable[..., None],
    self: object,
    output: LogitsProcessorOutput,
    logprobs: torch.Tensor,
    top_logprobs: object,
    token_ids: object,
    info: SamplingBatchInfo,
    *args: object,
) -> None:
    """Return the log prob of 0 for the tokens that `raise_zeros` changed. The log probs of a batch
    of greedy rows are not from probabilities."""
    if logprobs.is_cpu and not info.is_all_greedy:
        # Of twice as much, as logarithms are rounded.
        torch.threshold_(logprobs, math.log(2 * SMALLEST), -math.inf)
    attach(self, output, logprobs, top_logprobs, token_ids, info, *args)


def list_tokens(
    output: LogitsProcessorOutput, logprobs: torch.Tensor, asked: Mapping[int, list[int]]
) -> None:
    """List the log probs of these tokens of rows in the place of the likeliest ones."""
    if not asked:
        return
    places = _placed([row for row, ids in asked.items() for _ in ids], logprobs)
    tokens = _placed([token for ids in asked.values() for token in ids], logprobs)
    values = logprobs[places, tokens].cpu().split([len(ids) for ids in asked.values()])
    for (row, ids), of_row in zip(asked.items(), values, strict=True):
        output.next_token_top_logprobs_val[row] = of_row.tolist()
        output.next_token_top_logprobs_idx[row] = ids


def temperature_of_top_k_1(
    build: Callable[..., SamplingBatchInfo], batch: ScheduleBatch, vocab_size: int
) -> SamplingBatchInfo:
    info = build(batch, vocab_size)
    # SGLang gives a greedy row temperature 1.
    info.is_all_greedy &= all(req.sampling_params.temperature == 1.0 for req in batch.reqs)
    return info


def _own_rows(info: SamplingBatchInfo, every: bool) -> list[tuple[int, Req, dict[str, Any]]]:
    """The number, the request and the `custom_params` of each row, or of those that must be drawn
    here."""
    reqs = enumerate(info.penalizer_orchestrator.reqs())
    rows = ((row, req, custom_of(req)) for row, req in reqs)
    return [each for each in rows if every or not {SEED, KEEP_FILTERED}.isdisjoint(each[2])]


def _place(req: Req) -> int:
    """The place of the token that is drawn in the request's answer. Its `output_ids` lack a token
    in the overlap schedule; a step that computes a part of a prompt only has no place."""
    tokens: int = req.kv_committed_len - len(req.origin_input_ids)
    return max(0, tokens)


def _placed(numbers: list[int], like: torch.Tensor) -> torch.Tensor:
    """A list would be copied to a GPU only after all that was begun there has ended."""
    return torch.tensor(numbers).to(like.device, non_blocking=True)


def patches(process: Process) -> list[Replace]:
    module = "sglang.srt.layers.sampler"
    own_rows = functools.partial(sample_own_rows, process.compiled_draws)
    # fmt: off
    return [
        Wrap(f"{module}:sampling_from_probs_torch", sample,
             "on a GPU a row of NaN ends the process"),
        Wrap(f"{module}:Sampler._sample_from_probs", own_rows,
             "on a CPU it draws a random number for each token of the vocabulary, on one core, "
             "and sorts all of them to keep a few; seeds need deterministic inference, which a "
             "CPU does not have; and with min_p a GPU filters one after the other"),
        Wrap(f"{module}:Sampler._sample_from_probs", sample_beside_nan,
             "a row whose logits are NaN ends the whole process when it is sampled"),
        Wrap(f"{module}:Sampler._sample_from_probs", raise_zeros,
             "its logarithm of probabilities is slow on a CPU where a grammar or a low temperature "
             "leaves zeros"),
        Wrap(f"{module}:Sampler._attach_logprobs_to_output", return_zeros,
             "the other half of the row above"),
        Wrap("sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo.from_schedule_batch",
             temperature_of_top_k_1,
             "a batch of top_k=1 rows counts as greedy, and their log probs lose the temperature "
             "that they have with any other row"),
    ]
    # fmt: on
