"""A GGUF file of the tiny Qwen3, float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.tiny import tiny_model


def write_gguf(
    file: Path, *, architecture: str = "qwen3", pre: str = "gpt-2", **metadata: Any
) -> Path:
    import gguf
    from safetensors.numpy import load_file

    folder = tiny_model("qwen3")
    config = json.loads((folder / "config.json").read_text())
    bpe = json.loads((folder / "tokenizer.json").read_text())
    vocab = sorted(bpe["model"]["vocab"].items(), key=lambda item: item[1])
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    rope = config.get("rope_parameters", config)  # Transformers 5 has them in a dict of their own
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in vocab])
    special = {token["id"] for token in bpe["added_tokens"]}
    writer.add_token_types([3 if id_ in special else 1 for _, id_ in vocab])
    writer.add_token_merges([" ".join(merge) for merge in bpe["model"]["merges"]])
    writer.add_chat_template((folder / "chat_template.jinja").read_text())
    ids = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 3, "add_bos_token": False}
    for name, value in {**ids, **metadata}.items():
        getattr(writer, f"add_{name}")(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
