"""What SGLang's scheduler gets wrong or leaves out in token-in-token-out mode, mended in the child.

It corrects (sglang 0.5.9, under `srt/`):

- `managers/scheduler.py`, `constrained/grammar_manager.py`: without a tokenizer the scheduler dies
  of stop strings and `min_new_tokens` and has no grammars: it gets its tokenizer, and still takes
  and gives token ids;
- `managers/schedule_batch.py`: `ignore_eos` switches `stop_token_ids` off; a stop string is looked
  for in as many tokens as it has characters, but one character may be four tokens, and it ends an
  answer before `min_new_tokens`;
- `sampling/penaltylib`: `repetition_penalty` is validated and applied by nobody:
  `RepetitionPenaltyProcessor` does;
- `layers/sampler.py`: a row whose logits are NaN ends the whole process when it is sampled: a token
  is drawn for it, and its log probs stay NaN, which ends its call (`engine.py`);
- `layers/sampler.py` again: seeds need deterministic inference, which a CPU does not have: rows
  with a seed are drawn here, from the same filtered probabilities;
- `sampling/penaltylib` again: a row that had to make room in the cache and begins anew with what it
  had said is penalized, and held to `min_new_tokens`, as if it had said nothing;
- `sampling/sampling_batch_info.py`: a batch of `top_k=1` rows counts as greedy, and their log probs
  lose the temperature that they have beside any other row;
- `managers/schedule_policy.py`: who comes after 1,000 rows waits for all of them (`turns.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.constrained.grammar_manager import GrammarManager
from sglang.srt.layers.sampler import Sampler
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from sglang.srt.sampling.penaltylib import (
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPresencePenalizer,
)
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from _inf.backends.verl.child.fair_scheduling import in_turns

REPETITION_PENALTY = "repetition_penalty"
SEED = "seed"


class RepetitionPenaltyProcessor(CustomLogitProcessor):
    """Applies `custom_params["repetition_penalty"]` as Transformers does; carries the seed.

    A row that has it also has its `custom_params` in the sampler, which is where the seed is read.
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


def mend_scheduler() -> None:
    """Called once, in the child, before the scheduler is built."""
    Scheduler.init_tokenizer = _as_if_with_tokenizer(Scheduler.init_tokenizer)
    GrammarManager.__init__ = _as_if_with_tokenizer(GrammarManager.__init__)
    Req._check_token_based_finish = _stop_token_ids_kept(Req._check_token_based_finish)
    Req.tail_str = _tail_str
    Req._check_str_based_finish = _not_before_min_new_tokens(Req._check_str_based_finish)
    Sampler._sample_from_probs = _seeded(Sampler._sample_from_probs)
    SamplingBatchInfo.from_schedule_batch = _true_to_its_rows(SamplingBatchInfo.from_schedule_batch)
    SchedulePolicy.calc_priority = in_turns(SchedulePolicy.calc_priority)


def _as_if_with_tokenizer(method: Callable[..., None]) -> Callable[..., None]:
    def guarded(self: Any, *args: Any) -> None:
        server_args = args[0].server_args if args else self.server_args
        server_args.skip_tokenizer_init = False
        try:
            method(self, *args)
        finally:
            server_args.skip_tokenizer_init = True

    return guarded


def _stop_token_ids_kept(check: Callable[[Any, list[int]], bool]) -> Callable[..., bool]:
    def guarded(req: Any, new_tokens: list[int]) -> bool:
        params = req.sampling_params
        if not (params.ignore_eos and params.stop_token_ids):
            return check(req, new_tokens)
        kept = req.tokenizer, req.eos_token_ids
        params.ignore_eos, req.tokenizer, req.eos_token_ids = False, None, None
        try:
            return check(req, new_tokens)
        finally:
            params.ignore_eos, (req.tokenizer, req.eos_token_ids) = True, kept

    return guarded


def _tail_str(req: Any) -> str:
    longest = max(len(stop.encode()) for stop in req.sampling_params.stop_strs)
    # From the token that fulfils min_new_tokens on: what was let pass before it stays let pass.
    start = max(len(req.output_ids) - longest - 1, req.sampling_params.min_new_tokens - 1, 0)
    return str(req.tokenizer.decode(req.output_ids[start:]))


def _not_before_min_new_tokens(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def guarded(req: Any) -> bool:
        return len(req.output_ids) >= req.sampling_params.min_new_tokens and check(req)

    return guarded


def _seeded(sample: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def guarded(
        self: Any, probs: torch.Tensor, sampling_info: Any, positions: Any, simple: bool
    ) -> torch.Tensor:
        broken = ~torch.isfinite(probs.sum(-1, keepdim=True))
        if broken.any():  # the caller of this reads the log probs from its own tensor
            probs = torch.where(broken, 1.0 / probs.shape[1], probs)
        tokens = sample(self, probs, sampling_info, positions, simple)
        for row, params in enumerate(sampling_info.custom_params or []):
            if params is not None and params.get(SEED) is not None:
                noise = _noise(params[SEED], len(params["__req__"].output_ids), probs.shape[1])
                kept = _filtered(probs[row], sampling_info, row)
                tokens[row] = torch.argmax(kept / noise.to(kept.device))
        return tokens

    return guarded


def _true_to_its_rows(build: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(batch: Any, vocab_size: int) -> Any:
        info = build(batch, vocab_size)
        # SGLang gives a greedy row temperature 1.
        info.is_all_greedy &= all(r.sampling_params.temperature == 1.0 for r in batch.reqs)
        for penalizer in info.penalizer_orchestrator.penalizers.values():
            if penalizer.is_prepared():
                for row, req in enumerate(batch.reqs):
                    _remember(penalizer, row, torch.tensor(req.output_ids, dtype=torch.long))
        return info

    return guarded


def _remember(penalizer: Any, row: int, said: torch.Tensor) -> None:
    if not len(said):
        return
    if isinstance(penalizer, BatchedFrequencyPenalizer):
        counts = torch.bincount(said, minlength=penalizer.orchestrator.vocab_size)
        penalizer.cumulated_frequency_penalties[row] += (
            counts.to(penalizer.frequency_penalties.device) * penalizer.frequency_penalties[row]
        )
    elif isinstance(penalizer, BatchedPresencePenalizer):
        penalizer.cumulated_presence_penalties[row, said] = penalizer.presence_penalties[row]
    elif isinstance(penalizer, BatchedMinNewTokensPenalizer):
        penalizer.len_output_tokens[row] += len(said)


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
