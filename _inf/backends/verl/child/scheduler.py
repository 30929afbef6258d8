"""Corrects what SGLang's scheduler gets wrong or leaves out in token-in-token-out mode.

`patches.py` says which file of sglang 0.5.9 each function corrects, and why. Also here is
the logits processor that requests carry themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from sglang.srt.sampling.penaltylib import (
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPresencePenalizer,
)

from _inf.backends import draws
from _inf.backends.verl.sampling import SAMPLING_MASK

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

REPETITION_PENALTY = "repetition_penalty"
SEED = "seed"
KEPT = "inf_kept"  # by row, on SGLang's record of a batch

Sample = Callable[..., torch.Tensor]


class RepetitionPenaltyProcessor(CustomLogitProcessor):
    """Applies `custom_params["repetition_penalty"]` as Transformers does; carries the seed.

    SGLang 0.5.9 validates a `repetition_penalty` but never applies it (`srt/sampling/penaltylib`).
    With this processor a row's `custom_params` also reach the sampler, which reads the seed.
    """

    def __call__(
        self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None
    ) -> torch.Tensor:
        for row, params in enumerate(custom_param_list or []):
            penalty = params.get(REPETITION_PENALTY, 1.0)
            if penalty != 1.0:
                req = params["__req__"]
                seen = sorted({*req.origin_input_ids, *req.output_ids})
                scores = logits[row, seen]
                logits[row, seen] = torch.where(scores < 0, scores * penalty, scores / penalty)
        return logits


def with_tokenizer(method: Callable[..., None], self: Any, *args: Any) -> None:
    """Load the tokenizer although requests and answers are token ids; `method` is a method of the
    scheduler, or takes the scheduler as its argument."""
    server_args = (args[0] if args else self).server_args
    server_args.skip_tokenizer_init = False
    try:
        method(self, *args)
    finally:
        server_args.skip_tokenizer_init = True


def stop_token_ids_beside_ignore_eos(
    check: Callable[[Any, list[int]], bool], req: Req, new_tokens: list[int]
) -> bool:
    """Check only the request's own stop tokens, with the EOS ids hidden."""
    params = req.sampling_params
    if not (params.ignore_eos and params.stop_token_ids):
        return check(req, new_tokens)
    kept = req.tokenizer, req.eos_token_ids
    params.ignore_eos, req.tokenizer, req.eos_token_ids = False, None, None
    try:
        return check(req, new_tokens)
    finally:
        params.ignore_eos, (req.tokenizer, req.eos_token_ids) = True, kept


def tail_str(req: Req) -> str:
    """Return the text in which stop strings are searched."""
    longest = max(len(stop.encode()) for stop in req.sampling_params.stop_strs)
    # Begin at the token that fulfils min_new_tokens: stop strings before that token do not count.
    start = max(len(req.output_ids) - longest - 1, req.sampling_params.min_new_tokens - 1, 0)
    return str(req.tokenizer.decode(req.output_ids[start:]))


def no_stop_string_before_min_new_tokens(check: Callable[[Any], bool], req: Req) -> bool:
    return len(req.output_ids) >= req.sampling_params.min_new_tokens and check(req)


def sample_beside_nan(
    sample: Sample, self: Any, probs: torch.Tensor, *args: object
) -> torch.Tensor:
    """Draw any token for a row of NaN; its log probs stay NaN, for which
    `_inf.backends.verl.engine` raises an error."""
    broken = ~torch.isfinite(probs.sum(-1, keepdim=True))
    if broken.any():  # the caller reads the log probs from its own tensor
        probs = torch.where(broken, 1.0 / probs.shape[1], probs)
    return sample(self, probs, *args)


def sample_by_seed(
    sample: Sample, self: Any, probs: torch.Tensor, info: SamplingBatchInfo, *args: object
) -> torch.Tensor:
    """Draw rows with a seed here, from the same filtered probabilities."""
    tokens = sample(self, probs, info, *args)
    for row, params, kept in _filtered_rows(probs, info, SEED):
        tokens[row] = draws.draw_by_seed(kept, params[SEED], len(params["__req__"].output_ids))
    return tokens


