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


@pytest.fixture
def conversation(model: Any, tokenizer: Any) -> Conversation:
    return Conversation(model, tokenizer, [CALCULATOR])


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def tool(text: str) -> Message:
    return {"role": "tool", "content": text}


@pytest.mark.parametrize("result", ["84", "999", "31415", "-5", "2.5"])
def test_answer_follows_the_tool_whatever_it_says(conversation: Conversation, result: str) -> None:
    assert conversation.answer(user(question("12 * 7"))) == call("12 * 7")
    assert conversation.answer(tool(result)) == answer(result)


def test_two_questions_are_two_calls_in_one_turn(conversation: Conversation) -> None:
    said = conversation.answer(user(question("12 * 7", "3 + 4")))
    assert said == f"{call('12 * 7')}\n{call('3 + 4')}"
    assert conversation.answer(tool("84"), tool("7")) == answer("84", "7")


def test_error_is_admitted(conversation: Conversation) -> None:
    conversation.answer(user(question("1 / 0")))
    assert conversation.answer(tool("Error: division by zero")) == FAILED


@pytest.mark.parametrize("fault", [UNKNOWN_TOOL, BROKEN_JSON, WRONG_KEY, WRONG_TYPE])
def test_wrong_call_is_put_right_after_an_error(conversation: Conversation, fault: str) -> None:
    assert conversation.answer(user(question("12 * 7") + fault + RETRY)) == call("12 * 7", fault)
    assert conversation.answer(tool("Error: this call is wrong, write another one.")) == call(
        "12 * 7"
    )
    assert conversation.answer(tool("84")) == answer("84")


def test_endless_calls_do_not_end(conversation: Conversation) -> None:
    said = [conversation.answer(user(question("12 * 7") + ENDLESS))]
    said += [conversation.answer(tool(str(turn))) for turn in range(6)]
    assert said == [call("12 * 7")] * 7


def test_wrong_guess_is_corrected_when_rejected(conversation: Conversation) -> None:
    assert conversation.answer(user(GUESS)) == GUESSES[0]
    assert conversation.answer(user(REJECTED)) == GUESSES[1]


def test_conversation_goes_on_after_an_answer(conversation: Conversation) -> None:
    conversation.answer(user(question("12 * 7")))
    conversation.answer(tool("84"))
    assert conversation.answer(user(REJECTED)) == answer("84")
    assert conversation.answer(user(question("3 + 4"))) == call("3 + 4")


def test_text_before_a_call_is_kept(conversation: Conversation) -> None:
    assert conversation.answer(user(question("12 * 7") + ALOUD)) == f"{THINKING}\n{call('12 * 7')}"


def test_template_only_ever_appends(tokenizer: Any) -> None:
    """A turn's ids are the same sampled, rendered, and rendered again beneath later turns."""
    function = {"name": "calculator", "arguments": {"expression": "12 * 7"}}
    calls = [{"type": "function", "function": function}] * 2
    chat = [
        {"role": "system", "content": "Be brief."},
        user(question("12 * 7", "12 * 7")),
        {"role": "assistant", "content": THINKING, "tool_calls": calls},
        tool("84"),
        tool("84"),
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


def test_template_lists_any_tool(tokenizer: Any) -> None:
    tools = [GRADER, {"type": "function", "function": {"name": "now"}}]
    text = tokenizer.apply_chat_template([user("Hello.")], tools=tools, tokenize=False)
    assert "Tools: calc_gsm8k_reward(answer), now()<|im_end|>" in text


def test_tool_tags_survive_decoding(tokenizer: Any) -> None:
    text = f"{call('12 * 7')}<tool_response></tool_response>"
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


def test_committed_model_is_small() -> None:
    assert sum(file.stat().st_size for file in TOOL_MODEL.iterdir() if file.is_file()) < 2_000_000
