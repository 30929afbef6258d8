"""Refuses models that SGLang 0.5.9 does not compute as Transformers does, before a start.

Its tables hold what was measured (tests/engine/answers/test_architectures.py) or read in SGLang's
source; docs/models.md shows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from _inf.backends.model_info import (
    ORIGINAL,
    check_length,
    context_length,
    fixed_factors_length,
    original_context,
    rope_scaling,
)
from _inf.backends.verl.environment import Device
from _inf.backends.verl.server_arguments import CAPTURE_EXPERTS, CPU_ATTENTION, ENABLE, OWN
from _inf.errors import ConfigError, at_fault

if TYPE_CHECKING:
    from transformers import PretrainedConfig

NO_CLASS = (
    "SGLang 0.5.9 has no class for it; instead it runs Transformers' own code, which does not "
    "take this model's weights"
)
NO_MLA = "its latent attention (MLA) needs kernels that a CPU does not have; serve it on a GPU"
NO_SINKS = (
    "its attention sinks and MXFP4 weights need kernels that a CPU does not have; serve it on a GPU"
)
NO_KERNELS = "SGLang serves it only with attention kernels of a GPU; serve it on a GPU"
NO_ENCODER = "it has no class for its image encoder; rollout.name: hf serves it"
STATE_SPACE = "its layers keep a state instead of keys and values, and need CUDA kernels"
# Compared with Transformers, token by token.
EXACT_ON_CPU = """
    ArceeForCausalLM Cohere2ForCausalLM CohereForCausalLM Ernie4_5ForCausalLM Gemma2ForCausalLM
    Gemma3ForCausalLM GemmaForCausalLM Glm4ForCausalLM GPT2LMHeadModel GPTBigCodeForCausalLM
    GraniteForCausalLM LlamaForCausalLM MistralForCausalLM MixtralForCausalLM Olmo2ForCausalLM
    Olmo3ForCausalLM OlmoeForCausalLM OlmoForCausalLM OPTForCausalLM Phi3ForCausalLM PhiForCausalLM
    Qwen2_5_VLForConditionalGeneration Qwen2ForCausalLM Qwen2MoeForCausalLM
    Qwen2VLForConditionalGeneration Qwen3ForCausalLM Qwen3MoeForCausalLM
    Qwen3VLForConditionalGeneration SmolLM3ForCausalLM StableLmForCausalLM Starcoder2ForCausalLM
""".split()
# Compared with PEFT's adapters, token by token.
EXACT_WITH_ADAPTERS = """
    LlamaForCausalLM MistralForCausalLM Qwen2ForCausalLM Qwen3ForCausalLM
""".split()
# Compared with Transformers, token by token, with images.
EXACT_WITH_IMAGES = """
    Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration
    Qwen3VLForConditionalGeneration
""".split()
# Names, the device (None: any), and why.
REFUSED: tuple[tuple[str, Device | None, str], ...] = (
    ("GPTNeoXForCausalLM FalconForCausalLM BloomForCausalLM", None, NO_CLASS),
    ("MPTForCausalLM MptForCausalLM", None, NO_CLASS),
    ("LlavaForConditionalGeneration", None, NO_ENCODER),
    ("MambaForCausalLM Mamba2ForCausalLM", None, STATE_SPACE),
    ("DeepseekV2ForCausalLM DeepseekV3ForCausalLM MiniCPM3ForCausalLM", "cpu", NO_MLA),
    ("GptOssForCausalLM", "cpu", NO_SINKS),
    ("Exaone4ForCausalLM", "cpu", NO_KERNELS),
)
# Classes of SGLang's that give their attention the window of a layer; the others ignore it.
READS_WINDOW = """
    Cohere2ForCausalLM Exaone4ForCausalLM Gemma2ForCausalLM Gemma3ForCausalLM
    Gemma3ForConditionalGeneration Gemma3nForConditionalGeneration GptOssForCausalLM
    Olmo3ForCausalLM
""".split()
# Classes that always have one key head per query head, whatever the config says.
NO_GROUPED_HEADS = ("OlmoForCausalLM", "OlmoeForCausalLM", "PhiForCausalLM")
# Config keys that SGLang's classes do not read, and the values for which they are right.
SILU = """
    OlmoeForCausalLM StableLmForCausalLM CohereForCausalLM Cohere2ForCausalLM MixtralForCausalLM
    OlmoForCausalLM Olmo2ForCausalLM Olmo3ForCausalLM Qwen2MoeForCausalLM Qwen3MoeForCausalLM
