"""Images in rows with tools and turns: in prompts, and as results of tools."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from _inf.config import load_config
from _inf.config.sections import ImageBounds
from _inf.conversation import episode
from _inf.parts.images import ImageReader
from _inf.parts.images.digests import digest
from _inf.request.tool_template import ToolTemplate
from _inf.types import ToolCall
from inf import GenerationRow, InferenceEngine, PromptError, as_rollouts
from tests.parts.test_images import TALL, WIDE, folder_of, image, png, text
from tests.support.running import begun
from tests.support.scripts import until
from tests.support.tiny import tiny_model
from tests.support.vision import KINDS, Reference, picture, vision_model

pytestmark = pytest.mark.engine
ROLLOUT = {"name": "hf", "dtype": "float32", "prompt_length": 640, "response_length": 380}
STOPS = list(range(5, 384, 6))  # so that a turn ends after some tokens
GREEDY: dict[str, Any] = {
    "temperature": 0, "max_tokens": 60, "stop_token_ids": STOPS, "progress": False
}  # fmt: skip
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


def always_calls(patch: pytest.MonkeyPatch, *arguments: dict[str, Any]) -> None:
    """Read calls of `zoom` with these arguments in each answer: a random model writes none."""
    read = episode.answered_calls
    calls = [ToolCall("zoom", each, "", 0, 0) for each in arguments]

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
            is_image = inputs["input_ids"] == self.processor.image_token_id
            inputs["mm_token_type_ids"] = is_image.long()
        with torch.no_grad():
            return self.model(**inputs).logits[0].log_softmax(-1)[:-1]

    def check(self, row: GenerationRow, images: int, turns: int) -> None:
        """That a greedy row of so many images and turns is what the model says."""
        assert (row.error, row.metadata["num_turns"]) == (None, turns)
        opened = images_of(row)
        assert row.images == [*map(digest, opened)] and len(opened) == images
        ids, mask, logprobs = row.response
        whole = self.logprobs([*row.prompt_token_ids, *ids], opened)
        found = whole[len(row.prompt_token_ids) - 1 :]
        sampled = torch.tensor(mask).bool()
        places = [place for each in row.transcript.answers for place in each]
        assert sampled.nonzero()[:, 0].tolist() == places
        assert found.argmax(-1)[sampled].tolist() == row.token_ids
        expected = found.max(-1).values * sampled
        assert logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def images_of(row: GenerationRow) -> list[Any]:
    contents = (m["content"] for m in row.messages if isinstance(m["content"], list))
    return [part["image"] for parts in contents for part in parts if part["type"] == "image"]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_images_of_tools_are_those_of_one_pass_of_transformers(kind, monkeypatch):
    folder = folder_of(kind)
    reference = Whole(folder)
    always_calls(monkeypatch, {"part": "one"}, {"part": "two"})
    with InferenceEngine(model_path=str(folder), rollout=ROLLOUT) as engine:
        with_turns(engine, monkeypatch, max_assistant_turns=3)
        with_image, without = engine.generate(ASKED, tools=[zoom], **GREEDY)
        reference.check(with_image, images=7, turns=3)
        reference.check(without, images=6, turns=3)


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


@pytest.fixture(scope="module")
def engine() -> Iterator[InferenceEngine]:
    with InferenceEngine(model_path=str(vision_model("llava")), rollout=ROLLOUT) as engine:
        yield engine


@pytest.fixture(scope="module")
def reference() -> Whole:
    return Whole(vision_model("llava"))


def response(*images: object, said: str | None = None, video: object = None) -> SimpleNamespace:
    """verl's `ToolResponse`."""
    return SimpleNamespace(text=said, image=[*images], video=video)


