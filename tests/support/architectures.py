"""Tiny random models of many architectures, whose answers must equal Transformers'.

`architecture(name)` returns a folder like `tiny_model`'s: float32, seeded, 384 tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.shrunk_configs import ALTERNATING, CONTEXT, PLAIN
from tests.support.tiny import built_once, save_tiny

WINDOW = 24
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
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

GPT: dict[str, Any] = {
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": CONTEXT,
    "num_key_value_heads": 4,
}
TIED = {"tie_word_embeddings": True}

# By name: the class of Transformers' config, and what differs from `PLAIN`.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama-tied": ("LlamaConfig", TIED),
    "llama-rope-llama3": ("LlamaConfig", {"rope_scaling": LLAMA3}),
    "llama-rope-yarn": ("LlamaConfig", {"rope_scaling": YARN}),
    "llama-rope-linear": (
        "LlamaConfig",
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ),
    "llama-rope-dynamic": (
        "LlamaConfig",
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    ),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "qwen2-moe": (
        "Qwen2MoeConfig",
        {**EXPERTS, "shared_expert_intermediate_size": 64, "decoder_sparse_step": 1},
    ),
    "qwen3-moe": ("Qwen3MoeConfig", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "sliding_window": None}),
    "olmoe": ("OlmoeConfig", {**EXPERTS, "num_key_value_heads": 4}),
    "mistral": ("MistralConfig", {"sliding_window": 512, "head_dim": 16}),
    "granite": ("GraniteConfig", {"logits_scaling": 2.0, "residual_multiplier": 0.5}),
    "glm4": ("Glm4Config", {"head_dim": 16, "pad_token_id": 0}),
    "stablelm": ("StableLmConfig", {}),
    "starcoder2": ("Starcoder2Config", {}),
    "cohere": ("CohereConfig", {**TIED, "logit_scale": 0.25}),
    "cohere2": (
        "Cohere2Config",
        {**TIED, "logit_scale": 0.25, "sliding_window": WINDOW, "layer_types": ALTERNATING},
    ),
    "olmo": ("OlmoConfig", {"num_key_value_heads": 4}),
    "olmo2": ("Olmo2Config", {}),
    "olmo3": ("Olmo3Config", {"sliding_window": WINDOW, "layer_types": ALTERNATING}),
    "phi": ("PhiConfig", {"num_key_value_heads": 4}),
    "phi3": ("Phi3Config", {"pad_token_id": 0}),
    "phi3-longrope": (
        "Phi3Config",
        {
            "pad_token_id": 0,
            "rope_scaling": LONGROPE,
            "original_max_position_embeddings": 512,
        },
    ),
    "smollm3": ("SmolLM3Config", {"pad_token_id": 0}),
    "gemma": ("GemmaConfig", {**TIED, "head_dim": 16}),
    "gemma2": (
        "Gemma2Config",
        {
            **TIED,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
            "hidden_act": "gelu_pytorch_tanh",  # as the real ones have it
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            **TIED,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        },
    ),
    "gpt2": (
        "GPT2Config",
        {**TIED, **GPT},
    ),
    "gpt2-untied": ("GPT2Config", GPT),
    "opt": (
        "OPTConfig",
        {"ffn_dim": 128, "word_embed_proj_dim": 64, "dropout": 0.0, "num_key_value_heads": 4},
    ),
    "gpt-bigcode": ("GPTBigCodeConfig", {**TIED, **GPT, "num_key_value_heads": 1}),
    "arcee": ("ArceeConfig", {}),
    "ernie4_5": ("Ernie4_5Config", {}),
}


def architecture(name: str, seed: int = 0) -> Path:
    """The folder of a tiny random model of that architecture."""
    kind, own = MODELS[name]
    spec = [kind, {**PLAIN, **own}, seed]
    return built_once(name, spec, lambda folder: save_tiny(config(name), seed, folder, CONTEXT))


def config(name: str) -> Any:
    """Its Transformers config."""
    import transformers

    kind, own = MODELS[name]
    return getattr(transformers, kind)(**{**PLAIN, **own})
