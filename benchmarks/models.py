"""Which architectures of the installed Transformers the backend `hf` computes exactly: a table.

    .venv-hf/bin/python benchmarks/models.py > docs/models_hf.md

Each causal architecture becomes a tiny random model in float32, if its config can be shrunk by the
names of its fields. Three rows of 5, 30 and 60 tokens are computed as the backend does it, the last
four tokens one by one: together with a cache, or each alone and from its beginning. All logits of
the last four steps and of the prompt's last token must be those of one pass of the plain model over
the row, without cache and padding, within 1e-3.
"""

from __future__ import annotations

import datetime
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

sys.path.insert(0, str(Path(__file__).parents[1]))
from _inf.backends.hf.forward import Forward

WITHIN, LARGEST, STEPS = 1e-3, 300e6, 4
LAYERS, VOCABULARY = 4, 384
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "sliding_window": 24,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 3,
}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
CONV = {"layer_types": ["conv", "full_attention"] * 2}
MLA = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
}
STATES = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"], DELTA),
    **dict.fromkeys(["lfm2", "lfm2_moe"], CONV),
    **dict.fromkeys("deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite".split(), MLA),
    **dict.fromkeys("axk1 axk2 glm_moe_dsa longcat_flash minicpm3".split(), MLA),
    "gptj": {"rotary_dim": 8},
    "codegen": {"rotary_dim": 8},
    "cwm": {"bos_token_id": 1},
    "modernbert-decoder": {"bos_token_id": 1},
    "dots1": MLA,
    "olmo_hybrid": {"layer_types": DELTA["layer_types"]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, **STATES},
    "falcon_h1": {**STATES, "mamba_n_heads": 4, "mamba_d_ssm": 64},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2},
}


def shrunk(kind: str) -> Any:
    """A config; one of several modalities gets a small text model, by its own text_config."""
    kinds = CONFIG_MAPPING[kind]
    text = getattr(kinds, "sub_configs", {}).get("text_config")
    small = {**SMALL, **OWN.get(f"{kind}_text", OWN.get(kind, {}))}
    if text is not None and hasattr(text, "model_type"):
        return kinds(text_config=text(**small))
    try:
        return kinds(**small)
    except Exception:  # one whose heads have their size by another field
        return kinds(**{key: value for key, value in small.items() if key != "head_dim"})


def tiny(kind: str) -> Any:
    """A random model that computes, or why there is none."""
    config = shrunk(kind)
    if config.is_encoder_decoder:
        raise ValueError("it has an encoder")
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size / 1e6:.0f} million weights are left")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)
    return model


def difference(model: Any, forward: Forward) -> float:
    rows = [torch.randint(4, VOCABULARY, (length,)).tolist() for length in (5, 30, 60)]
    with torch.no_grad():
        plain = [model(input_ids=torch.tensor([row]), use_cache=False).logits[0] for row in rows]
    cache = DynamicCache() if forward.cached else None
    worst = 0.0
    for left in range(STEPS, -1, -1):
        ends = [len(row) - left for row in rows]
        if cache is None:
            ours = [forward([row[:end]])[0, -1] for row, end in zip(rows, ends, strict=True)]
        elif left == STEPS:
            ours = list(forward([row[:-STEPS] for row in rows], cache)[:, -1])
        else:
            last = [[row[end - 1]] for row, end in zip(rows, ends, strict=True)]
            ours = list(forward(last, cache, ends)[:, -1])
        for logits, end, expected in zip(ours, ends, plain, strict=True):
            worst = max(worst, float((logits - expected[end - 1].float()).abs().max()))
    return worst if worst == worst else float("inf")


def verdict(kind: str) -> tuple[str, str]:
    try:
        model = tiny(kind)
    except Exception as failure:
        reason = " ".join(str(failure).split()) or type(failure).__name__
        return "not measured", f"not shrunk: {reason[:100]}".replace("|", "/")
    try:
        forward = Forward(model, 200)
        if not forward.causal:
            return "refused", "a token's logits depend on tokens behind it"
        worst = difference(model, forward)
    except Exception as failure:
        return "fails", f"{type(failure).__name__}: {str(failure).splitlines()[0][:100]}"
    how = "cached, in batches" if forward.cached else "alone, from the beginning"
    return ("exact", how) if worst <= WITHIN else ("differs", f"{how}; by {worst:.2g}")


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    versions = f"Transformers {transformers.__version__}, torch {torch.__version__}"
    print("# Architectures on `hf`, measured\n")
    print(f"{versions}, CPU, float32, {datetime.date.today()}. Made by this command:\n")
    for line in (__doc__ or "").splitlines()[2:]:
        print(line)
    print(
        "\nMeasured at the backend's forward pass, without an engine around it. `refused`: by a "
        "start in float32. `not measured`: the command did not shrink its config, which says "
        "nothing about the model.\n"
    )
    print("| model type | class | verdict | how, or why |\n|---|---|---|---|")
    for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        said, how = verdict(kind)
        print(f"| {kind} | {name} | {said} | {how} |", flush=True)


if __name__ == "__main__":
    main()