RESULTS: dict[str, tuple[Any, list[dict[str, Any]] | str]] = {
    "transparent": (SMALL.convert("RGBA"), [image(SMALL)]),
    "list": (["a ", SMALL, {"x": 1}], [text("a "), image(SMALL), text('{"x": 1}')]),
    "parts": ([text("<image>"), image(TALL)], [text("< image>"), image(TALL)]),
    "verl": (response(png(8, 8), said="see"), [image(Image.new("RGB", (8, 8))), text("see")]),
    "long": ([text("x" * 300), SMALL],
             [image(SMALL), text(f"{'x' * 128}...(44 characters cut)...{'x' * 128}")]),
    "no image": (["a", "b"], '["a", "b"]'),
    "path": (response("/etc/hostname"), "'/etc/hostname' is no image of PIL, and no bytes"),
    "broken": (response(png(8, 8)[:-30]), "content[0]: the image cannot be read"),
    "large": (response(png(8000, 8000)), "8000 x 8000 pixels, more than"),
    "together": (response(*[png(4200, 4200)] * 2), "images of the result have 35,280,000 pixels"),
    "many": ([SMALL] * 65, "the result has more than 64 images"),
    "video": (response(video=[b""]), "it returned a video"),
}  # fmt: skip


def test_each_form_of_a_result_is_read_within_the_bounds(engine, monkeypatch):
    always_calls(monkeypatch, *({"part": name} for name in RESULTS))
    with_turns(engine, monkeypatch, max_assistant_turns=2, max_parallel_calls=20)

    def zoom(part: str) -> Any:
        """Show it."""
        return RESULTS[part][0]

    [row] = engine.generate(ASKED[1:], tools=[zoom], **GREEDY)
    for (_, expected), message in zip(RESULTS.values(), row.messages[2:], strict=True):
        if isinstance(expected, str):
            assert expected in message["content"]
            continue
        assert [part["type"] for part in message["content"]] == [each["type"] for each in expected]
        for part, each in zip(message["content"], expected, strict=True):
            assert part.get("text") == each.get("text")
            assert part["type"] == "text" or digest(part["image"]) == digest(each["image"])
    assert row.metadata["limit"] == "response_length" and row.images is None  # it did not fit
    said = [each["result"] for each in row.to_dict()["executed_tool_calls"]]
    assert said[:2] == ["", 'a {"x": 1}'] and said[6].startswith("Error: zoom failed: content[0]")


def test_where_images_are_not_read_the_model_or_the_row_says_so(engine, monkeypatch):
    always_calls(monkeypatch, {"part": "one"})
    with_turns(engine, monkeypatch, max_assistant_turns=2)
    of_users = """{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}
        {%- for part in m.content %}{{ part.text }}{% endfor %}{% endif %}<|im_end|>{% endfor %}"""
    [row] = engine.generate(ASKED[1:], tools=[zoom], chat_template=of_users, **GREEDY)
    assert "the model's chat template shows 0 of its 1 images" in row.error
    with InferenceEngine(model_path=str(tiny_model()), rollout=ROLLOUT) as text_only:
        with_turns(text_only, monkeypatch, max_assistant_turns=2)
        [row] = text_only.generate(ASKED[1:], tools=[zoom], **GREEDY)
        said = "Error: zoom failed: it returned an image: model_path: "
        assert row.messages[2]["content"].startswith(said) and row.error is None


def test_image_that_the_models_processor_refuses_is_its_calls_error(monkeypatch):
    always_calls(monkeypatch, {"part": "thin"})

    def zoom(part: str) -> Any:
        """Show it."""
        return Image.new("RGB", (400, 1))

    with InferenceEngine(model_path=str(folder_of("qwen2_vl")), rollout=ROLLOUT) as engine:
        with_turns(engine, monkeypatch, max_assistant_turns=2)
        [row] = engine.generate(ASKED[1:], tools=[zoom], **GREEDY)
    said = row.messages[2]["content"]
    assert "content[0]: the model's processor refused the image" in said and row.error is None


class Album:
    def reset(self, **columns: object) -> str:
        return " An album is open."

    def zoom(self, part: str) -> Any:
        """Show a part.

        Args:
            part: which one.
        """
        return zoom(part)


