"""The part of the backend `hf`, beside Transformers' own `generate`: one prompt at a time, so that
both compute the same products."""

from __future__ import annotations

import time
from typing import Any

from setting import PROMPTS, Setting

TOKENS = 48
WITHIN = {"float32": 1e-3, "bfloat16": 0.1}  # of log probs, on average in bfloat16
TEXTS = [f"{prompt} {number}" for number in (1, 2) for prompt in PROMPTS]


def hf_in_float32_answers_as_transformers_generate(setting: Setting) -> Any:
    found = beside_generate(setting, "float32")
    assert found["equal"] == len(TEXTS), found
    return found


def hf_in_bfloat16_answers_as_transformers_generate(setting: Setting) -> Any:
    return beside_generate(setting, "bfloat16")


def beside_generate(setting: Setting, dtype: str) -> Any:
    """Greedy ids, and the log probs up to the first other id; and the speed of a batch."""
    import torch
    from exactness import distances, same
    from transformers import AutoModelForCausalLM

    from inf import InferenceEngine

    asked: Any = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "progress": False}
    rollout, batch = {"name": "hf", "dtype": dtype}, TEXTS * (8 if setting.on_gpu else 1)
    with InferenceEngine(
        model_path=str(setting.model), device=setting.device, rollout=rollout
    ) as engine:
        ours: list[Any] = [engine.generate(text, **asked)[0] for text in TEXTS]
        start = time.monotonic()
        engine.generate(batch, **asked)
        rate = len(batch) * TOKENS / (time.monotonic() - start)
    model: Any = AutoModelForCausalLM.from_pretrained(setting.model, dtype=getattr(torch, dtype))
    model = model.to(setting.device).eval()
    model.generation_config.eos_token_id = None  # like ignore_eos
    starts, off = [], []
    for row in ours:
        ids = torch.tensor([row.prompt_token_ids], device=setting.device)
        theirs = greedy(model, ids)
        starts.append(same(row.token_ids, theirs["ids"]))
        off += distances([row.logprobs[: starts[-1]]], [theirs["logprobs"][: starts[-1]]])
    found: dict[str, Any] = {
        "equal": starts.count(TOKENS),
        "rows": len(ours),
        "same_start": starts,
        "largest_difference": max(off, default=0.0),
        "mean_difference": sum(off) / max(len(off), 1),
        "tokens_per_second_of_a_batch": round(rate, 1),
    }
    name = "largest_difference" if dtype == "float32" else "mean_difference"
    assert found[name] <= WITHIN[dtype], found
    return found


def greedy(model: Any, ids: Any) -> dict[str, Any]:
    """The ids of Transformers' own `generate` after a prompt, and their log probs."""
    import torch

    done = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=TOKENS,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    drawn = done.sequences[0, ids.shape[1] :].tolist()
    tops = [logits[0].float().log_softmax(-1) for logits in done.logits]
    return {"ids": drawn, "logprobs": [top[n].item() for top, n in zip(tops, drawn, strict=True)]}


CHECKS = (
    hf_in_float32_answers_as_transformers_generate,
    hf_in_bfloat16_answers_as_transformers_generate,
)