"""
UNREAD: tuple[tuple[str, str, tuple[object, ...]], ...] = (
    (SILU, "hidden_act", ("silu",)),
    ("GemmaForCausalLM", "hidden_act", ("gelu", "gelu_pytorch_tanh")),
    ("GPT2LMHeadModel", "activation_function", ("gelu_new", "gelu_pytorch_tanh")),
    ("GPT2LMHeadModel", "scale_attn_weights", (True,)),
    ("GPT2LMHeadModel", "scale_attn_by_inverse_layer_idx", (False,)),
    ("OlmoeForCausalLM", "clip_qkv", (None,)),
    ("OlmoeForCausalLM", "norm_topk_prob", (False,)),
    ("StableLmForCausalLM PhiForCausalLM", "qk_layernorm", (False,)),
    ("StableLmForCausalLM", "use_parallel_residual", (False,)),
)
# Keys of rope scaling that Transformers reads and SGLang does not.
UNREAD_ROPE = ("attention_factor", "mscale", "mscale_all_dim")
# Why rows end where the factors of a kind of rope scaling change.
CHANGING_FACTORS = {
    "dynamic": "the model's own context: beyond it dynamic NTK scaling changes with a row's "
    "length, which SGLang does not do",
    "longrope": "the length up to which longrope uses its short factors: with one longer row, "
    "SGLang changes the factors of all rows in the batch",
}
ATTENTION_LAYERS = {"full_attention", "sliding_attention"}
STATE_KEYS = ("mamba_", "ssm_", "conv_L_cache", "linear_num_")


def architecture(hf_config: PretrainedConfig) -> str:
    """The name of a model's class, as its config.json has it."""
    names = getattr(hf_config, "architectures", None) or [type(hf_config).__name__]
    return str(names[0])


@at_fault(key="model_path")
def check_support(
    hf_config: PretrainedConfig, device: Device, max_model_len: int, attention_backend: str | None
) -> None:
    """Raise `ConfigError` if SGLang would not compute what Transformers computes, or if rows (of up
    to `max_model_len` tokens) could be longer than the model's context."""
    name = architecture(hf_config)
    for names, where, reason in REFUSED:
        if name in names.split() and where in (None, device):
            place = "on a CPU" if where else "with SGLang 0.5.9"
            raise ConfigError.of("model_path", f"{name} does not run {place}: {reason}.")
    text = getattr(hf_config, "text_config", hf_config)
    needed = {
        "max_position_embeddings": getattr(text, "max_position_embeddings", None),
        "num_attention_heads": getattr(text, "num_attention_heads", None),
    }
    for key, value in needed.items():
        if not isinstance(value, int) or hf_config.is_encoder_decoder:
            raise ConfigError(
                f"model_path: the config of {name} has no {key}, or it has an encoder; only "
                "models that decode text by attention, without an encoder, can be served."
            )
    if device == "cpu" and (what := _state_layers(text)):
        raise ConfigError(
            f"model_path: {name} does not run on a CPU: it has {what}, whose kernels need a GPU; "
            "serve it on a GPU."
        )
    _check_values(name, text)
    plain = _plain(device, attention_backend)
    if plain and getattr(text, "attn_logit_softcapping", None):
        raise ConfigError.of(
            "rollout.engine_kwargs.sglang.attention_backend",
            f"{attention_backend} ignores the soft caps of {name}; leave it out.",
        )
    for limit, reason in _limits(name, text, plain):
        check_length(max_model_len, limit, reason)


def longest_row(
    hf_config: PretrainedConfig, device: Device, attention_backend: str | None
) -> int | None:
    """The most tokens of a row for which `check_support` lets a model pass; None: any number."""
    text = getattr(hf_config, "text_config", hf_config)
    limits = _limits(architecture(hf_config), text, _plain(device, attention_backend))
    return min((limit for limit, _ in limits if limit is not None), default=None)


def _plain(device: Device, attention_backend: str | None) -> bool:
    """Whether the attention is one of SGLang's own for a CPU."""
    return device == "cpu" and attention_backend != CPU_ATTENTION


