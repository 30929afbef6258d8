"""What this backend supports, and which config keys it reads."""

from __future__ import annotations

from _inf.backends.description import OF_A_LOCAL_MODEL, SUPPORTED_LOCALLY, Mode

HF_MODE = Mode(
    "hf",
    supports=SUPPORTED_LOCALLY | {"logits", "beams"},
    reads=OF_A_LOCAL_MODEL,
)
