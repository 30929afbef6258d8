"""One GGUF file in, one Transformers folder out, float32.

`write_folder(gguf, folder)` fills an existing empty folder with config.json, model.safetensors,
tokenizer.json, tokenizer_config.json, the chat template and generation_config.json. All of them
name the special tokens that the GGUF's metadata names. A file that cannot be used (cut short,
damaged, not a GGUF, of an architecture Transformers does not read) is a `ConfigError`.

The weights go through Transformers' own GGUF reader, the tokenizer through `gguf_tokenizer`.

This module knows nothing of caches, locks or where the file came from.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _inf.errors import ConfigError
from _inf.models.gguf_tokenizer import build_tokenizer, special_ids

logger = logging.getLogger("inf.models")

FORMAT = 1  # raise it when what is written here changes: cached folders are then made anew

_LONGEST_ARRAY = 4_000_000  # entries; a damaged length would keep the reader busy for hours


def write_folder(gguf: Path, folder: Path) -> None:
    """Dequantize `gguf` into the existing, empty `folder`."""
    _check_magic(gguf)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy, of offsets that overflow
            meta, size = _read(gguf)
    except Exception as error:
        raise _unusable(gguf, _reason(error)) from None
    _check_room(folder, size)
    logger.info("dequantizing %s, once: the result is cached", gguf)
    try:
        with _quiet_transformers():
            tokenizer = build_tokenizer(gguf, meta)
            model = _model(gguf, meta)
    except Exception as error:
        logger.debug("Transformers and %s", gguf, exc_info=True)
        raise _unusable(gguf, f"Transformers cannot read it: {_reason(error)}") from None
    try:
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
    except Exception as error:  # safetensors reports a full disk with its own exception
        raise ConfigError(f"model_path: cannot write {folder}: {_reason(error)}") from None


def _check_magic(gguf: Path) -> None:
    try:
        with gguf.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise _unusable(gguf, error.strerror or str(error)) from None
    if magic != b"GGUF":
        what = f"it begins with {magic!r}, not with b'GGUF'" if magic else "it is empty"
        raise _unusable(gguf, f"not a GGUF file: {what}")


def _read(gguf: Path) -> tuple[Mapping[str, Any], int]:
    """The metadata, and the size of the weights in float32.

    Whatever the file says it holds is known to be there: not a byte past its end is looked at.
    """
    from gguf import GGUFReader, GGUFValueType
    from numpy import dtype as numpy_dtype

    size = gguf.stat().st_size

    class BoundedReader(GGUFReader):  # type: ignore[misc]
        # gguf 0.19's own reader slices past the end of a short file without a word.
        def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
            end = int(offset) + numpy_dtype(dtype).itemsize * int(count)
            if end > size:
                raise ValueError(
                    f"cut short or damaged: it speaks of byte {end:,} and has {size:,}; "
                    "fetch it again"
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
    _check_metadata(meta)
    if not reader.tensors:
        raise ValueError("it holds no weights, only a vocabulary")
    layers, weights = (
        int(meta.get(f"{meta['general.architecture']}.block_count", 0)),
        reader.tensors,
    )
    if layers > len(weights):  # Transformers would plan each of them, for hours
        raise ValueError(f"damaged: it names {layers:,} layers and has {len(weights):,} weights")
    _warn_of_rope_scaling(gguf, meta, {tensor.name for tensor in reader.tensors})
    return meta, sum(4 * int(tensor.n_elements) for tensor in reader.tensors)


def _check_metadata(meta: Mapping[str, Any]) -> None:
    for key in ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.tokens"):
        if key not in meta:
            raise ValueError(f"its metadata has no {key}: not a language model")
    if meta.get("split.count", 1) > 1:
        raise ValueError("one part of several; join them with `llama-gguf-split --merge`")
    names = len(meta["tokenizer.ggml.tokens"])
    for role in ("bos", "eos", "eot", "padding", "unknown"):
        if not 0 <= meta.get(f"tokenizer.ggml.{role}_token_id", 0) < names:
            raise ValueError(f"its {role} token is not among its {names:,} tokens")


def _warn_of_rope_scaling(gguf: Path, meta: Mapping[str, Any], tensors: set[str]) -> None:
    scaling = meta.get(f"{meta['general.architecture']}.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in tensors:
        logger.warning(
            "%s scales its rotary embedding, which Transformers drops when it reads a GGUF: "
            "expect other answers than the original's, most of all in long contexts",
            gguf,
        )


def _check_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise ConfigError(
            f"model_path: {folder.parent} has {free / 1e9:.1f} GB free and the float32 weights "
            f"need {size / 1e9:.1f} GB; set XDG_CACHE_HOME to a larger disk"
        )


def _model(gguf: Path, meta: Mapping[str, Any]) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

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
    # The end of a turn ends an answer too, as in llama.cpp.
    roles = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    ends = list(dict.fromkeys(int(meta[role]) for role in roles if role in meta))
    eos = {"eos_token_id": ends} if len(ends) > 1 else {}
    model.generation_config = GenerationConfig(**{**ids, **eos})
    return model


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bars and no warnings in here, and everything as it was afterwards."""
    import transformers.modeling_gguf_pytorch_utils as upstream
    from transformers.utils import logging as switches

    if logger.isEnabledFor(logging.DEBUG):
        yield
        return
    verbosity, bar = switches.get_verbosity(), switches.is_progress_bar_enabled()
    # Its bar over the tensors (modeling_gguf_pytorch_utils.py, 4.57) has no switch.
    tqdm = upstream.tqdm
    try:
        upstream.tqdm = lambda tensors, **_: tensors
        switches.set_verbosity_error()
        switches.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        upstream.tqdm = tqdm
        switches.set_verbosity(verbosity)
        if bar:
            switches.enable_progress_bar()


def _unusable(gguf: Path, why: str) -> ConfigError:
    return ConfigError(f"model_path: {gguf} cannot be used: {why}")


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if isinstance(error, ValueError) and lines:
        return lines[0]
    return " ".join([type(error).__name__ + ":", *lines[:2]])