def has_experts(hf_config: PretrainedConfig) -> bool:
    """Whether the model is a mixture of experts."""
    text = getattr(hf_config, "text_config", hf_config)
    return bool(getattr(text, "num_experts_per_tok", None))


def check_experts(hf_config: PretrainedConfig, server_arguments: Mapping[str, object]) -> None:
    """Raise `ConfigError` if experts are to be returned of a model without them; SGLang's scheduler
    would die of it while it starts."""
    if server_arguments.get(CAPTURE_EXPERTS) and not has_experts(hf_config):
        raise ConfigError.of(
            OWN + CAPTURE_EXPERTS,
            f"{architecture(hf_config)} has no experts (no num_experts_per_tok in its config); "
            "leave the key out.",
        )


def check_lora(hf_config: PretrainedConfig, server_arguments: Mapping[str, object]) -> None:
    """Raise `ConfigError` if adapters are to be served of a model for which SGLang's were never
    compared; with experts its scheduler would die."""
    name = architecture(hf_config)
    if server_arguments.get(ENABLE) and name not in EXACT_WITH_ADAPTERS:
        raise ConfigError.of(
            OWN + ENABLE,
            f"SGLang 0.5.9's adapters of {name} were never compared with PEFT's, only adapters of "
            f"{', '.join(EXACT_WITH_ADAPTERS)}. rollout.name: hf serves them, or adapter_path "
            "merges one.",
        )


def _state_layers(text: PretrainedConfig) -> str:
    if others := sorted(set(getattr(text, "layer_types", None) or ()) - ATTENTION_LAYERS):
        return f"layers of the kind {', '.join(others)}"
    keys = [key for key in text.to_dict() if key.startswith(STATE_KEYS)]
    return f"layers with a state ({keys[0]})" if keys else ""


def _check_values(name: str, text: PretrainedConfig) -> None:
    heads, kept = text.num_attention_heads, getattr(text, "num_key_value_heads", None)
    if name in NO_GROUPED_HEADS and kept not in (None, heads):
        raise ConfigError(
            f"model_path: SGLang 0.5.9 does not run {name} with num_key_value_heads {kept} and "
            f"{heads} heads; it has no grouped heads for it."
        )
    for names, key, right in UNREAD:
        if name in names.split() and (value := getattr(text, key, right[0])) not in right:
            raise ConfigError(
                f"model_path: {name} with {key} {value!r}: SGLang 0.5.9 would compute {right[0]!r} "
                "instead."
            )
    scaling, kind = rope_scaling(text)
    # Transformers reads it for longrope outside of rope_scaling, SGLang in both places.
    original = scaling.get(ORIGINAL) if kind == "yarn" else original_context(text)
    if kind in ("yarn", "longrope") and original is None:
        raise ConfigError(
            f"model_path: {name} with rope_scaling {kind} without {ORIGINAL}: SGLang 0.5.9 needs "
            "it; add it to rope_scaling in the model's config.json (Transformers takes "
            f"max_position_embeddings, {text.max_position_embeddings}, instead)."
        )
    for key in UNREAD_ROPE if kind in ("yarn", "longrope") and name in EXACT_ON_CPU else ():
        if scaling.get(key) is not None:
            raise ConfigError(
                f"model_path: {name} with rope_scaling.{key} {scaling[key]!r}: SGLang 0.5.9 does "
                "not read it."
            )


def _limits(name: str, text: PretrainedConfig, plain: bool) -> Iterator[tuple[int | None, str]]:
    """The lengths up to which SGLang computes a row as Transformers does, each with its reason."""
    window = _window(text)
    if window is not None and (plain or name not in READS_WINDOW):
        yield window, f"the sliding window of {name}, which SGLang ignores"
    scaling, kind = rope_scaling(text)
    if "alpha" not in scaling:  # another formula, of fixed factors
        yield fixed_factors_length(text), CHANGING_FACTORS.get(kind or "", "")
    yield context_length(text), "the model's context"


def _window(text: object) -> int | None:
    """How many tokens, itself included, a token of a windowed layer sees; None: all."""
    window = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None)
    if not isinstance(window, int) or (kinds is not None and "sliding_attention" not in kinds):
        return None
    return window
