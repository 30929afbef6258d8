"""What all backends read in the same way from the config and the model: limits, EOS ids, padding,
and how long a row may be by the rotary scaling of the model's config (the text part).

The rules of the context are those of Transformers 4.57 (`modeling_rope_utils.py`) and SGLang 0.5.9
(`srt/layers/rotary_embedding.py`, `srt/utils/hf_transformers_utils.py`); tests compare them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _inf.config import Config
from _inf.errors import ConfigError, at_fault, error_text
from _inf.types import Limits, ModelInfo, ThoughtMarks, Tokenizer

if TYPE_CHECKING:
    from transformers import GenerationConfig, PretrainedConfig

FLOAT32 = ("float32", "float")
ORIGINAL = "original_max_position_embeddings"
# Kinds of scaling with which `max_position_embeddings` is the context after scaling.
ALREADY_EXTENDED = ("llama3", "longrope")


def rope_scaling(text: object) -> tuple[dict[str, Any], str | None]:
    """The config's rotary scaling and its kind; empty and None if there is none."""
    scaling = getattr(text, "rope_scaling", None) or {}
    return scaling, scaling.get("rope_type", scaling.get("type"))


def original_context(text: object) -> int | None:
    """The context before scaling, where the config has it: the smaller one if it has two."""
    named = (
        rope_scaling(text)[0].get(ORIGINAL),
        getattr(text, "original_max_position_embeddings", None),
    )
    return min((value for value in named if value), default=None)


def context_length(text: object) -> int | None:
    """Tokens of the model's context; None if its config has no `max_position_embeddings`, or a
    negative one, as XLNet's."""
    context: int | None = getattr(text, "max_position_embeddings", None)
    if context is None or context < 0:
        return None
    scaling, kind = rope_scaling(text)
    factor, original = scaling.get("factor") or 1.0, scaling.get(ORIGINAL)
    if kind == "yarn":
        # By the factor alone: some configs have the context before scaling as their
        # max_position_embeddings (Qwen 2.5), some the one after it, and some a third number.
        return int((original or context) * factor)
    gemma3 = str(getattr(text, "model_type", "")).startswith("gemma3")
    return context if kind in ALREADY_EXTENDED or original or gemma3 else int(context * factor)


def fixed_factors_length(text: object) -> int | None:
    """Tokens up to which every row has the same rotary factors; None: any number.

    Beyond it the longest row of a batch changes the factors of all its rows.
    """
    kind, context = rope_scaling(text)[1], getattr(text, "max_position_embeddings", None)
    if kind == "longrope":
        return original_context(text) or context
    return context if kind == "dynamic" else None


@at_fault(key="rollout.max_model_len")
def check_length(max_model_len: int, limit: int | None, reason: str) -> None:
    if limit is not None and max_model_len > limit:
        raise ConfigError(
            f"rollout.max_model_len: {max_model_len} tokens are more than {limit}, {reason}; "
            f"set rollout.max_model_len to {limit} or less."
        )


