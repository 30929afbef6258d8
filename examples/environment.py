"""Train a model to play a game on a laptop, with a TRL environment and GRPO.

    python examples/environment.py

The model guesses a number from 1 to 3 and is told whether the number is higher or lower. After two
examples in its prompt, the embedded model sometimes succeeds. The script prints the reward of each
step and draws the curve in environment.png. Two CPU cores need about half an hour.

`Guessing` uses nothing from this library, so TRL's `GRPOTrainer(environment_factory=...)` takes it
too. The training step is the one in grpo.py.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

from inf import InferenceEngine

GRPO = runpy.run_path(str(Path(__file__).with_name("grpo.py")))
NUMBERS = [1, 2, 3]
SAMPLES = 6  # per number: GRPO compares them with each other
MAX_TOKENS = 32  # per answer
LEARNING_RATE = 2e-5


# ─── The game ───


class Guessing:
    """Worth 1 if the number is found in two guesses, 0.2 if it is not, and 0 without a guess."""

    def reset(self, number: int, **row: Any) -> str:
        self.number, self.guesses = number, []
        return "Guess my number from 1 to 3."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: From 1 to 3.
        """
        if self.number in self.guesses or len(self.guesses) == 2:
            raise ValueError("The game is over.")
        if not 1 <= number <= 3:
            raise ValueError("It is from 1 to 3.")
        self.guesses.append(number)
        if number == self.number:
            return "right"
        return "higher" if number < self.number else "lower"

    def get_reward(self) -> float:
        if not self.guesses:
            return 0.0
        return 1.0 if self.number in self.guesses else 0.2


def example(*guesses: tuple[int, str]) -> list[dict[str, Any]]:
    """An example game for the prompt."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Guess my number from 1 to 3."}]
    for number, said in guesses:
        call = {"name": "guess", "arguments": {"number": number}}
        messages += [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": f"call_{number}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"call_{number}", "content": said},
        ]
    return [*messages, {"role": "assistant", "content": f"It is {guesses[-1][0]}."}]


# `reset` returns text that is appended to the last message.
PROMPT = [
    *example((2, "higher"), (3, "right")),
    *example((2, "lower"), (1, "right")),
    {"role": "user", "content": ""},
]


# ─── The training ───


def train(engine: InferenceEngine, model: torch.nn.Module, steps: int, rate: float) -> list[float]:
    """Train; return the mean reward of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    curve = []
    for step in range(steps):
        batch = engine.rollout_batch(
            [PROMPT] * len(NUMBERS),
            environment_factory=Guessing,
            environment_kwargs=[{"number": number} for number in NUMBERS],
            n=SAMPLES,
            temperature=1.0,
            max_tokens_per_turn=MAX_TOKENS,
            seed=step,
        )
        columns = batch.non_tensor_batch
        rewards = torch.tensor([each["environment"] for each in columns["reward_scores"]])
        GRPO["learn"](model, optimizer, batch, GRPO["advantages"](batch, rewards))
        engine.update_weights(model)
        curve.append(float(rewards.mean()))
        print(f"step {step:3}  reward {curve[-1]:.3f}  {columns['completions'][0]!r}", flush=True)
    return curve


def main() -> None:
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--out", type=Path, default=Path("environment.png"))
    arguments = parser.parse_args()
    rollout = {
        "prompt_length": 384,
        "response_length": 96,
        "multi_turn": {"max_assistant_turns": 3},  # two guesses, and the closing answer
        "update_weights_bucket_megabytes": 64,
    }
    with InferenceEngine(rollout=rollout) as engine:
        folder = engine.model_config.local_path
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.get_input_embeddings().requires_grad_(False)  # as in grpo.py
        curve = train(engine, model, arguments.steps, LEARNING_RATE)
    title = f"GRPO of a game: {len(NUMBERS)} numbers, {SAMPLES} samples each"
    GRPO["draw"](curve, arguments.out, title)
    print(f"{arguments.out}: mean reward {curve[0]:.3f} at first, {curve[-1]:.3f} at last")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
