"""A random model for GPU kernels: Qwen3-0.6B's shape, with the tests' small tokenizer, widened.

Weights are drawn as Transformers does, except for the head: logits have a standard deviation of
3, so that greedy answers are seldom nearly tied and filters leave few tokens.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

VOCABULARY = 151_936
LOGITS = 3.0
SHAPES: dict[str, dict[str, int]] = {
    "cuda": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "cpu": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
}


def build(folder: Path, device: str) -> None:
    """Write the model's folder; it appears when it is complete."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config

    from tests.support.tiny import tiny_model

    source, part = tiny_model(), folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(source, part)
    (part / "model.safetensors").unlink()
    widen(part / "tokenizer.json")
    ids = GenerationConfig.from_pretrained(source)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        tie_word_embeddings=False,
        max_position_embeddings=40_960,
        bos_token_id=None,
        eos_token_id=ids.eos_token_id,
        pad_token_id=ids.pad_token_id,
        **SHAPES[device],
    )
    torch.manual_seed(0)
    with torch.device(device), torch.no_grad():
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.lm_head.weight.normal_(std=LOGITS / config.hidden_size**0.5)
    model.generation_config = ids
    model.save_pretrained(part)
    part.rename(folder)


def widen(tokenizer: Path) -> None:
    """Give every id of the model a text: a word of its own if it is not the tokenizer's."""
    state = json.loads(tokenizer.read_text())
    words = state["model"]["vocab"]
    taken = {*words.values(), *(token["id"] for token in state["added_tokens"])}
    words |= {f"Ġw{n}": n for n in range(VOCABULARY) if n not in taken}
    tokenizer.write_text(json.dumps(state))


if __name__ == "__main__":
    build(Path(sys.argv[1]), sys.argv[2])
