"""GRPO that does not wait: the engine samples the next batch while the model learns from the last.

    python examples/grpo_async.py

The task is that of examples/grpo.py: answers are to be brief. The model learns from the answers to
one question at a time, and after each sends its weights, which come under the running rows, between
two of their tokens (`update_weights(running="keep")`): a row may have tokens of several policies,
and its `weight_versions` say which. The gradient of a token of an older policy is weighted by the
ratio of the two policies' probabilities, cut at MOST; a token of the current one has weight 1.

The script trains twice from the same weights, first with waiting, then without, and prints for both
the rewards, the seconds and the share of rows of several policies.
"""

from __future__ import annotations

import argparse
import dataclasses
import runpy
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from inf import InferenceEngine

GRPO = runpy.run_path(str(Path(__file__).with_name("grpo.py")))
QUESTIONS, SAMPLES, MAX_TOKENS = GRPO["QUESTIONS"], GRPO["SAMPLES"], GRPO["MAX_TOKENS"]
MOST = 2.0  # a token's weight at most


@dataclasses.dataclass
class Run:
    """curve: the mean reward of each batch. mixed: the share of rows of several policies."""

    curve: list[float]
    mixed: float
    seconds: float


def sample(engine: InferenceEngine, step: int) -> Any:
    """One batch of rollouts; the engine takes new weights meanwhile."""
    return engine.rollout_batch(
        QUESTIONS, n=SAMPLES, temperature=1.0, max_tokens=MAX_TOKENS, seed=step
    )


def of_older_policies(batch: Any, version: int) -> torch.Tensor:
    """Which response tokens were sampled by weights before `version` (rows x response length)."""
    older = torch.zeros(batch.batch["responses"].shape, dtype=torch.bool)
    for row, versions in enumerate(batch.non_tensor_batch["weight_versions"]):
        for number, first in versions:  # in order: a later version's tokens follow
            older[row, first:] = number < version
    return older


def learn(
    model: torch.nn.Module, optimizer: Any, batch: Any, advantage: torch.Tensor, version: int
) -> None:
    """One step of the policy gradient, a few rows at a time. version: of the model's weights."""
    tokens = batch.batch["response_mask"].sum()
    several = batch.batch, advantage, of_older_policies(batch, version)
    parts = (each.split(GRPO["ROWS_AT_ONCE"]) for each in several)
    for tensors, worth, older in zip(*parts, strict=True):
        mask, now = tensors["response_mask"].bool(), GRPO["log_probs"](model, tensors)
        ratio = (now.detach() - tensors["rollout_log_probs"]).exp().clamp(max=MOST)
        weight = torch.where(older, ratio, 1.0)
        (-(weight * worth * now)[mask].sum() / tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def train(
    engine: InferenceEngine, model: torch.nn.Module, steps: int, rate: float, *, overlap: bool
) -> Run:
    """Train. overlap: whether the next batch is sampled while the model learns, with weights that
    are new after each question, and not after the batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    begun, mixed, curve = time.monotonic(), list[bool](), list[float]()
    with ThreadPoolExecutor(1) as sampler:
        coming = sampler.submit(sample, engine, 0)
        for step in range(steps):
            batch, more = coming.result(), step + 1 < steps
            if overlap and more:
                coming = sampler.submit(sample, engine, step + 1)
            scores = GRPO["rewards"](batch)
            advantage = GRPO["advantages"](batch, scores)
            version = engine.weight_version
            for first in range(0, len(batch), SAMPLES):
                rows = slice(first, first + SAMPLES)  # of one question
                learn(model, optimizer, batch[rows], advantage[rows], version)
                version += 1
                if overlap:
                    engine.update_weights(model, version=version, running="keep")
            if not overlap:
                engine.update_weights(model, version=version)
            if not overlap and more:
                coming = sampler.submit(sample, engine, step + 1)
            mixed += [len(each) > 1 for each in batch.non_tensor_batch["weight_versions"]]
            curve.append(float(scores.mean()))
            print(f"step {step:3}  reward {curve[-1]:.3f}  rows of several policies {sum(mixed)}")
    return Run(curve, sum(mixed) / len(mixed), time.monotonic() - begun)


def main() -> None:
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    rollout: dict[str, Any] = {
        "prompt_length": 64,
        "response_length": MAX_TOKENS,
        "update_weights_bucket_megabytes": 64,
    }
    runs = {}
    with InferenceEngine(rollout=rollout) as engine:
        for name, overlap in (("with waiting", False), ("without waiting", True)):
            model: Any = AutoModelForCausalLM.from_pretrained(
                engine.model_folder, dtype=torch.float32
            )
            model.get_input_embeddings().requires_grad_(False)
            engine.update_weights(model)
            print(f"{name}:")
            runs[name] = train(
                engine, model, arguments.steps, GRPO["LEARNING_RATE"], overlap=overlap
            )
    for name, run in runs.items():
        first, last = sum(run.curve[:3]) / 3, sum(run.curve[-3:]) / 3
        print(
            f"{name}: {run.seconds:.0f} s, mean reward of the first three steps {first:.3f}, of "
            f"the last three {last:.3f}, {run.mixed:.0%} of the rows are of several policies"
        )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
