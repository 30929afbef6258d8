"""Writes a tiny random model that only a newer Transformers knows, and what it answers there.

python newer_model.py TOKENIZER FOLDER PROMPTS.json: the model and the tokenizer into FOLDER, and
into FOLDER/reference.json the greedy ids and their log probs for each list of ids in PROMPTS.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers

TOKENS = 24


def main(tokenizer_folder: str, folder: Path, prompts: list[list[int]]) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>"]})
    tokenizer.save_pretrained(folder)
    config = transformers.Ministral3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64, max_position_embeddings=4096,
        initializer_range=0.3, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(folder)
    rows = []
    for ids in prompts:
        answer: list[int] = []
        logprobs: list[float] = []
        while len(answer) < TOKENS and tokenizer.eos_token_id not in answer:
            with torch.no_grad():
                logits = model(torch.tensor([ids + answer])).logits[0, -1]
            table = logits.log_softmax(-1)
            answer.append(int(table.argmax()))
            logprobs.append(float(table.max()))
        rows.append({"token_ids": answer, "logprobs": logprobs})
    (folder / "reference.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    tokenizer_folder, folder, prompts_file = sys.argv[1:]
    main(tokenizer_folder, Path(folder), json.loads(Path(prompts_file).read_text()))
