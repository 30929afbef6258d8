"""Trains with TRL's GRPOTrainer on an environment: python train.py KINDS.py NAMES ROWS MODEL OUT.

KINDS.py: a file with environments. NAMES: of one class, which all rows have, or of several, with
commas, which the column `environment` chooses from. ROWS: JSON, the dataset. MODEL: a folder whose
model writes calls as Qwen3 does. OUT: a JSON file for what each of two steps gave.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, __version__
from trl.chat_template_utils import qwen3_template

SAMPLES = 2  # of a row, which are the same: GRPO needs two


def main(kinds: str, names: str, rows: str, model: str, out: str) -> None:
    classes = runpy.run_path(kinds)
    chosen = {name: classes[name] for name in names.split(",")}
    dataset = Dataset.from_list(json.loads(rows))
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.response_template = qwen3_template  # TRL knows it by the chat template, not this one
    steps = []

    def spy(prompts: Any, completions: Any, environments: Any, **columns: Any) -> list[float]:
        rows = zip(prompts, completions, environments, strict=True)
        steps.append(
            [
                {"messages": [*prompt, *answer], "object": id(each), "state": vars(each).copy()}
                for prompt, answer, each in rows
            ]
        )
        return [0.0] * len(environments)

    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=dataset,
        reward_funcs=[spy],
        environment_factory=chosen if len(chosen) > 1 else next(iter(chosen.values())),
        args=GRPOConfig(
            output_dir=str(Path(out).with_suffix("")),
            max_steps=2,
            num_generations=SAMPLES,
            per_device_train_batch_size=SAMPLES * len(dataset),
            max_completion_length=128,
            generation_kwargs={"do_sample": False},
            learning_rate=1e-9,
            logging_steps=1,
            shuffle_dataset=False,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
    )
    trainer.train()
    logs = [log for log in trainer.state.log_history if "reward" in log]
    said = {"version": __version__, "steps": steps, "logs": logs}
    Path(out).write_text(json.dumps(said, default=str, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
