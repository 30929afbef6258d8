"""Does a started engine compute what Transformers does? Asked of architectures nobody measured.

In: a rollout whose model `_inf.backends.verl.support` does not know. Out: nothing, or a
`ConfigError`. A few tokens are scored by both, in float32 on the CPU on Transformers' side, so a
model is tried only where it is small; where it is not, a warning says so.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from _inf.backends.verl.support import architecture, is_measured
from _inf.errors import ConfigError
from _inf.runtime import quiet
from _inf.types import CancelToken

MOST_BYTES = 2**30  # of weights, which are loaded a second time
TOKENS = 24
# What the rounding of float32 explains, in other orders of summing. Half precision's explains more
# than can be told from a fault.
WITHIN = 1e-3


def check_unmeasured(
    backend: Any, folder: Path, weight_bytes: int, *, trust_remote_code: bool
) -> None:
    """Compare the log probs of `TOKENS` tokens; `weight_bytes`: of the folder's files.

    A warning says where that cannot be done: in half precision, of a large model, of one that
    Transformers does not load.
    """
    rollout = backend.rollout
    name = architecture(rollout.model_config.hf_config)
    if rollout.pool is None or is_measured(name):  # no pool: another rank holds the engine
        return
    expected = None
    if weight_bytes <= MOST_BYTES and rollout.dtype == torch.float32:
        ids = _token_ids(rollout)
        expected = _expected(folder, ids, trust_remote_code)
    if expected is None:
        warnings.warn(
            f"{name} was never compared with Transformers on SGLang 0.5.9; `inf check` does that.",
            stacklevel=2,
        )
        return
    [row] = backend.score([(ids, 1)], CancelToken())
    worst = max(
        abs(ours - theirs) for ours, theirs in zip(row.prompt_logprobs[1:], expected, strict=True)
    )
    if not worst <= WITHIN:
        raise ConfigError(
            f"model_path: SGLang 0.5.9 does not compute {name} as Transformers does: over "
            f"{TOKENS} tokens the log probs differ by up to {worst:.2g}. Serve it elsewhere, or "
            "report it."
        )


def _token_ids(rollout: Any) -> list[int]:
    hf_config = rollout.model_config.hf_config
    vocabulary = getattr(hf_config, "text_config", hf_config).vocab_size
    count = min(TOKENS, int(rollout.config.prompt_length))
    return [(7919 * place + 11) % vocabulary for place in range(count)]


def _expected(folder: Path, ids: list[int], trust_remote_code: bool) -> list[float] | None:
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
