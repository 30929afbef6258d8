"""GRPO on a laptop: the engine samples, a Transformers model learns, and its weights go back.

    python examples/grpo.py
    python examples/grpo.py --rollouts rollouts && inf show rollouts
    python examples/grpo.py --lora

The model learns to be brief: an answer's reward is the share of MAX_TOKENS that it does not use.
The script prints the reward of each step and draws the curve in grpo.png. Two CPU cores need some
minutes.

Each step is what verl's trainer does: `rollout_batch` (n samples per prompt), rewards, advantages
by verl's own function, one clipped policy-gradient step, `update_weights`. With --lora only a LoRA
adapter learns, and only the adapter goes back, with `load_adapter`; the engine then runs on
Transformers, as with --backend hf.
"""

from __future__ import annotations

import argparse
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from inf import InferenceEngine, save_rollouts

QUESTIONS = [
    "What is the capital of France?",
    "Why is the sky blue?",
    "Name a fruit and say why you like it.",
    "What does a plumber do?",
]
SAMPLES = 8  # per question: GRPO compares them with each other
MAX_TOKENS = 24  # per answer
LEARNING_RATE = 1e-5
LORA_RATE = 5e-4
ADAPTER = "policy"
CLIP = 0.2  # PPO's
ROWS_AT_ONCE = 2  # per backward pass, which holds a number for every token of the vocabulary


def rewards(batch: Any) -> torch.Tensor:
    """A reward per row: 1 for an empty answer, 0 for one that was cut."""
    lengths = batch.batch["response_mask"].sum(dim=1).float()
    cut = torch.tensor([reason == "length" for reason in batch.non_tensor_batch["finish_reason"]])
    return torch.where(cut, 0.0, 1.0 - lengths / MAX_TOKENS)


def advantages(batch: Any, scores: torch.Tensor) -> torch.Tensor:
    """verl's advantages: each row against the mean and spread of its question, on every token. The
    batch gets the scores where verl has them: on each row's last token."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    mask = batch.batch["response_mask"]
    on_last_token = torch.zeros(mask.shape)
    on_last_token[torch.arange(len(mask)), mask.sum(dim=1) - 1] = scores
    batch.batch["token_level_scores"] = on_last_token
    advantage, _ = compute_grpo_outcome_advantage(
        on_last_token, mask.float(), index=batch.non_tensor_batch["uid"]
    )
    return advantage


def log_probs(model: torch.nn.Module, tensors: Any) -> torch.Tensor:
    """The model's log prob of every response token (rows x response length)."""
    width = tensors["responses"].shape[1]
    logits = model(
        input_ids=tensors["input_ids"],
        attention_mask=tensors["attention_mask"],
        position_ids=tensors["position_ids"],
        logits_to_keep=width + 1,  # from the prompt's last token on: it predicts the first one
    ).logits[:, :-1]
    picked = tensors["responses"][..., None]
    return torch.log_softmax(logits, dim=-1).gather(2, picked)[..., 0]


def learn(model: torch.nn.Module, optimizer: Any, batch: Any, advantage: torch.Tensor) -> None:
    """One step of PPO's clipped objective against the engine's own log probs.

    It takes a few rows at a time, whose gradients add up to the whole batch's: all rows at once
    would need 10 GB.
    """
    tokens = batch.batch["response_mask"].sum()
    parts = batch.batch.split(ROWS_AT_ONCE), advantage.split(ROWS_AT_ONCE)
    for tensors, worth in zip(*parts, strict=True):
        mask = tensors["response_mask"].bool()
        ratio = (log_probs(model, tensors) - tensors["rollout_log_probs"]).exp()[mask]
        gain = torch.minimum(ratio * worth[mask], ratio.clamp(1 - CLIP, 1 + CLIP) * worth[mask])
        (-gain.sum() / tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()  # frees the gradients' memory before the engine loads the weights


def with_lora(model: Any) -> Any:
    """The model with a LoRA adapter, the only part that learns."""
    import peft

    how = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    return peft.get_peft_model(model, how)


def send(engine: InferenceEngine, model: Any) -> None:
    """Send the engine the trained weights: all of them, or only the adapter's."""
    if (config := getattr(model, "peft_config", None)) is None:
        engine.update_weights(model)
        return
    from peft import get_peft_model_state_dict

    weights = get_peft_model_state_dict(model, save_embedding_layers=False)
    engine.load_adapter(ADAPTER, weights, peft_config=config["default"])


def train(
    engine: InferenceEngine,
    model: torch.nn.Module,
    steps: int,
    rate: float,
    folder: Path | None = None,
) -> list[float]:
    """Train; return the mean reward of each step. folder: for the rollouts, a file a step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    curve = []
    adapter = ADAPTER if hasattr(model, "peft_config") else None
    if adapter is not None:
        send(engine, model)  # it changes nothing yet, but rows can name it
    for step in range(steps):
        batch = engine.rollout_batch(
            QUESTIONS,
            n=SAMPLES,
            temperature=1.0,
            max_tokens=MAX_TOKENS,
            seed=step,
            adapter=adapter,
        )
        scores = rewards(batch)
        learn(model, optimizer, batch, advantages(batch, scores))
        send(engine, model)
        if folder is not None:
            save_rollouts(batch, folder / f"{step}.jsonl", engine.tokenizer)
        curve.append(float(scores.mean()))
        print(
            f"step {step:3}  reward {curve[-1]:.3f}  {batch.non_tensor_batch['completions'][0]!r}"
        )
    return curve


TITLE = f"GRPO: {len(QUESTIONS)} questions, {SAMPLES} samples each"


def draw(curve: list[float], file: Path, title: str = TITLE) -> None:
    """Draw the reward of each step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.plot(range(len(curve)), curve, marker=".")
    pyplot.xlabel("step")
    pyplot.ylabel("mean reward")
    pyplot.title(title)
    pyplot.savefig(file, dpi=120)
    pyplot.close()


def main() -> None:
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("grpo.png"))
    parser.add_argument("--backend", choices=("sglang", "hf"), default="sglang")
    parser.add_argument("--lora", action="store_true", help="learn an adapter, on --backend hf")
    parser.add_argument("--rollouts", type=Path, help="a folder for the rollouts of each step")
    arguments = parser.parse_args()
    backend = "hf" if arguments.lora else arguments.backend
    rollout: dict[str, Any] = {
        "name": backend,
        # Every batch is as wide as these two, and padding is computed too, so keep them small.
        "prompt_length": 64,
        "response_length": MAX_TOKENS,
    }
    if backend == "sglang":
        rollout["update_weights_bucket_megabytes"] = 64  # copied at a time
    with InferenceEngine(rollout=rollout) as engine:
        model: Any = AutoModelForCausalLM.from_pretrained(engine.model_folder, dtype=torch.float32)
        # They are also the head; training them would take 0.7 GB more.
        model.get_input_embeddings().requires_grad_(False)
        model = with_lora(model) if arguments.lora else model
        rate = LORA_RATE if arguments.lora else LEARNING_RATE
        if arguments.rollouts is not None:
            arguments.rollouts.mkdir(exist_ok=True)
        curve = train(engine, model, arguments.steps, rate, arguments.rollouts)
    draw(curve, arguments.out)
    print(f"{arguments.out}: mean reward {curve[0]:.3f} at first, {curve[-1]:.3f} at last")
    learnt = sum(each.numel() for each in model.parameters() if each.requires_grad)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{learnt / 1e6:.1f} million numbers learnt; this process took {peak:.1f} GB at most")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
