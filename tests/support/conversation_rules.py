"""Rules for conversations in tests, with generous limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from _inf.config import load_config
from _inf.conversation.rules import Rules
from _inf.request.tool_template import ToolTemplate
from _inf.types import Limits, ModelInfo, Tool
from tests.support.tiny import VOCABULARY, tiny_model


def rules(
    template: Any,
    tokenizer: Any,
    *,
    tools: Mapping[str, Tool] | None = None,
    eos: int = 7,
    vocabulary: int = 100,
    **rollout: Any,
) -> Rules:
    model = ModelInfo(tokenizer, frozenset([eos]), Limits(512, 999, vocabulary))
    config = load_config({"tool_timeout": 5.0, "rollout": {"response_length": 99, **rollout}}, {})
    return Rules(tools or {}, template, config, model)


def tiny_rules(chat_template: str, *tokens: str) -> Rules:
    """Those of the tiny model with another template, whose tokenizer got these tokens later."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    tokenizer.add_tokens([*tokens])
    tokenizer.chat_template = chat_template
    end = tokenizer.eos_token_id
    template = ToolTemplate(tokenizer, eos_token_ids=[end])
    return rules(template, tokenizer, vocabulary=VOCABULARY, eos=end)
