"""Compares a started engine with Transformers, for an architecture that `support` does not know.

Both score a few tokens, and the engine decodes a few more. Transformers computes in float32 on the
CPU, so only small models are compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from _inf.backends.model_info import file_bytes
from _inf.backends.verl.support import architecture
from _inf.errors import ConfigError, at_fault
from _inf.parts.prompt_logprobs import PromptScores
from _inf.runtime import quiet
from _inf.runtime.calls import CancelToken
from _inf.types import Request, RequestOutput, SamplingParams, Scored

MAX_BYTES = 2**30  # of weights, which are loaded a second time
TOKENS, DECODED = 24, 4
# A difference that float32 rounding explains if sums are taken in another order. In half precision
# rounding is as large as a fault.
WITHIN = 1e-3


@at_fault(key="model_path")
def check_unmeasured(backend: Any, folder: Path) -> None:
    """Raise `ConfigError` if the log probs differ from those of the model in `folder`. Warns if
    they cannot be compared: in half precision, for a large model, or for one that Transformers
    does not load."""
    rollout = backend.rollout
    hf_config = rollout.model_config.hf_config
    name = architecture(hf_config)
    limits = backend.model.limits
    count = max(1, min(TOKENS, limits.prompt, limits.total - DECODED))
    ids = [(7919 * index + 11) % limits.vocabulary for index in range(count)]
    expected, answer = None, _decoded(backend, ids, min(DECODED, limits.total - count))
    if file_bytes(folder) <= MAX_BYTES and rollout.dtype == torch.float32:
        expected = _transformers_logprobs(
            folder, ids + answer.token_ids, rollout.model_config.trust_remote_code
        )
    if expected is None:
        quiet.warn(
            f"{name} was never compared with Transformers on SGLang 0.5.9; compare it with `inf "
            "check`."
        )
        return
    [row] = backend.score([Scored(ids, 1)], CancelToken())
    scored = row.of(PromptScores)
    computed = [*scored.logprobs[1:], *answer.logprobs] if scored else []
    apart = [abs(ours - theirs) for ours, theirs in zip(computed, expected, strict=True)]
    if too_far := [difference for difference in apart if not difference <= WITHIN]:  # NaN too
        raise ConfigError(
            f"model_path: SGLang 0.5.9 does not compute {name} as Transformers does: of "
            f"{len(computed)} tokens, {len(too_far)} have a different log prob, by up to "
            f"{max(too_far):.2g}. Serve it elsewhere, or report it."
        )


def _decoded(backend: Any, ids: list[int], count: int) -> RequestOutput:
    """A greedy answer of `count` tokens, on this rank alone."""
    params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
    rows: list[RequestOutput] = []
    backend.stream(Request(ids, params), rows.append, CancelToken()).result()
    return rows[-1]


def _transformers_logprobs(
    folder: Path, ids: list[int], trust_remote_code: bool
) -> list[float] | None:
    """Log probs of `ids[1:]`; None if Transformers cannot load the model."""
    from transformers import AutoModelForCausalLM

    with quiet.third_party(), torch.no_grad():
        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="eager",
                trust_remote_code=trust_remote_code,
            ).eval()
        except Exception:  # no class for it, or no weights that it reads
            return None
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, :-1]
        table = torch.log_softmax(logits.double(), -1)
        return [float(value) for value in table[torch.arange(len(ids) - 1), ids[1:]]]
