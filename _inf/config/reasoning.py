"""Names how models mark their thoughts, so that a config is checked without importing a parser.

The names are those of vLLM's parsers (main at 0064cc9, `vllm/reasoning/__init__.py`) whose models
mark a thought by a text before it and one after it. vLLM reads the others by rules of their own.
"""

from __future__ import annotations

from _inf.errors import did_you_mean, shown
from _inf.types import JSON

# As `ReasoningMarks` of the schema. With `unopened` an answer is a thought from its start even if
# nothing opens one, as in vLLM.
THINK = {"start": "<think>", "end": "</think>"}
UNOPENED = {**THINK, "unopened": True}
PARSERS: dict[str, JSON] = {
    "deepseek_r1": UNOPENED,
    "deepseek_v3": THINK,
    "glm45": THINK,
    "glm47": THINK,
    "holo2": UNOPENED,
    "kimi_k2": UNOPENED,
    "mimo": THINK,
    "minimax_m2": UNOPENED,
    "mistral": {"start": "[THINK]", "end": "[/THINK]"},
    "nemotron_v3": THINK,
    "olmo3": THINK,
    "qwen3": THINK,
    "seed_oss": {"start": "<seed:think>", "end": "</seed:think>"},
    "step3": UNOPENED,
    "step3p5": UNOPENED,
}


def parser_fault(name: str) -> str:
    """Return why there is no reasoning parser `name`; "" if there is one."""
    if name in PARSERS:
        return ""
    hint = did_you_mean(name, PARSERS) or "."
    return (
        f"{shown(name)} is not a reasoning parser{hint} They are {', '.join(PARSERS)}; for other "
        "models give {start: ..., end: ...}, the texts before and after a thought"
    )
