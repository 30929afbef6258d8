"""Tiny configs of every causal architecture that the installed Transformers has.

`shrunk(kind)` is the config of a model type with the sizes of `SMALL`, as far as it has fields of
these names, and with `OWN` of that type.
"""

from __future__ import annotations

from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from tests.support.tiny import VOCABULARY

CONTEXT = 1024
LAYERS = 4
PLAIN = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
}
SMALL = PLAIN | {
    "head_dim": 16,
    "sliding_window": 24,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "chunk_size": 16,
    "mamba_chunk_size": 16,
    "mamba_d_state": 16,
    "ssm_state_size": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    # Fewer tokens than the prompts have; with few heads many of the index's scores would be 0 and
    # so tied, and which of them a plain pass takes depends on its length.
    "index_topk": 16,
    "index_n_heads": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DELTA = {"layer_types": ["linear_attention", "full_attention"] * 2}
CONV = {"layer_types": ["conv", "full_attention"] * 2}
MLA = {"q_lora_rank": 32, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1}
STATES = {"mamba_n_heads": 8, "mamba_d_head": 16}
ONE_GROUP = {"n_group": 1, "topk_group": 1}
ALTERNATING = ["sliding_attention", "full_attention"] * 2
SIGHT = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
HEARING = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
# Their decoders have names of their own for these.
BART = {"d_model": 64, "decoder_layers": 2, "decoder_ffn_dim": 128, "decoder_attention_heads": 4}
BYTES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "hidden_size_global": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "initializer_range": 0.2,
}
DRAFT = PLAIN | {
    "head_dim": 16,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "num_kv_shared_layers": LAYERS,
}
# By model type, what its fields of other names need, so that it is small and computes.
OWN = {
    **dict.fromkeys(["olmo_hybrid", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"], DELTA),
    **dict.fromkeys(["lfm2", "lfm2_moe"], CONV),
    **dict.fromkeys("deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite".split(), MLA),
    **dict.fromkeys("axk1 axk2 glm_moe_dsa longcat_flash minicpm3 sarvam_mla youtu".split(), MLA),
    **dict.fromkeys(["plbart", "whisper"], BART),
    "bailing_hybrid": MLA | {"num_expert_group": 1},
    "bamba": {"mamba_n_heads": 8},
    "beam": ONE_GROUP,
    "blt": {
        "encoder_hash_byte_group_vocab": 500,
        **dict.fromkeys(
            ["patcher_config", "encoder_config", "decoder_config", "global_config"], BYTES
        ),
    },
    "codegen": {"rotary_dim": 8},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    },
    "dbrx": {
        "d_model": 64,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {
            "hidden_size": 64,
            "ffn_hidden_size": 64,
            "moe_num_experts": 4,
            "moe_top_k": 2,
        },
    },
    "dots1": {"num_key_value_heads": 4, "n_shared_experts": 1, "moe_intermediate_size": 32},
    "dots3_note": {
        "vision_config": HEARING
        | {"num_hidden_layers": 1, "moe_intermediate_size": 16, "num_local_experts": 2}
        | {"adapter_in_dim": 32, "adapter_out_dim": 64, "per_layer_config": {}},
        "audio_config": {"adapter_out_dim": 64},
    },
    "dots3_note_text": MLA | {"per_layer_config": {}, "head_dim": 32, "index_head_dim": 16},
    "emu3": {
        "vq_config": {
            "base_channels": 32,
            "channel_multiplier": [1],
            "codebook_size": 64,
            "hidden_size": 32,
            "num_res_blocks": 1,
        },
        "vocabulary_map": {"<image>": 5},
    },
    "falcon_h1": {**STATES, "mamba_n_heads": 4, "mamba_d_ssm": 64},
    "gemma3": {"vision_config": SIGHT},
    "gemma3n_text": {
        "layer_types": ALTERNATING,
        "num_kv_shared_layers": 2,
        "intermediate_size": [128] * LAYERS,
        "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCABULARY,
        "laurel_rank": 8,
    },
    "gemma4_text": {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCABULARY},
    "gemma4_assistant": {"text_config": DRAFT, "backbone_hidden_size": 64},
    "gemma4_unified_assistant": {"text_config": DRAFT, "backbone_hidden_size": 64},
    "git": {"vision_config": SIGHT},
    "got_ocr2": {
        "vision_config": SIGHT | {"mlp_dim": 32, "output_channels": 16, "global_attn_indexes": [0]},
        "text_config": PLAIN | {"model_type": "qwen2"},
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 24},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, **STATES},
    **dict.fromkeys(
        ["qwen3_5", "qwen3_5_moe"],
        {
            "vision_config": {
                "depth": 1,
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_heads": 2,
                "out_hidden_size": 64,
            }
        },
    ),
    "gemma4": {
        "vision_config": HEARING
        | {"num_hidden_layers": 1, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16}
    },
    "mistral3": {
        "text_config": PLAIN | {"model_type": "ministral3", "head_dim": 16, "eos_token_id": 2},
        "vision_config": SIGHT | {"model_type": "pixtral", "head_dim": 16},
    },
    **dict.fromkeys(["inkling2_text", "inkling2_loop_text"], {"unpadded_vocab_size": VOCABULARY}),
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2},
    "mllama": {
        "vision_config": {
            "hidden_size": 32,
            "intermediate_size": 32,
            "attention_heads": 2,
            "num_hidden_layers": 1,
            "num_global_layers": 1,
            "intermediate_layers_indices": [0],
            "vision_output_dim": 64,
            "image_size": 28,
            "patch_size": 14,
        }
    },
    "moss_transcribe_diarize": {
        "audio_config": HEARING | {"num_hidden_layers": 1},
        "text_config": PLAIN | {"model_type": "qwen3", "head_dim": 16},
    },
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 16},
    "phi4_multimodal": {"vision_config": SIGHT, "audio_config": HEARING | {"num_blocks": 1}},
    "prophetnet": {"num_encoder_layers": 2, "num_decoder_layers": 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
        "hc_lowrank": 16,
        "shared_expert_intermediate_size": 32,
    },
    "reformer": {
        "is_decoder": True,
        "axial_pos_shape": [32, 32],
        "axial_pos_embds_dim": [16, 48],
        "attention_head_size": 16,
        "attn_layers": ["local", "lsh"] * 2,
    },
    "xlnet": {"d_head": 16},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_key_value_heads": 4,
        "adapter_rank": 8,
    },
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
}
# Fields of `SMALL` that a type refuses.
WITHOUT = {"prophetnet": {"num_hidden_layers"}, "xlnet": {"max_position_embeddings"}}


def known(kind: str) -> bool:
    """Whether the installed Transformers has this type, and the text model that it gets here."""
    text = OWN.get(kind, {}).get("text_config", {}).get("model_type", kind)
    return {kind, text} <= CONFIG_MAPPING_NAMES.keys()


def shrunk(kind: str) -> Any:
    """The config of a model type; one of several modalities gets a small text model. Its class is
    Transformers' own: SGLang registers others for some types."""
    kinds, own = getattr(transformers, CONFIG_MAPPING_NAMES[kind]), OWN.get(kind, {})
    text = getattr(kinds, "sub_configs", {}).get("text_config")
    small = {name: value for name, value in SMALL.items() if name not in WITHOUT.get(kind, ())}
    if hasattr(text, "model_type") and "text_config" not in own:
        return kinds(text_config=text(**small | OWN.get(f"{kind}_text", {})), **own)
    return kinds(**{name: value for name, value in small.items() if _is_set(kinds, name)} | own)


def _is_set(kinds: Any, name: str) -> bool:
    """Whether a config has no read-only property of that name."""
    found = getattr(kinds, name, None)
    return not isinstance(found, property) or found.fset is not None
