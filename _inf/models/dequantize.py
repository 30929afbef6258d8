"""Converts a GGUF file into a Transformers folder in float32, with the special tokens of the
GGUF's metadata in all of its files.

The weights go through Transformers' own GGUF reader. Byte-level BPE is built here from the file's
vocabulary, SentencePiece by Transformers 4.57, whose converter (integrations/ggml.py) is wrong for
BPE: it uses BOS as EOS, always prepends BOS, ignores the file's rule for splitting text, and knows
only three special tokens.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _inf.errors import ConfigError, error_text
from _inf.types import JSON

if TYPE_CHECKING:
    from tokenizers import Tokenizer  # type: ignore[import-untyped]

logger = logging.getLogger("inf.models")
_reading = threading.Lock()  # one file at a time

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_PRE = "tokenizer.ggml.pre"
# From the value of `_PRE` to the rule for splitting text, as in llama.cpp (src/llama-vocab.cpp).
_SPLITS = {
    "gpt-2": "gpt2",
    "smollm": "digits",
    "starcoder": "digits",
    "refact": "digits",
    "command-r": "digits",
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
    "llama-bpe": _LLAMA3_SPLIT,
}


def write_folder(gguf: Path, folder: Path) -> None:
    """Dequantize `gguf` into the existing, empty `folder`; a file that cannot be used (cut short,
    damaged, of an architecture that Transformers does not read) is an exception."""
    logger.info("dequantizing %s once; the result is cached", gguf)
    reader, meta = _read(gguf)
    _check_metadata(gguf, reader, meta)
    with _read_once(reader):
        tokenizer, model = _tokenizer(gguf, meta), _model(gguf, meta)
    try:
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
    except Exception as error:  # safetensors reports a full disk with its own exception
        raise ConfigError.of("model_path", f"cannot write {folder}: {error_text(error)}") from None


@contextlib.contextmanager
def _read_once(reader: Any) -> Iterator[None]:
    """Give Transformers this reader. It (4.57, `modeling_gguf_pytorch_utils.py`) would read a file
    twice more, and make the table of all names again for each of the model's modules."""
    import gguf

    with _reading:
        readers, names = gguf.GGUFReader, gguf.get_tensor_name_map
        gguf.GGUFReader, gguf.get_tensor_name_map = lambda path: reader, functools.cache(names)
        try:
            yield
        finally:
            gguf.GGUFReader, gguf.get_tensor_name_map = readers, names


