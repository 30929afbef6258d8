"""Converts a GGUF file into a Transformers folder in float32, with the special tokens of the
GGUF's metadata in all of its files. The weights go through Transformers' own GGUF reader.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _inf.errors import ConfigError, error_text
from _inf.models.gguf_tokenizer import build_tokenizer, special_ids

logger = logging.getLogger("inf.models")

_LONGEST_ARRAY = 4_000_000  # entries; a damaged length would keep the reader busy for hours


def write_folder(gguf: Path, folder: Path) -> None:
    """Dequantize `gguf` into the existing, empty `folder`; a file that cannot be used (cut short,
    damaged, of an architecture that Transformers does not read) is an exception."""
    logger.info("dequantizing %s once; the result is cached", gguf)
    meta = _checked_metadata(gguf)
    tokenizer, model = build_tokenizer(gguf, meta), _model(gguf, meta)
    try:
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
    except Exception as error:  # safetensors reports a full disk with its own exception
        raise ConfigError.of("model_path", f"cannot write {folder}: {error_text(error)}") from None


def _checked_metadata(gguf: Path) -> Mapping[str, Any]:
    """Return the metadata of a file after checking that the file is complete."""
    from gguf import GGUFReader, GGUFValueType
    from numpy import dtype as numpy_dtype

    class BoundedReader(GGUFReader):  # type: ignore[misc]
        # gguf 0.19's own reader silently slices past the end of a short file.
        def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
            end = int(offset) + numpy_dtype(dtype).itemsize * int(count)
            if end > (size := len(self.data)):
                raise ValueError(
                    f"cut short or damaged: it refers to byte {end:,} and has {size:,}; "
                    "download it again"
                )
            return super()._get(offset, dtype, count, override_order)

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == GGUFValueType.ARRAY:
                length = int(self._get(orig_offs + 4, "uint64")[0])
                if length > _LONGEST_ARRAY:
                    raise ValueError(f"damaged: its header names an array of {length:,} entries")
            return super()._get_field_parts(orig_offs, raw_type)

    reader = BoundedReader(gguf)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    for key in ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.tokens"):
        if key not in meta:
            raise ValueError(f"its metadata has no {key}: not a language model")
    if meta.get("split.count", 1) > 1:
        raise ValueError("one part of several; join them with `llama-gguf-split --merge`")
    layers = int(meta.get(f"{meta['general.architecture']}.block_count", 0))
    if layers > (weights := len(reader.tensors)):  # Transformers would process each for hours
        raise ValueError(f"damaged: it declares {layers:,} layers and has {weights:,} weights")
    tokens = len(meta["tokenizer.ggml.tokens"])
    for role in ("bos", "eos", "eot", "padding", "unknown"):
        if not 0 <= meta.get(f"tokenizer.ggml.{role}_token_id", 0) < tokens:
            raise ValueError(f"its {role} token is not among its {tokens:,} tokens")
    scaling = meta.get(f"{meta['general.architecture']}.rope.scaling.type", "none")
    if scaling != "none" or any(tensor.name == "rope_freqs.weight" for tensor in reader.tensors):
        logger.warning(
            "%s scales its rotary embedding, which Transformers drops when it reads a GGUF: "
            "its answers will differ from the original model's, especially in long contexts",
            gguf,
        )
    return meta


def _model(gguf: Path, meta: Mapping[str, Any]) -> Any:
    import torch
    import transformers.modeling_gguf_pytorch_utils as upstream
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    upstream.tqdm = lambda tensors, **_: tensors  # 4.57's progress bar cannot be switched off
    source: dict[str, Any] = dict(
        pretrained_model_name_or_path=gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    config = AutoConfig.from_pretrained(**source)
    if head_dim := meta.get(f"{meta['general.architecture']}.attention.key_length"):
        config.head_dim = int(head_dim)  # 4.57 reads it for Gemma only (integrations/ggml.py)
    model, report = AutoModelForCausalLM.from_pretrained(
        **source, config=config, output_loading_info=True
    )
    if report["missing_keys"]:  # Transformers would leave them random, with a warning
        missing = sorted(report["missing_keys"])
        raise ValueError(f"the file lacks {len(missing)} weights, {missing[0]} among them")
    ids = {f"{role}_token_id": id_ for role, id_ in special_ids(meta).items() if role != "unk"}
    model.config.update(ids)
    # The end-of-turn token ends an answer too, as in llama.cpp.
    roles = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    ends = list(dict.fromkeys(int(meta[role]) for role in roles if role in meta))
    eos = {"eos_token_id": ends} if len(ends) > 1 else {}
    model.generation_config = GenerationConfig(**{**ids, **eos})
    return model
