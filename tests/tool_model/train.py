"""Trains the tiny model in this folder, which calls tools as tests.support.tool_calling says.

    python -m tests.tool_model.train

Config, weights and tokenizer of this folder are written anew, in some four minutes on one CPU core.
Another machine rounds otherwise: other weights come out. `tests/tools/test_tool_model.py` shows
whether they say the right thing.

The conversations (chats.py) are written by the chat template, one token a digit, and only what the
assistant says counts in the loss.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.support.tool_calling import TOOL_MODEL
from tests.tool_model.chats import Conversation, training

SEED = 0
STEPS = 1500
TOKENS_A_STEP = 4096
PEAK_RATE = 4e-3
VOCABULARY = 448
CONTEXT = 4096
END_OF_TEXT, IM_START, IM_END, PAD = SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|pad|>".split()
)
TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
TEMPLATE = (TOOL_MODEL / "chat_template.jinja").read_text()


def tokenizer_of(rng: Random) -> Any:
    """Train a byte-level BPE tokenizer on the conversations; each digit is one token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bare = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=TEMPLATE)
    marks = re.compile("|".join(map(re.escape, SPECIAL + TAGS)))
    corpus = [marks.sub("\n", rendered(bare, training(rng))) for _ in range(2000)]
    backend = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY - len(TAGS),
            special_tokens=SPECIAL,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    if backend.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the vocabulary came out at {backend.get_vocab_size()} tokens")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=IM_END,
        pad_token=PAD,
        chat_template=TEMPLATE,
        model_max_length=CONTEXT,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def rendered(tokenizer: Any, chat: Conversation) -> str:
    return tokenizer.apply_chat_template(chat.messages, tools=chat.tools, tokenize=False)


Row = tuple[list[int], list[range]]  # the ids of a conversation, and where the assistant speaks


def encoded(tokenizer: Any, chats: list[Conversation]) -> list[Row]:
    texts = [rendered(tokenizer, chat) for chat in chats]
    opening = tokenizer.encode(f"{IM_START}assistant\n")
    end = tokenizer.eos_token_id
    rows = []
    for ids in tokenizer(texts)["input_ids"]:
        places = range(len(opening), len(ids))
        starts = [at for at in places if ids[at - len(opening) : at] == opening]
        rows.append((ids, [range(at, ids.index(end, at) + 1) for at in starts]))
    return rows


def batches(tokenizer: Any, rng: Random) -> Iterator[list[Row]]:
    """Yield batches of rows of similar length, to save padding.

    Short rows come first: copying is learned sooner over short distances.
    """
    longest = 100
    while True:
        rows = sorted(encoded(tokenizer, [training(rng) for _ in range(1024)]), key=by_length)
        cuts: list[list[Row]] = [[]]
        for row in rows:
            if len(row[0]) > longest:
                break
            if (len(cuts[-1]) + 1) * len(row[0]) > TOKENS_A_STEP:
                cuts.append([])
            cuts[-1].append(row)
        rng.shuffle(cuts)
        yield from cuts
        longest = int(longest * 1.15)


def by_length(row: Row) -> int:
    return len(row[0])


def model_of(tokenizer: Any) -> Any:
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    ids = dict(
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        rope_theta=10000.0,
        tie_word_embeddings=False,
        initializer_range=0.08,
        dtype=torch.float32,
        **ids,
    )
    torch.manual_seed(SEED)
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(**ids)
    return model


def fit(model: Any, tokenizer: Any, rng: Random, steps: int) -> None:
    import torch

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01
    )
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, 1.02 - step / steps)
    )
    began, recent = time.monotonic(), 0.0
    for step, rows in zip(range(1, steps + 1), batches(tokenizer, rng), strict=False):
        ids = torch.full((len(rows), max(map(by_length, rows))), tokenizer.pad_token_id)
        counted = torch.zeros_like(ids, dtype=torch.bool)
        for i, (row, turns) in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            for turn in turns:
                counted[i, turn.start : turn.stop] = True
        hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state[counted[:, 1:]]
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden), ids[counted])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        recent += loss.item()
        if step % 50 == 0:
            print(
                f"step {step}  loss {recent / 50:.4f}  {time.monotonic() - began:.0f} s", flush=True
            )
            recent = 0.0


def main(steps: int = STEPS, folder: Path = TOOL_MODEL) -> None:
    import torch

    torch.set_num_threads(1)  # the matrices are so small that a second thread only waits
    rng = Random(SEED)
    tokenizer = tokenizer_of(rng)
    model = model_of(tokenizer)
    fit(model, tokenizer, rng, steps)
    model.eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
