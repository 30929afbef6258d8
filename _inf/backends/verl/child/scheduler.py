"""What SGLang's scheduler gets wrong or leaves out in token-in-token-out mode, corrected.

`patches.py` says which file of sglang 0.5.9 each function corrects, and why. Beside them is the one
processor of logits that requests carry themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from sglang.srt.sampling.penaltylib import (
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPresencePenalizer,
)

REPETITION_PENALTY = "repetition_penalty"
SEED = "seed"

Sample = Callable[..., torch.Tensor]


class RepetitionPenaltyProcessor(CustomLogitProcessor):
    """Applies `custom_params["repetition_penalty"]` as Transformers does; carries the seed.

    SGLang 0.5.9 validates a `repetition_penalty` that nothing applies (`srt/sampling/penaltylib`).
    A row that has this processor has its `custom_params` in the sampler too, which reads the seed.
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
    """Load the tokenizer, also where the scheduler takes and gives token ids; `method` is the
    scheduler's own, or has the scheduler for its argument."""
    server_args = (args[0] if args else self).server_args
    server_args.skip_tokenizer_init = False
    try:
        method(self, *args)
    finally:
        server_args.skip_tokenizer_init = True


def stop_token_ids_beside_ignore_eos(
    check: Callable[[Any, list[int]], bool], req: Any, new_tokens: list[int]
) -> bool:
    """Checked with nothing but the request's own stop tokens: the EOS ids are hidden."""
    params = req.sampling_params
    if not (params.ignore_eos and params.stop_token_ids):
        return check(req, new_tokens)
    kept = req.tokenizer, req.eos_token_ids
    params.ignore_eos, req.tokenizer, req.eos_token_ids = False, None, None
    try:
        return check(req, new_tokens)
    finally:
        params.ignore_eos, (req.tokenizer, req.eos_token_ids) = True, kept


def tail_str(req: Any) -> str:
    """The text in which a stop string is looked for."""
    longest = max(len(stop.encode()) for stop in req.sampling_params.stop_strs)
    # From the token that fulfils min_new_tokens on: what was let pass before it stays let pass.
    start = max(len(req.output_ids) - longest - 1, req.sampling_params.min_new_tokens - 1, 0)
    return str(req.tokenizer.decode(req.output_ids[start:]))


def no_stop_string_before_min_new_tokens(check: Callable[[Any], bool], req: Any) -> bool:
    return len(req.output_ids) >= req.sampling_params.min_new_tokens and check(req)


def sample_beside_nan(sample: Sample, self: Any, probs: torch.Tensor, *args: Any) -> torch.Tensor:
    """Some token is drawn for a row of NaN; its log probs stay NaN, which ends its call
    (`_inf.backends.verl.engine`)."""
    broken = ~torch.isfinite(probs.sum(-1, keepdim=True))
    if broken.any():  # the caller of this reads the log probs from its own tensor
        probs = torch.where(broken, 1.0 / probs.shape[1], probs)
    return sample(self, probs, *args)


def sample_by_seed(
    sample: Sample, self: Any, probs: torch.Tensor, info: Any, *args: Any
) -> torch.Tensor:
    """Rows with a seed are drawn here, from the same filtered probabilities."""
    tokens = sample(self, probs, info, *args)
    for row, params in enumerate(info.custom_params or []):
        if params is not None and params.get(SEED) is not None:
            noise = _noise(params[SEED], len(params["__req__"].output_ids), probs.shape[1])
            kept = _filtered(probs[row], info, row)
            tokens[row] = torch.argmax(kept / noise.to(kept.device))
    return tokens


def _noise(seed: int, position: int, width: int) -> torch.Tensor:
    """Exponential noise that depends on nothing else: argmax(probs / noise) samples from probs."""
    digest = hashlib.blake2b(f"{seed} {position}".encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
    return torch.empty(width).exponential_(generator=generator)


def _filtered(probs: torch.Tensor, info: Any, row: int) -> torch.Tensor:
    """One row's probabilities with what top-k, top-p and min-p leave out at zero."""
    if not (info.need_top_k_sampling or info.need_top_p_sampling or info.need_min_p_sampling):
        return probs
    ordered, order = probs.sort(descending=True)
    out = ordered.cumsum(0) - ordered > info.top_ps[row]
    out |= torch.arange(len(ordered), device=probs.device) >= info.top_ks[row]
    out |= ordered < ordered[0] * info.min_ps[row]
    return torch.zeros_like(probs).scatter(0, order, ordered.masked_fill(out, 0.0))


def temperature_of_top_k_1(build: Callable[..., Any], batch: Any, vocab_size: int) -> Any:
    info = build(batch, vocab_size)
    # SGLang gives a greedy row temperature 1.
    info.is_all_greedy &= all(req.sampling_params.temperature == 1.0 for req in batch.reqs)
    return info


def penalties_of_retracted_rows(build: Callable[..., Any], batch: Any, vocab_size: int) -> Any:
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