def test_environments_and_interactions_go_on_after_images(engine, reference, monkeypatch):
    class Insists:
        async def start_interaction(self, instance_id: str, **kwargs: object) -> None:
            pass

        async def generate_response(self, instance_id: str, messages: Any, **kwargs: object) -> Any:
            return len(messages) > 4, "Look again.", 0.0, {}

    monkeypatch.setattr(engine._configured, "interactions", {"own": Insists()})
    [row] = engine.generate(ASKED[:1], interaction_kwargs={"name": "own"}, **GREEDY)
    reference.check(row, images=1, turns=3)
    assert [message["role"] for message in row.messages] == ["user", "assistant"] * 3
    always_calls(monkeypatch, {"part": "two"})
    with_turns(engine, monkeypatch, max_assistant_turns=3)
    [row] = engine.generate(ASKED[:1], environment_factory=Album, **GREEDY)
    reference.check(row, images=5, turns=3)
    assert row.messages[0]["content"][-1] == text(" An album is open.")


def test_row_with_images_of_tools_goes_on_after_a_pause_and_as_a_prompt(
    engine, reference, monkeypatch
):
    always_calls(monkeypatch, {"part": "one"})
    with_turns(engine, monkeypatch, max_assistant_turns=3)
    [whole] = engine.generate(ASKED[:1], tools=[zoom], **GREEDY)
    rounds = iter([None, begun])

    def zoom_until_paused(part: str) -> Any:
        if next(rounds):
            begun(lambda: engine.pause("abort"))
            assert until(lambda: engine.paused, 30)
        return zoom(part)

    zoom_until_paused.__name__, zoom_until_paused.__doc__ = "zoom", zoom.__doc__
    [ended] = engine.generate(ASKED[:1], tools=[zoom_until_paused], **GREEDY)
    assert ended.finish_reason == "abort" and len(ended.images) == 3
    engine.resume()
    with pytest.raises(PromptError, match="a row with images"):
        engine.generate(as_rollouts(ended))
    [row] = engine.generate([ended], tools=[zoom], **GREEDY)
    assert row.response[0] == whole.response[0] and row.images == whole.images
    reference.check(row, images=3, turns=3)
    [again] = engine.generate([[*row.messages, {"role": "user", "content": "So?"}]], **GREEDY)
    assert again.images == row.images


ZOOM = """
tools:
  - class_name: verl.tools.image_zoom_in_tool.ImageZoomInTool
    config: {type: native, num_workers: 2}
    tool_schema:
      type: function
      function:
        name: zoom
        description: Zoom in on a region.
        parameters:
          type: object
          properties:
            bbox_2d: {type: array, items: {type: number}, description: "[x1, y1, x2, y2]"}
          required: [bbox_2d]
"""
# The one function that the tool has of this package, which `inf` does not install.
QWEN_VL_UTILS = """
def fetch_image(part):
    return part["image"]
"""


@pytest.mark.verl
@pytest.mark.slow
def test_zoom_tool_of_verl_shows_a_part_of_the_image(reference, monkeypatch, tmp_path):
    (tmp_path / "zoom.yaml").write_text(ZOOM)
    (tmp_path / "qwen_vl_utils.py").write_text(QWEN_VL_UTILS)
    always_calls(monkeypatch, {"bbox_2d": [10, 20, 70, 60]})
    turns = {"enable": True, "tool_config_path": str(tmp_path / "zoom.yaml")}
    rollout = {**ROLLOUT, "multi_turn": {**turns, "max_assistant_turns": 2}}
    with InferenceEngine(model_path=str(vision_model("llava")), rollout=rollout) as engine:
        of_tool = {"zoom": {"create_kwargs": {"image": WIDE}}}
        [row] = engine.generate(ASKED[:1], tools_kwargs=of_tool, **GREEDY)
    reference.check(row, images=2, turns=2)
    assert row.images[1] == digest(WIDE.crop((10, 20, 70, 60)))


@pytest.mark.verl
@pytest.mark.slow
def test_rows_with_images_of_tools_are_exact_on_sglang_too(monkeypatch):
    folder = folder_of("qwen2_5_vl")
    always_calls(monkeypatch, {"part": "one"}, {"part": "two"})
    rollout = ROLLOUT | {"name": "sglang"}
    with InferenceEngine(model_path=str(folder), rollout=rollout) as engine:
        with_turns(engine, monkeypatch, max_assistant_turns=3)
        rows = engine.generate(ASKED, tools=[zoom], **GREEDY)
    for row, images in zip(rows, (7, 6), strict=True):
        Whole(folder).check(row, images, turns=3)
