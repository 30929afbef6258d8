"""Loads and unloads LoRA adapters over HTTP, in vLLM's form (0.32.0,
`entrypoints/serve/lora/protocol.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from _inf.apps.openai_requests import RequestBody
from _inf.apps.serve.error_responses import RequestError
from _inf.errors import error_text, shown

if TYPE_CHECKING:
    from inf import InferenceEngine


class LoadBody(RequestBody):
    """lora_path: below the server's adapter folder, or relative to it. load_inplace: it may replace
    an adapter."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    # Accepted only at the value without effect.
    is_3d_lora_weight: Literal[False] | None = None


class UnloadBody(RequestBody):
    lora_name: str
    lora_int_id: object = None  # vLLM's own number, which has no effect there either


def load_adapter(root: Path, engine: InferenceEngine, body: LoadBody) -> str:
    """Load an adapter from below `root`: no request has files of other folders read."""
    try:
        folder = (root / body.lora_path).resolve()
    except (OSError, ValueError, RuntimeError) as failure:  # a NUL; links in a circle
        reason = f"lora_path: {shown(body.lora_path)} is not a folder: {error_text(failure)}."
        raise RequestError(400, reason, key="lora_path") from failure
    if not folder.is_relative_to(root.resolve()):
        reason = f"{body.lora_path!r} is not below the server's adapter folder."
        raise RequestError(400, f"lora_path: {reason}", key="lora_path")
    if body.lora_name in engine.adapters and not body.load_inplace:
        reason = f"{body.lora_name!r} is loaded already; replace it with load_inplace: true."
        raise RequestError(400, f"lora_name: {reason}", key="lora_name")
    engine.load_adapter(body.lora_name, folder)
    return f"Success: LoRA adapter '{body.lora_name}' added successfully."


def unload_adapter(engine: InferenceEngine, body: UnloadBody) -> str:
    if body.lora_name not in engine.adapters:
        raise RequestError(404, f"lora_name: {body.lora_name!r} is not loaded.", key="lora_name")
    engine.unload_adapter(body.lora_name)
    return f"Success: LoRA adapter '{body.lora_name}' removed successfully."
