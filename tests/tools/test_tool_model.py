"""The test model that calls tools, run by Transformers: it answers as tool_calling.py documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.tool_calling import (
    ALOUD,
    BROKEN_JSON,
    CALCULATOR,
    ENDLESS,
    FAILED,
    GRADER,
    GUESS,
    GUESSES,
    REJECTED,
    RETRY,
    THINKING,
    TOOL_MODEL,
    UNKNOWN_TOOL,
    WRONG_KEY,
    WRONG_TYPE,
    answer,
    call,
    question,
)

Message = dict[str, Any]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOOL_MODEL)


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    import torch
    from transformers import AutoModelForCausalLM

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model is slower on several
    yield AutoModelForCausalLM.from_pretrained(TOOL_MODEL)
    torch.set_num_threads(threads)


class Conversation:
    """A greedy conversation whose ids only grow, as a rollout's do; nothing is rendered again."""

    def __init__(self, model: Any, tokenizer: Any, tools: list[Message] | None) -> None:
        self.model, self.tokenizer, self.tools, self.ids = model, tokenizer, tools, []

    def answer(self, *messages: Message) -> str:
        """Return the model's answer to these messages."""
        import torch

        tools = None if self.ids else self.tools
        text = self.tokenizer.apply_chat_template(
            list(messages), tools=tools, tokenize=False, add_generation_prompt=True
        )
        self.ids += self.tokenizer.encode(("\n" if self.ids else "") + text)
        out = self.model.generate(torch.tensor([self.ids]), do_sample=False, max_new_tokens=100)
        said, self.ids = out[0, len(self.ids) :].tolist(), out[0].tolist()
        assert said.pop() == self.tokenizer.eos_token_id
        return self.tokenizer.decode(said, skip_special_tokens=True)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def tool(text: str) -> Message:
    return {"role": "tool", "content": text}


ONE, TWO = question("12 * 7"), question("12 * 7", "3 + 4")
CALL = call("12 * 7")


@pytest.mark.parametrize(
    "turns",
    [
        *([(user(ONE), CALL), (tool(said), answer(said))] for said in ("84", "31415", "-5", "2.5")),
        [(user(TWO), f"{CALL}\n{call('3 + 4')}"), ([tool("84"), tool("7")], answer("84", "7"))],
        [(user(ONE), CALL), (tool("Error: division by zero"), FAILED)],
        *(
            [
                (user(ONE + fault + RETRY), call("12 * 7", fault)),
                (tool("Error: this call is wrong, write another one."), CALL),
                (tool("84"), answer("84")),
            ]
            for fault in (UNKNOWN_TOOL, BROKEN_JSON, WRONG_KEY, WRONG_TYPE)
        ),
        [(user(ONE + ENDLESS), CALL), *((tool(str(turn)), CALL) for turn in range(6))],
        [(user(GUESS), GUESSES[0]), (user(REJECTED), GUESSES[1])],
        [
            *((user(ONE), CALL), (tool("84"), answer("84"))),
            *((user(REJECTED), answer("84")), (user(question("3 + 4")), call("3 + 4"))),
        ],
        [(user(ONE + ALOUD), f"{THINKING}\n{CALL}")],
    ],
)
def test_model_answers_as_its_page_says(model: Any, tokenizer: Any, turns: list[Any]) -> None:
    conversation = Conversation(model, tokenizer, [CALCULATOR])
    for given, said in turns:
        messages = given if isinstance(given, list) else [given]
        assert conversation.answer(*messages) == said


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
            messages, tools=[CALCULATOR, GRADER], add_generation_prompt=prompt
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
