"""Compares the log probs of the rollout with those of Transformers.

In: a running engine and prompts. Out: a frozen `CheckReport`, which can be shown as a table. Each
token of a greedy answer is compared after the same preceding tokens, so that one near tie does not
change the rest. A second engine, with `rollout.name: hf`, loads the engine's folder in the engine's
dtype and on its device: there must be memory for both.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from _inf.errors import ConfigError
from _inf.types import Tokenizer

if TYPE_CHECKING:
    from rich.table import Table

    from inf import InferenceEngine

PROMPTS = (
    "What is the capital of France?",
    "Count from one to ten, in German.",
    "def fibonacci(n):",
    "A baker sells 36 rolls in the morning and a third as many in the afternoon. How many in all?",
)
MAX_TOKENS = 16
# The differences that rounding explains, in float32 and in half precision.
THRESHOLDS = {"float32": 1e-3}
HALF_THRESHOLD = 0.2
STACK = ("verl", "sglang", "torch", "transformers")


@dataclasses.dataclass(frozen=True)
class DifferentToken:
    """The first token that Transformers would not have chosen. logprob_gap: how much more likely
    Transformers' own choice is, in nats."""

    prompt: int
    position: int
    rollout: str
    transformers: str
    logprob_gap: float


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """The result. `passed`: no log prob differs by more than `allowed_logprob_difference`.
    Differences are in nats. `same_greedy_tokens`: those that Transformers would choose too."""

    passed: bool
    max_logprob_difference: float
    allowed_logprob_difference: float
    mean_logprob_difference: float
    same_greedy_tokens: int
    tokens: int
    prompts: int
    first_different_token: DifferentToken | None
    model: str
    device: str
    dtype: str
    versions: dict[str, str]

    def table(self) -> Table:
        """Return the report as a table for a terminal."""
        from rich.table import Table

        other = self.first_different_token
        rows = {
            "result": "passed" if self.passed else "FAILED",
            "largest log prob difference": f"{self.max_logprob_difference:.2g} nats (allowed: "
            f"{self.allowed_logprob_difference:g})",
            "mean log prob difference": f"{self.mean_logprob_difference:.2g} nats",
            "greedy tokens that agree": f"{self.same_greedy_tokens} of {self.tokens} "
            f"({self.same_greedy_tokens / self.tokens:.1%}), in {self.prompts} answers",
            "first that differs": "none"
            if other is None
            else f"prompt {other.prompt}, token {other.position}: {other.rollout!r}; Transformers "
            f"chooses {other.transformers!r}, by {other.logprob_gap:.2g} nats",
            "model": self.model,
            "device, dtype": f"{self.device}, {self.dtype}",
            "versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        }
        table = Table(title="Rollout compared with Transformers", show_header=False)
        for name, value in rows.items():
            table.add_row(name, value)
        return table


def measure(
    engine: InferenceEngine, prompts: Sequence[str] = (), threshold: float | None = None
) -> CheckReport:
    """Generate some tokens for each prompt (by default `PROMPTS`) and compare them.

    threshold: the largest allowed |delta logprob|; by default what rounding explains.
    """
    if threshold is not None and not threshold >= 0:
        raise ConfigError(f"threshold: expected a number from 0 on, got {threshold}")
    if engine.rollout is None:
        raise ConfigError(
            f"check: rollout.name is {engine.config.rollout.name}, not verl's rollout"
        )
    if engine.rollout.weight_version:
        raise ConfigError(
            "check: the engine serves updated weights, and Transformers would load the folder's; "
            "check before the first update_weights(), or after restart()"
        )
    sent = [_ids(engine.tokenizer, text) for text in prompts or PROMPTS]
    output = engine.generate(
        [{"prompt_token_ids": ids} for ids in sent],
        temperature=0,
        n=1,
        max_tokens=MAX_TOKENS,
        tools=[],
    )
    dtype = str(engine.rollout.dtype).removeprefix("torch.")
    bound = THRESHOLDS.get(dtype, HALF_THRESHOLD) if threshold is None else threshold
    differences, same, different = _compared(engine, sent, output)
    return CheckReport(
        passed=all(value <= bound for value in differences),  # NaN is not
        max_logprob_difference=max(differences),
        allowed_logprob_difference=bound,
        mean_logprob_difference=sum(differences) / len(differences),
        same_greedy_tokens=same,
        tokens=len(differences),
        prompts=len(sent),
        first_different_token=different,
        model=str(engine.model_config.local_path),
        device=_device(engine),
        dtype=dtype,
        versions={"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in STACK},
    )


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    if tokenizer.chat_template is None:
        return list(tokenizer(text)["input_ids"])
    message = [{"role": "user", "content": text}]
    return list(tokenizer.apply_chat_template(message, add_generation_prompt=True))


def _device(engine: InferenceEngine) -> Literal["cpu", "cuda"]:
    return "cpu" if engine.on_cpu else "cuda"


def _compared(
    engine: InferenceEngine, sent: Sequence[list[int]], output: Any
) -> tuple[list[float], int, DifferentToken | None]:
    """Return each token's |delta logprob|, how many agree, and the first that differs."""
    import torch

    own, dtype = engine.config.rollout, str(engine.rollout.dtype).removeprefix("torch.")
    differences: list[float] = []
    same, different = 0, None
    lengths = {"prompt_length": own.prompt_length, "response_length": own.response_length}
    with type(engine)(
        model_path=engine.model_config.local_path,
        trust_remote_code=engine.config.trust_remote_code,
        device=_device(engine),
        rollout={"name": "hf", "dtype": dtype, **lengths},
    ) as reference:
        for index, (ids, row) in enumerate(zip(sent, output, strict=True)):
            [logits] = reference.get_logits({"prompt_token_ids": ids}, [row.token_ids])
            table = torch.log_softmax(logits, dim=-1)
            for position, (token, ours) in enumerate(zip(row.token_ids, row.logprobs, strict=True)):
                theirs, best = table[position, token].item(), int(table[position].argmax())
                differences.append(abs(ours - theirs))
                same += best == token
                if best != token and different is None:
                    words = [engine.tokenizer.decode([each]) for each in (token, best)]
                    gap = table[position, best].item() - theirs
                    different = DifferentToken(index, position, words[0], words[1], gap)
    return differences, same, different
