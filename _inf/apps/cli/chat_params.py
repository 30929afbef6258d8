"""The sampling parameters of a chat: what /set reads, shows and refuses. Knows no engine."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from _inf.apps.cli.options import SAMPLING, option_type
from _inf.errors import ConfigError, InferenceError

# Values of these are text; values of all others are parsed as JSON if possible.
TEXTS = [name for name, keyword in SAMPLING.items() if option_type(keyword) is str]
# Keywords of `generate` that a chat cannot use, and why: any chat, one whose answers are shown as
# text, one whose answers are shown while they are generated.
UNUSABLE = {
    "n": "a chat has one answer to each message; leave it out",
    "progress": "a chat shows no bar; leave it out",
    "tools": "a chat has those of its config; set rollout.multi_turn.tool_config_path",
}
ONLY_JSON = dict.fromkeys(
    ("logprobs", "prompt_logprobs", "sampling_mask", "return_routed_experts"),
    "only inf chat --json shows it",
)
NOT_STREAMED = {
    "num_beams": "a beam is known at its end only, and this chat streams; start inf chat --json",
    "max_tokens_per_turn": "a message has one turn without tools; set max_tokens",
    "interaction_kwargs": "this chat streams, and so has no interactions; start inf chat --json",
}


def check_usable(params: Mapping[str, Any], *, as_json: bool, streams: bool) -> None:
    """Raise `ConfigError` for the first keyword that the chat would accept and ignore."""
    unusable = UNUSABLE | ({} if as_json else ONLY_JSON) | (NOT_STREAMED if streams else {})
    for name in params:
        if name in unusable:
            raise ConfigError(f"{name}: {unusable[name]}.")


def assigned(params: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """Return the parameters after /set ASSIGNMENT; none removes one."""
    match = re.fullmatch(r"([\w-]+)(?:\s*=\s*|\s+)(.+)", assignment)
    if match is None:
        raise InferenceError("/set: it needs NAME VALUE, such as temperature 0.2")
    name, text = match.groups()
    name = name.replace("-", "_")
    changed = {**params, name: _value(name, text)}
    return {name: value for name, value in changed.items() if value is not None}


def _value(name: str, text: str) -> Any:
    """Parse the value of /set; a value that is not JSON is text, which `generate` may refuse."""
    if text == "none":
        return None
    value = text
    if name not in TEXTS:
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text)
    return text if name == "stop" and not isinstance(value, list) else value


def listed(values: Mapping[str, Any]) -> str:
    """Return values as /set shows them."""
    return ", ".join(f"{name}={value}" for name, value in values.items())
