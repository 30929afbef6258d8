"""Builds a Transformers tokenizer from a GGUF's metadata.

Byte-level BPE is built here from the file's vocabulary, SentencePiece by Transformers 4.57, whose
converter (integrations/ggml.py) is wrong for BPE: it uses BOS as EOS, always prepends BOS, ignores
the file's rule for splitting text, and knows only three special tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer  # type: ignore[import-untyped]

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


def special_ids(meta: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of `bos`, `eos`, `pad` and `unk` in the metadata; `pad` is eos if missing."""
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    keys = {role: f"tokenizer.ggml.{name}_token_id" for role, name in names.items()}
    ids = {role: int(meta[key]) for role, key in keys.items() if key in meta}
    if "eos" in ids:
        ids.setdefault("pad", ids["eos"])
    return ids


def build_tokenizer(gguf: Path, meta: Mapping[str, Any]) -> Any:
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
    special = {f"{role}_token": tokens[id_] for role, id_ in special_ids(meta).items()}
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
    bos = special_ids(meta).get("bos")
    wanted = bos is not None and meta.get("tokenizer.ggml.add_bos_token", implied)
    prefix = [meta["tokenizer.ggml.tokens"][bos]] if wanted else []
    backend.post_processor = processors.TemplateProcessing(
        single=[*prefix, "$A"],
        pair=[*prefix, "$A", "$B:1"],
        special_tokens=[(token, bos) for token in prefix],
    )
