"""Tiny random models of many architectures, whose answers must equal Transformers'.

`architecture(name)` returns a folder like `tiny_model`'s: float32, seeded, 384 tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from tests.support.shrunk_configs import ALTERNATING, CONTEXT, PLAIN
from tests.support.tiny import built_once, save_tiny

WINDOW = 24
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
}

GPT = {
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": CONTEXT,
    "num_key_value_heads": 4,
}
TIED = {"tie_word_embeddings": True}

# By name, which begins with the model's type: what differs from `PLAIN`.
MODELS = {
    "llama": {},
    "llama-tied": TIED,
    "llama-rope-llama3": {"rope_scaling": LLAMA3},
    "llama-rope-yarn": {"rope_scaling": YARN},
    "llama-rope-linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "llama-rope-dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "qwen2-moe": {**EXPERTS, "shared_expert_intermediate_size": 64, "decoder_sparse_step": 1},
    "qwen3-moe": {**EXPERTS, "head_dim": 16, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 4, "sliding_window": None},
    "olmoe": {**EXPERTS, "num_key_value_heads": 4},
    "mistral": {"sliding_window": 512, "head_dim": 16},
    "granite": {"logits_scaling": 2.0, "residual_multiplier": 0.5},
    "glm4": {"head_dim": 16, "pad_token_id": 0},
    "stablelm": {},
    "starcoder2": {},
    "cohere": {**TIED, "logit_scale": 0.25},
    "cohere2": {**TIED, "logit_scale": 0.25, "sliding_window": WINDOW, "layer_types": ALTERNATING},
    "olmo": {"num_key_value_heads": 4},
    "olmo2": {},
    "olmo3": {"sliding_window": WINDOW, "layer_types": ALTERNATING},
    "phi": {"num_key_value_heads": 4},
    "phi3": {"pad_token_id": 0},
    "phi3-longrope": {
        "pad_token_id": 0,
        "rope_scaling": LONGROPE,
        "original_max_position_embeddings": 512,
    },
    "smollm3": {"pad_token_id": 0},
    "gemma": {**TIED, "head_dim": 16},
    "gemma2": {
        **TIED,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 10.0,
        "hidden_act": "gelu_pytorch_tanh",  # as the real ones have it
    },
    "gemma3": {
        **TIED,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
    "gpt2": {**TIED, **GPT},
    "gpt2-untied": GPT,
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64, "dropout": 0.0, "num_key_value_heads": 4},
    "gpt-bigcode": {**TIED, **GPT, "num_key_value_heads": 1},
    "arcee": {},
    "ernie4_5": {},
}


def architecture(name: str, seed: int = 0) -> Path:
    """The folder of a tiny random model of that architecture."""
    spec = [type(config(name)).__name__, {**PLAIN, **MODELS[name]}, seed]
    return built_once(name, spec, lambda folder: save_tiny(config(name), seed, folder, CONTEXT))


def config(name: str) -> Any:
    """Its Transformers config."""
    import transformers

    words = "gemma3_text" if name == "gemma3" else name.replace("-", "_")
    while words not in CONFIG_MAPPING_NAMES:
        words = words.rpartition("_")[0]
    return getattr(transformers, CONFIG_MAPPING_NAMES[words])(**{**PLAIN, **MODELS[name]})