def limits_of(config: Config, vocabulary: int, longest: int | None = None) -> Limits:
    """The limits of every call; a row's total is `max_model_len` or the sum of both lengths.

    longest: the most tokens of a row that the model can have. Of the two lengths, one that nobody
    set becomes what the other leaves of it, and both become smaller in proportion.
    """
    rollout = config.rollout
    prompt, response = rollout.prompt_length, rollout.response_length
    if longest is not None and prompt + response > longest and rollout.max_model_len is None:
        was_set = rollout.model_fields_set
        if "prompt_length" not in was_set:
            if "response_length" not in was_set:
                response = max(1, longest * response // (prompt + response))
            prompt = longest - response if longest > response else prompt
        elif "response_length" not in was_set and longest > prompt:
            response = longest - prompt
    return Limits(
        prompt=prompt,
        total=rollout.max_model_len or prompt + response,
        vocabulary=vocabulary,
        truncate=config.truncate_prompt,
    )


def with_limits(config: Config, limits: Limits) -> Config:
    """The config with the lengths of these limits."""
    rollout = config.rollout
    prompt = min(rollout.prompt_length, limits.prompt)
    response = min(rollout.response_length, limits.total - prompt)
    if (prompt, response) == (rollout.prompt_length, rollout.response_length):
        return config
    lengths = {"prompt_length": prompt, "response_length": response}
    return config.model_copy(update={"rollout": rollout.model_copy(update=lengths)})


def with_dtype(config: Config, on_cpu: bool, hf_config: PretrainedConfig) -> Config:
    """The config with a dtype in place of `auto`.

    On a CPU it is float32, in which alone rows are exact; so it is for the embedded model, whose
    answers in bfloat16 are gibberish. On a GPU it is the checkpoint's, and bfloat16 for one of
    float32, where SGLang 0.5.9 takes float16, whose range is smaller. For quantized weights the
    backend chooses.
    """
    if config.rollout.dtype != "auto" or getattr(hf_config, "quantization_config", None):
        return config
    dtype = "float32" if on_cpu or config.model_path is None else _half(hf_config)
    rollout = config.rollout.model_copy(update={"dtype": dtype})
    return config.model_copy(update={"rollout": rollout})


def _half(hf_config: PretrainedConfig) -> str:
    stored = str(hf_config.get_text_config().dtype or hf_config.dtype).removeprefix("torch.")
    return "float16" if stored == "float16" else "bfloat16"


def item_bytes(dtype: str) -> int:
    return 4 if dtype.removeprefix("torch.") in FLOAT32 else 2


def file_bytes(folder: Path) -> int:
    """Bytes of the model's weights as they are stored."""
    files = [*folder.glob("*.safetensors")] or [*folder.glob("*.bin")]
    return sum(file.stat().st_size for file in files)


def weight_bytes(folder: Path, hf_config: PretrainedConfig, dtype: str) -> int:
    """Bytes of the model's weights in that dtype."""
    stored = item_bytes(str(getattr(hf_config, "dtype", None)))
    return file_bytes(folder) * item_bytes(dtype) // stored


def eos_token_ids(
    generation_config: GenerationConfig | None, tokenizer: Tokenizer
) -> frozenset[int]:
    """The ids of the generation config and of the tokenizer; either may lack some of them."""
    named = getattr(generation_config, "eos_token_id", None)
    ids = named if isinstance(named, list) else [named]
    return frozenset(i for i in [*ids, tokenizer.eos_token_id] if i is not None)


def with_padding(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, which pads with its EOS if it has no token for that."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def with_template(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """The tokenizer with its processor's chat template, where an older model that reads images has
    only that (Transformers' `chat_template.json`)."""
    file = folder / "chat_template.json"
    if tokenizer.chat_template is None and file.is_file():
        try:
            tokenizer.chat_template = json.loads(file.read_bytes())["chat_template"]
        except (ValueError, KeyError, TypeError) as failure:
            raise ConfigError.of("model_path", f"{file}: {failure!r}.") from None
    return tokenizer


def with_thought_marks(model: ModelInfo, config: Config) -> ModelInfo:
    """The model with the marks of the config's `reasoning_parser`, if it names one and the
    tokenizer is here."""
    marks, tokenizer = config.reasoning_parser, model.tokenizer
    if marks is None or tokenizer is None:
        return model
    start, end = (
        list(tokenizer(mark, add_special_tokens=False)["input_ids"])
        for mark in (marks.start, marks.end)
    )
    ends = sorted(model.eos_token_ids)
    return dataclasses.replace(model, thought_marks=ThoughtMarks(start, end, marks.unopened, ends))


def tokenizer_only(key: str, path: str, config: Config) -> ModelInfo:
    """The tokenizer in `path`, a folder or a Hub id, and what is known without the weights.

    Raises `ConfigError` about the config's `key` if Transformers cannot load it.
    """
    from _inf.models.hub import hub_tokenizer

    trusted = {"trust_remote_code": config.trust_remote_code}
    revision = config.revision if key == "model_path" else None
    path = hub_tokenizer(key, path, config.trust_remote_code, revision)
    try:
        tokenizer = with_padding(_tokenizer(path, trusted))
    except Exception as failure:
        raise ConfigError.of(
            key, f"Transformers cannot load a tokenizer from {path}: {error_text(failure)}."
        ) from failure
    from transformers import GenerationConfig

    vocabulary, generation = len(tokenizer), None
    with contextlib.suppress(Exception):  # a folder of the tokenizer alone has neither
        vocabulary = _vocabulary(path, trusted) or vocabulary
    with contextlib.suppress(Exception):
        generation = GenerationConfig.from_pretrained(path)
    eos = eos_token_ids(generation, tokenizer)
    return ModelInfo(tokenizer, eos, limits_of(config, vocabulary))


def _tokenizer(path: str, trusted: Mapping[str, bool]) -> Tokenizer:
    """The tokenizer. One whose class or model this Transformers does not know is read from its
    tokenizer.json, which has all but its class's own Python code."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    try:
        return AutoTokenizer.from_pretrained(path, **trusted)
    except Exception as failure:
        if "trust_remote_code" in str(failure):  # it has code of its own, which may not be run
            raise
        with contextlib.suppress(Exception):  # of the two failures the first says what is missing
            more = get_tokenizer_config(path).get("extra_special_tokens")
            # Transformers 5 writes a list there, and 4.57 wants a dict.
            listed = {"extra_special_tokens": {}, "additional_special_tokens": more}
            given = listed if isinstance(more, list) else {}
            return PreTrainedTokenizerFast.from_pretrained(path, **given)
        raise


def _vocabulary(path: str, trusted: Mapping[str, bool]) -> int | None:
    """The width of the model's logits, which may be more than the tokenizer's tokens."""
    from transformers import AutoConfig, PretrainedConfig

    try:
        given = AutoConfig.from_pretrained(path, **trusted).get_text_config().to_dict()
    except Exception:  # a model that this Transformers does not know
        given, _ = PretrainedConfig.get_config_dict(path)
        given = given.get("text_config", given)
    size: int | None = given.get("vocab_size")
    return size


def auto_class(hf_config: object) -> Any:
    """Transformers' class that makes a text model of a config, else one of several modalities."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    text, several = AutoModelForCausalLM, AutoModelForImageTextToText
    kind = type(hf_config)
    only_several = kind in several._model_mapping and kind not in text._model_mapping
    return several if only_several else text
