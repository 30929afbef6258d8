"""The template of the test model that calls tools; its answers are tested on engines."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.tool_calling import (
    CALCULATOR,
    GRADER,
    REJECTED,
    THINKING,
    TOOL_MODEL,
    answer,
    question,
)

Message = dict[str, Any]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOOL_MODEL)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def tool(text: str) -> Message:
    return {"role": "tool", "content": text}


def test_template_only_ever_appends(tokenizer: Any) -> None:
    """A turn's ids are the same sampled, rendered, and rendered again beneath later turns."""
    function = {"name": "calculator", "arguments": {"expression": "12 * 7"}}
    calls = [{"type": "function", "function": function}] * 2
    chat = [
        {"role": "system", "content": "Be brief."},
        user(question("12 * 7", "12 * 7")),
        {"role": "assistant", "content": THINKING, "tool_calls": calls},
        *(tool("84"), tool("84")),
        {"role": "assistant", "content": answer("84", "84")},
        user(REJECTED),
        {"role": "assistant", "content": answer("84", "84")},
    ]

    def ids(messages: list[Message], prompt: bool = False) -> list[int]:
        return tokenizer.apply_chat_template(
            messages, tools=[CALCULATOR, GRADER], add_generation_prompt=prompt, return_dict=False
        )

    whole = ids(chat)
    for turn in (2, 5, 7):
        prompt, after = ids(chat[:turn], prompt=True), ids(chat[: turn + 1])
        said = after[len(prompt) :]
        assert prompt == whole[: len(prompt)] and after == whole[: len(after)]
        assert said[-2:] == [tokenizer.eos_token_id, *tokenizer.encode("\n")]
        assert tokenizer.encode(tokenizer.decode(said)) == said
    shown = tokenizer.decode(whole)
    assert "calc_gsm8k_reward(answer)" in shown and "<tool_call>" in shown  # with any tool's tags