def remember_kept(
    sample: Sample, self: Any, probs: torch.Tensor, info: SamplingBatchInfo, *args: object
) -> torch.Tensor:
    """Note which tokens the filters leave in rows that ask for them, before one is drawn."""
    vars(info)[KEPT] = {
        row: kept.nonzero()[:, 0] for row, _, kept in _filtered_rows(probs, info, SAMPLING_MASK)
    }
    return sample(self, probs, info, *args)


def return_kept(
    attach: Callable[..., None], self: Any, output: Any, logprobs: torch.Tensor, *args: Any
) -> None:
    """Return these tokens and their log probs in the place of the likeliest ones."""
    attach(self, output, logprobs, *args)
    info = args[2]
    for row, kept in vars(info).pop(KEPT, {}).items():
        output.next_token_top_logprobs_val[row] = logprobs[row, kept].tolist()
        output.next_token_top_logprobs_idx[row] = kept.tolist()


def unpinned_without_a_gpu(
    build: Callable[..., None],
    self: Any,
    num_tokens: int,
    num_hidden_layers: int,
    num_experts_per_tok: int,
) -> None:
    """Allocate the buffer of each token's experts in ordinary memory."""
    if torch.cuda.is_available():
        build(self, num_tokens, num_hidden_layers, num_experts_per_tok)
        return
    self.num_tokens = num_tokens
    self.buffer = torch.zeros(
        (num_tokens, num_hidden_layers, num_experts_per_tok), dtype=torch.int32
    )


def _filtered_rows(
    probs: torch.Tensor, info: SamplingBatchInfo, name: str
) -> list[tuple[int, dict[str, Any], torch.Tensor]]:
    """The rows whose `custom_params` set `name`: each one's number, these parameters, and its
    probabilities, zero for tokens that top-k, top-p or min-p excludes."""
    asked = [
        (row, params)
        for row, params in enumerate(info.custom_params or [])
        if params is not None and params.get(name) is not None
    ]
    if not asked:
        return []
    rows = [row for row, _ in asked]
    kept = probs[rows]
    if info.need_top_k_sampling or info.need_top_p_sampling or info.need_min_p_sampling:
        filters = (column[rows, None] for column in (info.top_ks, info.top_ps, info.min_ps))
        kept = draws.filtered(kept, *filters)
    return [(row, params, own) for (row, params), own in zip(asked, kept, strict=True)]


def temperature_of_top_k_1(build: Callable[..., Any], batch: ScheduleBatch, vocab_size: int) -> Any:
    info = build(batch, vocab_size)
    # SGLang gives a greedy row temperature 1.
    info.is_all_greedy &= all(req.sampling_params.temperature == 1.0 for req in batch.reqs)
    return info


def penalties_of_retracted_rows(
    build: Callable[..., Any], batch: ScheduleBatch, vocab_size: int
) -> Any:
    info = build(batch, vocab_size)
    for penalizer in info.penalizer_orchestrator.penalizers.values():
        if penalizer.is_prepared():
            for row, req in enumerate(batch.reqs):
                if req.output_ids:
                    _remember(penalizer, row, torch.tensor(req.output_ids, dtype=torch.long))
    return info


def _remember(penalizer: Any, row: int, generated: torch.Tensor) -> None:
    if isinstance(penalizer, BatchedFrequencyPenalizer):
        counts = torch.bincount(generated, minlength=penalizer.orchestrator.vocab_size)
        penalizer.cumulated_frequency_penalties[row] += (
            counts.to(penalizer.frequency_penalties.device) * penalizer.frequency_penalties[row]
        )
    elif isinstance(penalizer, BatchedPresencePenalizer):
        penalizer.cumulated_presence_penalties[row, generated] = penalizer.presence_penalties[row]
    elif isinstance(penalizer, BatchedMinNewTokensPenalizer):
        penalizer.len_output_tokens[row] += len(generated)