def _read(gguf: Path) -> tuple[Any, Mapping[str, Any]]:
    """Return a reader of the file, and its metadata."""
    with gguf.open("rb") as file:
        head = file.read(4)
    if not head or not b"GGUF".startswith(head):
        what = "it is empty" if not head else "it does not begin with GGUF, so it is another file"
        raise ValueError(f"{what}; download it again")
    import gguf as package

    try:
        reader = package.GGUFReader(gguf)
        return reader, {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # gguf's own sentences say little
        why = f"cut short, damaged, or of a version that is not known here ({error_text(error)})"
        raise ValueError(f"{why}; download it again") from error


def _check_metadata(gguf: Path, reader: Any, meta: Mapping[str, Any]) -> None:
    """Refuse a file that is not a complete one of a language model."""
    for key in ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.tokens"):
        if key not in meta:
            raise ValueError(f"its metadata has no {key}: not a language model")
    if meta.get("split.count", 1) > 1:
        raise ValueError("one part of several; join them with `llama-gguf-split --merge`")
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


def _model(gguf: Path, meta: Mapping[str, Any]) -> Any:
    import torch
    import transformers
    import transformers.modeling_gguf_pytorch_utils as upstream
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    upstream.tqdm = lambda tensors, **_: tensors  # 4.57's progress bar cannot be switched off
    quantized = hasattr(transformers, "GgufConfig")  # 5: the weights stay quantized unless asked
    options = {"quantization_config": transformers.GgufConfig(dequantize=True)} if quantized else {}
    source: JSON = dict(
        pretrained_model_name_or_path=gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    config = AutoConfig.from_pretrained(**source)
    if head_dim := meta.get(f"{meta['general.architecture']}.attention.key_length"):
        config.head_dim = int(head_dim)  # 4.57 reads it for Gemma only (integrations/ggml.py)
    model, report = AutoModelForCausalLM.from_pretrained(
        **source, **options, config=config, output_loading_info=True
    )
    if quantized:  # what it reads from a GGUF it still takes for quantized, and refuses to save
        model.hf_quantizer = None
        vars(model.config).pop("quantization_config", None)
    if report["missing_keys"]:  # Transformers would leave them random, with a warning
        missing = sorted(report["missing_keys"])
        raise ValueError(f"the file lacks {len(missing)} weights, {missing[0]} among them")
    ids = {f"{role}_token_id": id_ for role, id_ in _special_ids(meta).items() if role != "unk"}
    model.config.update(ids)
    # The end-of-turn token ends an answer too, as in llama.cpp.
    roles = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    ends = list(dict.fromkeys(int(meta[role]) for role in roles if role in meta))
    eos = {"eos_token_id": ends} if len(ends) > 1 else {}
    model.generation_config = GenerationConfig(**{**ids, **eos})
    return model


def _special_ids(meta: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of `bos`, `eos`, `pad` and `unk` in the metadata; `pad` is eos if missing."""
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    keys = {role: f"tokenizer.ggml.{name}_token_id" for role, name in names.items()}
    ids = {role: int(meta[key]) for role, key in keys.items() if key in meta}
    if "eos" in ids:
        ids.setdefault("pad", ids["eos"])
    return ids


def _tokenizer(gguf: Path, meta: Mapping[str, Any]) -> Any:
    """Build a `PreTrainedTokenizerFast` that tokenizes like llama.cpp with this file."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    pre = meta.get(_PRE)
    if meta["tokenizer.ggml.model"] == "gpt2" and pre in _SPLITS:
        backend = _byte_level_bpe(meta, pre)
    else:  # SentencePiece, and splits unknown here
        loaded = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        backend = loaded.backend_tokenizer
    _set_bos(backend, meta)
    tokens = meta["tokenizer.ggml.tokens"]
    special = {f"{role}_token": tokens[id_] for role, id_ in _special_ids(meta).items()}
    architecture = meta["general.architecture"]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=meta.get("tokenizer.chat_template"),
        model_max_length=meta.get(f"{architecture}.context_length"),
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        padding_side="left",
        **special,
    )


def _byte_level_bpe(meta: Mapping[str, Any], pre: str) -> Tokenizer:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from tokenizers import pre_tokenizers as splitters

    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    vocab = {token: id_ for id_, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe"))
    rule = _SPLITS[pre]
    if own_rule := rule not in ("digits", "gpt2"):
        first = [splitters.Split(Regex(rule), behavior="isolated")]
    else:
        first = [splitters.Digits(individual_digits=True)] if rule == "digits" else []
    byte_level = splitters.ByteLevel(add_prefix_space=False, use_regex=not own_rule)
    tokenizer.pre_tokenizer = splitters.Sequence([*first, byte_level])
    if rule == _QWEN2_SPLIT:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, meta.get("tokenizer.ggml.token_type", ()), strict=False):
        if kind in (_CONTROL, _USER_DEFINED):
            added = AddedToken(token, normalized=False, special=kind == _CONTROL)
            add = tokenizer.add_special_tokens if kind == _CONTROL else tokenizer.add_tokens
            add([added])
    return tokenizer


def _set_bos(backend: Tokenizer, meta: Mapping[str, Any]) -> None:
    """Prepend BOS to plain text only if the file says so, or its tokenizer model implies it."""
    from tokenizers import processors

    implied = meta["tokenizer.ggml.model"] == "llama" or meta.get(_PRE) == "llama-bpe"
    bos = _special_ids(meta).get("bos")
    wanted = bos is not None and meta.get("tokenizer.ggml.add_bos_token", implied)
    prefix = [meta["tokenizer.ggml.tokens"][bos]] if wanted else []
    backend.post_processor = processors.TemplateProcessing(
        single=[*prefix, "$A"],
        pair=[*prefix, "$A", "$B:1"],
        special_tokens=[(token, bos) for token in prefix],
    )
