"""GRPO on a task of reasoning-gym: one-digit sums and differences, such as 3 - 8.

    python examples/grpo_sums.py  # after: pip install reasoning-gym

The prompt has one solved sum, and the model first learns to answer in that form; the reward is the
task's own score. The script prints how many of 40 sums with another seed the model answers
correctly, with greedy decoding, before and after, and draws the curve in grpo_sums.png. Two CPU
cores need a minute per step.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

import reasoning_gym
import torch
from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer

from inf import InferenceEngine

GRPO = runpy.run_path(str(Path(__file__).with_name("grpo.py")))
QUESTIONS, SAMPLES = 4, 8  # per step
MAX_TOKENS = 14  # per answer: <answer>-5</answer>
LEARNING_RATE = 2e-5
TEST, SHOT = 5000, 99  # seeds; the steps use 0, 4, 8 ...


def sums(seed: int, size: int) -> Any:
    limits = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    return reasoning_gym.create_dataset("chain_sum", seed=seed, size=size, **limits)


def prompts(task: Any) -> list[Any]:
    """Each question, after one solved example."""
    [shot] = sums(SHOT, 1)
    before = [
        {"role": "system", "content": SYSTEM_PROMPTS["direct"]},
        {"role": "user", "content": shot["question"]},
        {"role": "assistant", "content": f"<answer>{shot['answer']}</answer>"},
    ]
    return [[*before, {"role": "user", "content": entry["question"]}] for entry in task]


def scores(task: Any, completions: Any, samples: int) -> list[float]:
    """The task's own scores of `samples` answers per question."""
    entries = [entry for entry in task for _ in range(samples)]
    pairs = zip(completions, entries, strict=True)
    return [task.score_answer(extract_answer(text), entry) for text, entry in pairs]


def right(engine: InferenceEngine) -> int:
    """How many of 40 greedy answers are right."""
    task = sums(TEST, 40)
    output = engine.generate(prompts(task), temperature=0.0, max_tokens=MAX_TOKENS)
    return scores(task, output.completions, 1).count(1.0)


def train(engine: InferenceEngine, model: torch.nn.Module, steps: int, rate: float) -> list[float]:
    """Train; return the mean score of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    curve = []
    for step in range(steps):
        task = sums(step * QUESTIONS, QUESTIONS)
        batch = engine.rollout_batch(
            prompts(task), n=SAMPLES, temperature=1.0, max_tokens=MAX_TOKENS, seed=step
        )
        said = batch.non_tensor_batch["completions"]
        rewards = torch.tensor(scores(task, said, SAMPLES))
        GRPO["learn"](model, optimizer, batch, GRPO["advantages"](batch, rewards))
        engine.update_weights(model)
        curve.append(float(rewards.mean()))
        print(f"step {step:3}  score {curve[-1]:.3f}  {said[0]!r}", flush=True)
    return curve


def main() -> None:
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("grpo_sums.png"))
    arguments = parser.parse_args()
    rollout = {
        "prompt_length": 140,
        "response_length": MAX_TOKENS,
        "update_weights_bucket_megabytes": 64,
    }
    with InferenceEngine(rollout=rollout) as engine:
        folder = engine.model_config.local_path
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.get_input_embeddings().requires_grad_(False)
        before = right(engine)
        curve = train(engine, model, arguments.steps, LEARNING_RATE)
        after = right(engine)
    title = f"GRPO on one-digit sums: {QUESTIONS} questions a step, {SAMPLES} samples each"
    GRPO["draw"](curve, arguments.out, title)
    print(f"{arguments.out}: {before} of 40 greedy answers right at first, {after} at last")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
