"""Images in rows with tools and turns: in prompts, and as results of tools."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from _inf.config import load_config
from _inf.config.sections import ImageBounds
from _inf.conversation import episode
from _inf.parts.images import ImageReader
from _inf.request.tool_template import ToolTemplate
from _inf.types import ToolCall
from inf import GenerationRow, InferenceEngine
from tests.parts.test_images import TALL, WIDE, folder_of, image, text
from tests.support.vision import KINDS, Reference, picture

pytestmark = pytest.mark.engine
ROLLOUT = {"name": "hf", "dtype": "float32", "prompt_length": 640, "response_length": 380}
STOPS = list(range(5, 384, 6))  # so that a turn ends after some tokens
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 60, "progress": False}
SMALL = picture(3, 56, 84)
ASKED = [
    [{"role": "user", "content": [image(WIDE), text("Look closer.")]}],
    [{"role": "user", "content": "No picture yet."}],
]


def zoom(part: str) -> Any:
    """Show a part.

    Args:
        part: which one.
    """
    return {"one": SMALL, "two": ["Left: ", TALL, "and right: ", SMALL]}[part]


def with_turns(engine: InferenceEngine, patch: pytest.MonkeyPatch, **keys: Any) -> None:
    """`engine` as if its config had these keys."""
    over = {"rollout": {"multi_turn": keys}}
    patch.setattr(engine, "config", load_config(engine.config.to_dict(), over))


def always_calls(patch: pytest.MonkeyPatch) -> None:
    """Read two calls in each answer: a random model writes none."""
    read = episode.answered_calls
    calls = [ToolCall("zoom", {"part": part}, "", 0, 0) for part in ("one", "two")]

    def answered_calls(*args: Any, **about: Any) -> Any:
        parsed = read(*args, **about)
        return type(parsed)(parsed.content, calls)

    patch.setattr(episode, "answered_calls", answered_calls)


class Whole(Reference):
    """One pass of Transformers over a whole row."""

    def logprobs(self, ids: list[int], images: list[Any]) -> torch.Tensor:
        """Of each id but the first: ids x vocabulary."""
        asked = [{"role": "user", "content": [*map(image, images)]}]
        inputs = self.processor.apply_chat_template(
            asked, tokenize=True, return_dict=True, return_tensors="pt"
        )
        inputs["input_ids"] = torch.tensor([ids])
        inputs["attention_mask"] = torch.ones(1, len(ids), dtype=torch.long)
        if "mm_token_type_ids" in inputs:
            inputs["mm_token_type_ids"] = (
                inputs["input_ids"] == self.processor.image_token_id
            ).long()
        with torch.no_grad():
            return self.model(**inputs).logits[0].log_softmax(-1)[:-1]


def images_of(row: GenerationRow) -> list[Any]:
    contents = (m["content"] for m in row.messages if isinstance(m["content"], list))
    return [part["image"] for parts in contents for part in parts if part["type"] == "image"]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_images_of_tools_are_those_of_one_pass_of_transformers(kind, monkeypatch):
    folder = folder_of(kind)
    reference = Whole(folder)
    always_calls(monkeypatch)
    with InferenceEngine(model_path=str(folder), rollout=ROLLOUT) as engine:
        with_turns(engine, monkeypatch, max_assistant_turns=3)
        rows = engine.generate(ASKED, tools=[zoom], stop_token_ids=STOPS, **GREEDY)
        for row, own in zip(rows, (1, 0), strict=True):
            assert (row.error, row.metadata["limit"]) == (None, "max_assistant_turns")
            assert row.metadata["num_turns"] == 3
            images = images_of(row)
            assert len(row.images) == len(images) == own + 6
            ids, mask, logprobs = row.response
            found = reference.logprobs([*row.prompt_token_ids, *ids], images)
            after = found[len(row.prompt_token_ids) - 1 :]
            own_logprobs = after[torch.arange(len(ids)), torch.tensor(ids)]
            places = torch.tensor(mask).bool()
            assert torch.tensor(logprobs)[places] == pytest.approx(own_logprobs[places], abs=1e-5)
            assert after.argmax(-1)[places].tolist() == row.token_ids
            assert not any(torch.tensor(logprobs)[~places])
            assert [at for at, bit in enumerate(mask) if bit] == [
                at for each in row.transcript.answers for at in each
            ]


@pytest.mark.parametrize("kind", KINDS)
def test_images_after_an_answer_are_as_in_the_whole_conversation(kind):
    processor = Reference(folder_of(kind)).processor
    template = ToolTemplate(processor.tokenizer, eos_token_ids=[processor.tokenizer.eos_token_id])
    tokenized = ImageReader(ImageBounds()).tokenized
    results = [[image(TALL), text("see")], [text("wide"), image(WIDE), image(SMALL)]]
    messages = [{"role": "user", "content": [image(SMALL), text("What?")]}]
    ids, part = tokenized(template.tokenizer, template.text(messages, 0), messages, "", first=True)
    for number, content in enumerate(results):
        answer = f"I look {number}."
        ids += template.tokenizer(answer, add_special_tokens=False)["input_ids"]
        said = {"role": "assistant", "content": [text(answer)]}
        messages += [said, {"role": "tool", "content": content}]
        shown = template.text_after(messages, len(messages) - 2, messages)
        new, later = tokenized(template.tokenizer, shown, messages[-1:], "", first=False)
        part = part.followed_by(later, len(ids), len(new))
        ids += new
    whole = processor.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    assert whole.pop("input_ids")[0].tolist() == ids and part.tokens == len(ids)
    tokens = [place for place, token in enumerate(ids) if token == processor.image_token_id]
    assert [at for first, last in part.places for at in range(first, last + 1)] == tokens
    del whole["attention_mask"]
    assert whole.keys() == part.inputs.keys()
    for name, value in whole.items():
        torch.testing.assert_close(part.inputs[name], value, rtol=0, atol=0)
