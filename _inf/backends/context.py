"""How long a row of a model may be, read from the rotary scaling of its config (the text part).

The rules are those of Transformers 4.57 (`modeling_rope_utils.py`) and SGLang 0.5.9
(`srt/layers/rotary_embedding.py`, `srt/utils/hf_transformers_utils.py`); tests compare them.
"""

from __future__ import annotations

from typing import Any

from _inf.errors import ConfigError

ORIGINAL = "original_max_position_embeddings"
# Kinds of scaling beside which `max_position_embeddings` is the context after scaling.
ALREADY_EXTENDED = ("llama3", "longrope")


def rope_scaling(text: object) -> tuple[dict[str, Any], str | None]:
    """The config's rotary scaling and its kind; empty and None if there is none."""
    scaling = getattr(text, "rope_scaling", None) or {}
    return scaling, scaling.get("rope_type", scaling.get("type"))


def original_context(text: object) -> int | None:
    """The context before scaling, where the config has it: the smaller one if it has two."""
    named = (rope_scaling(text)[0].get(ORIGINAL), getattr(text, ORIGINAL, None))
    return min((value for value in named if value), default=None)


def context_length(text: object) -> int | None:
    """Tokens of the model's context; None if its config has no `max_position_embeddings`."""
    context: int | None = getattr(text, "max_position_embeddings", None)
    if context is None:
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


def check_length(max_model_len: int, limit: int | None, reason: str) -> None:
    """Raise `ConfigError` if rows may be longer than a limit."""
    if limit is not None and max_model_len > limit:
        raise ConfigError(
            f"rollout.max_model_len: {max_model_len} tokens are more than {limit}, {reason}; "
            f"set rollout.max_model_len to {limit} or less."
        )
