"""Refuses long lists of log probs for which there may be no memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from _inf.errors import ConfigError
from _inf.request.sampling import Sampling
from _inf.types import Prompt

FEW = 20  # vLLM's limit; what answers could list then is seldom listed
BYTES = 200  # some, of a token's number and its log prob in a dict, while they are made


def check_memory(prompts: Sequence[Prompt], sampling: Sampling) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for prompt, params in zip(prompts, sampling.params, strict=True):
        for part in params.parts:
            for name, (each, tokens) in part.listed(params, len(prompt.token_ids)).items():
                counts[name, part.fewer] += sampling.n * each * tokens if each > FEW else 0
    for (name, fewer), count in counts.items():
        _check(name, fewer, count)


def _check(name: str, fewer: str, count: int) -> None:
    if (needed := count * BYTES) < 2**30:
        return
    from _inf.runtime.free_memory import free_bytes

    if needed > (free := free_bytes()):
        raise ConfigError.of(
            name,
            f"the call may list {count:,} log probs, some {needed / 2**30:.0f} GiB, and "
            f"{free / 2**30:.1f} GiB of memory are free; ask for {fewer} or send fewer rows.",
        )
