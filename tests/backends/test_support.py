"""Models that are refused before a start, each with one sentence. No engine starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import transformers

from _inf.backends.verl.support import (
    EXACT_ON_CPU,
    EXACT_WITH_IMAGES,
    REFUSED,
    check_experts,
    check_support,
)
from inf import ConfigError
from tests.support.architectures import LLAMA3, LONGROPE, MODELS, YARN, config
from tests.support.refusals import refused

pytestmark = pytest.mark.verl

CPU = "inf_cpu"
PAGE = Path(__file__).parents[2] / "docs/models.md"


def named(kind: str, name: str, **own: Any) -> Any:
    about = getattr(transformers, kind)(**own)
    about.architectures = [name]
    return about


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        ("GPTNeoX Falcon Bloom Mpt", "with SGLang 0.5.9: SGLang 0.5.9 has no class"),
        ("Mamba", "with SGLang 0.5.9: its layers keep a state"),
        ("GptOss", "on a CPU: its attention sinks"),
        ("DeepseekV2 DeepseekV3", r"on a CPU: its latent attention \(MLA\)"),
        ("Exaone4", "on a CPU: SGLang serves it"),
        ("Lfm2 FalconH1 GraniteMoeHybrid Qwen3Next Jamba", "on a CPU: it has layers"),
    ],
)
def test_architecture_is_refused_by_name(kinds, reason):
    for kind in kinds.split():
        about = named(f"{kind}Config", f"{kind}ForCausalLM")
        says = f"^model_path: {kind}ForCausalLM does not run {reason}"
        with pytest.raises(ConfigError, match=says):
            check_support(about, "cpu", 100, CPU)


def test_config_without_a_context_is_refused_by_name():
    for kind, name, says in (
        ("Mamba", "OtherForCausalLM", "OtherForCausalLM has no max_position_embeddings"),
        ("Rwkv", "RwkvForCausalLM", "RwkvForCausalLM has no num_attention_heads"),
        ("Bart", "BartForConditionalGeneration", "it has an encoder; only models that decode text"),
    ):
        with pytest.raises(ConfigError, match=says):
            check_support(named(f"{kind}Config", name), "cpu", 100, CPU)


HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
HALF_YARN = {"rope_scaling": {**YARN, "attention_factor": 0.5}}
BARE_YARN = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}


@pytest.mark.parametrize(
    ("kind", "name", "own", "said"),
    [
        ("GPT2", "GPT2LMHeadModel", {"activation_function": "relu"}, "'relu': .* 'gelu_new'"),
        ("Olmoe", "OlmoeForCausalLM", {"norm_topk_prob": True}, "norm_topk_prob True"),
        ("Phi", "PhiForCausalLM", HEADS, "num_key_value_heads 2 and 4 heads"),
        ("Mixtral", "MixtralForCausalLM", {"hidden_act": "gelu"}, "'gelu': .* 'silu'"),
        ("Llama", "LlamaForCausalLM", HALF_YARN, "rope_scaling.attention_factor 0.5: SGLang 0.5.9"),
        ("Llama", "LlamaForCausalLM", BARE_YARN, "yarn without original_max_position_embeddings"),
    ],
)
def test_value_that_sglang_would_ignore_is_refused(kind, name, own, said):
    check_support(named(f"{kind}Config", name), "cpu", 100, CPU)
    with pytest.raises(ConfigError, match=f"^model_path: .*{name} with .*{said}"):
        check_support(named(f"{kind}Config", name, **own), "cpu", 100, CPU)


def test_experts_of_a_model_without_them_cannot_be_returned():
    asked = {"enable_return_routed_experts": True}
    key = "rollout.engine_kwargs.sglang.enable_return_routed_experts"
    with refused(ConfigError, "Qwen3ForCausalLM has no exp", key=key):
        check_experts(named("Qwen3Config", "Qwen3ForCausalLM"), asked)
    check_experts(named("Qwen3MoeConfig", "Qwen3MoeForCausalLM"), asked)
    check_experts(named("Qwen3Config", "Qwen3ForCausalLM"), dict.fromkeys(asked, False))


WINDOW = "the sliding window of {}, which SGLang ignores"
ORIGINAL_512 = {"rope_scaling": LONGROPE, "original_max_position_embeddings": 512}
SMALL = {"hidden_size": 64, "num_attention_heads": 4, "pad_token_id": 0, "sliding_window": None}
OF_700 = {"max_position_embeddings": 700}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
USED = {"use_sliding_window": True, "max_window_layers": 2}
# Model, its own keys, the most tokens, why.
LIMITED = [
    ("Mistral", {"sliding_window": 300}, 300, WINDOW),
    ("Qwen2", {"sliding_window": 300, **USED}, 300, WINDOW),
    ("Phi3", SMALL | ORIGINAL_512, 512, "the length up to which longrope uses its short factors"),
    ("Llama", OF_700 | {"rope_scaling": DYNAMIC}, 700, "the model's own context: beyond it dyn"),
    ("Llama", OF_700 | {"rope_scaling": LLAMA3}, 700, "the model's context"),
    ("Qwen2", OF_700 | {"rope_scaling": YARN}, 1024, "the model's context"),
]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("kind", "own", "limit", "reason"), LIMITED, ids=str)
def test_rows_beyond_what_sglang_computes_are_refused_with_the_number_that_is_not(
    kind, own, limit, reason, device
):
    name, backend = f"{kind}ForCausalLM", CPU if device == "cpu" else None
    about = named(f"{kind}Config", name, **own)
    check_support(about, device, limit, backend)
    says = f"more than {limit}, {re.escape(reason.format(name))}.* to {limit} or less.$"
    with refused(ConfigError, says, key="rollout.max_model_len"):
        check_support(about, device, limit + 1, backend)


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "olmo3", "cohere2"])
def test_windows_that_are_computed_limit_nothing(name):
    about = config(name)
    about.architectures = [
        type(about).__name__.replace("TextConfig", "Config")[:-6] + "ForCausalLM"
    ]
    check_support(about, "cpu", 1000, CPU)
    with pytest.raises(ConfigError, match="torch_native|which SGLang ignores"):
        check_support(about, "cpu", 1000, "torch_native")


def test_page_shows_the_whole_table():
    measured = "exact | compared with Transformers, token by token"
    rows = [f"| {name} | cpu | {measured} |" for name in EXACT_ON_CPU]
    for names, device, reason in REFUSED:
        rows += [f"| {name} | {device or 'any'} | rejected | {reason} |" for name in names.split()]
    page = PAGE.read_text().splitlines()
    assert [line for line in page if re.match(r"\| \w+ \| (cpu|cuda|any) \|", line)] == rows


def test_every_architecture_that_is_called_exact_has_a_model_in_the_matrix():
    from transformers import AutoModelForCausalLM

    known = AutoModelForCausalLM._model_mapping
    classes = {known[type(config(name))].__name__ for name in MODELS}
    assert set(EXACT_ON_CPU) <= classes | set(EXACT_WITH_IMAGES)
