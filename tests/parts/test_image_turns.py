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
from tests.parts.test_images import blank, folder_of
from tests.support.running import begun
from tests.support.scripts import until
from tests.support.vision import KINDS, TALL, WIDE, Reference, image, picture, user, vision_model

pytestmark = pytest.mark.engine
ROLLOUT = {"name": "hf", "dtype": "float32", "prompt_length": 640, "response_length": 380}
STOPS = list(range(5, 384, 6))  # so that a turn ends after some tokens
GREEDY: dict[str, Any] = {
    "temperature": 0, "max_tokens": 60, "stop_token_ids": STOPS, "progress": False
}  # fmt: skip
SMALL = picture(3, 56, 84)
ASKED = [
    [user(image(WIDE), "Look closer.")],
    [{"role": "user", "content": "No picture yet."}],
]


PARTS: dict[str, Any] = {"one": SMALL, "two": ["Left: ", TALL, "and right: ", SMALL]}


def zoom(part: str) -> Any:
    """Show a part.

    Args:
        part: which one.
    """
    return PARTS[part]


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


def check_row(reference: Reference, row: GenerationRow, images: int, turns: int) -> None:
    """That a greedy row of so many images and turns is what the model says in one pass."""
    assert (row.error, row.metadata["num_turns"]) == (None, turns)
    opened = images_of(row)
    assert row.images == [*map(digest, opened)] and len(opened) == images
    ids, mask, logprobs = row.response
    whole = reference.one_pass([*row.prompt_token_ids, *ids], opened).log_softmax(-1)
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


SGLANG = pytest.param("qwen2_5_vl", "sglang", marks=[pytest.mark.verl, pytest.mark.slow])


@pytest.mark.parametrize(("kind", "backend"), [*((kind, "hf") for kind in KINDS), SGLANG])
def test_rows_with_images_of_tools_are_those_of_one_pass_of_transformers(
    kind, backend, monkeypatch
):
    """And what the model's processor refuses is its call's error."""
    folder = folder_of(kind)
    reference = Reference(folder)
    always_calls(monkeypatch, {"part": "one"}, {"part": "two"})
    rollout = ROLLOUT | {"name": backend}
    with InferenceEngine(model_path=str(folder), rollout=rollout) as engine:
        with_turns(engine, monkeypatch, max_assistant_turns=3)
        with_image, without = engine.generate(ASKED, tools=[zoom], **GREEDY)
        check_row(reference, with_image, images=7, turns=3)
        check_row(reference, without, images=6, turns=3)
        if kind == "qwen2_vl":
            monkeypatch.setitem(PARTS, "one", Image.new("RGB", (400, 1)))
            [row] = engine.generate(ASKED[1:], tools=[zoom], **GREEDY)
            said = "content[0]: the model's processor refused the image"
            assert said in row.messages[2]["content"] and row.error is None


@pytest.mark.parametrize("kind", KINDS)
def test_images_after_an_answer_are_as_in_the_whole_conversation(kind):
    processor = Reference(folder_of(kind)).processor
    template = ToolTemplate(processor.tokenizer, eos_token_ids=[processor.tokenizer.eos_token_id])
    tokenized = ImageReader(ImageBounds()).tokenized
    results = [user(image(TALL), "see"), user("wide", image(WIDE), image(SMALL))]
    messages = [user(image(SMALL), "What?")]
    ids, part = tokenized(template.tokenizer, template.text(messages, 0), messages, "", first=True)
    for result in results:
        ids += template.tokenizer("I look.", add_special_tokens=False)["input_ids"]
        messages += [{**user("I look."), "role": "assistant"}, {**result, "role": "tool"}]
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
def reference() -> Reference:
    return Reference(vision_model("llava"))


def response(*images: object, said: str | None = None, video: object = None) -> SimpleNamespace:
    """verl's `ToolResponse`."""
    return SimpleNamespace(text=said, image=[*images], video=video)


RESULTS: dict[str, tuple[Any, list[Any] | str]] = {
    "transparent": (SMALL.convert("RGBA"), [image(SMALL)]),
    "list": (["a ", SMALL, {"x": 1}], ["a ", image(SMALL), '{"x": 1}']),
    "parts": (user("<image>", image(TALL))["content"], ["< image>", image(TALL)]),
    "verl": (response(blank(8), said="see"), [image(Image.new("RGB", (8, 8))), "see"]),
    "long": (user("x" * 300)["content"] + [SMALL],
             [image(SMALL), f"{'x' * 128}...(44 characters cut)...{'x' * 128}"]),
    "no image": (["a", "b"], '["a", "b"]'),
    "path": (response("/etc/hostname"), "'/etc/hostname' is no image of PIL, and no bytes"),
    "broken": (response(blank(8)[:-30]), "content[0]: the image cannot be read"),
    "large": (response(blank(8000)), "8000 x 8000 pixels, more than"),
    "together": (response(*[blank(4200)] * 2), "images of the result have 35,280,000 pixels"),
    "many": ([SMALL] * 65, "the result has more than 64 images"),
    "video": (response(video=[b""]), "it returned a video"),
}  # fmt: skip


def digested(parts: Any) -> list[Any]:
    return [image(digest(part["image"])) if "image" in part else part for part in parts]


def test_each_form_of_a_result_is_read_within_the_bounds(engine, monkeypatch):
    always_calls(monkeypatch, *({"part": name} for name in RESULTS))
    with_turns(engine, monkeypatch, max_assistant_turns=2, max_parallel_calls=20)
    for name, (result, _) in RESULTS.items():
        monkeypatch.setitem(PARTS, name, result)
    [row] = engine.generate(ASKED[1:], tools=[zoom], **GREEDY)
    for (_, expected), message in zip(RESULTS.values(), row.messages[2:], strict=True):
        if isinstance(expected, str):
            assert expected in message["content"]
            continue
        assert digested(message["content"]) == digested(user(*expected)["content"])
    assert row.metadata["limit"] == "response_length" and row.images is None  # it did not fit
    said = [each["result"] for each in row.to_dict()["executed_tool_calls"]]
    assert said[:2] == ["", 'a {"x": 1}'] and said[6].startswith("Error: zoom failed: content[0]")


def test_where_images_are_not_read_the_model_or_the_row_says_so(engine, tiny, monkeypatch):
    always_calls(monkeypatch, {"part": "one"})
    with_turns(engine, monkeypatch, max_assistant_turns=2)
    of_users = """{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}
        {%- for part in m.content %}{{ part.text }}{% endfor %}{% endif %}<|im_end|>{% endfor %}"""
    [row] = engine.generate(ASKED[1:], tools=[zoom], chat_template=of_users, **GREEDY)
    assert "the model's chat template shows 0 of its 1 images" in row.error
    with_turns(tiny, monkeypatch, max_assistant_turns=2)
    [row] = tiny.generate(ASKED[1:], tools=[zoom], **GREEDY)
    said = "Error: zoom failed: it returned an image: model_path: "
    assert row.messages[2]["content"].startswith(said) and row.error is None


class Album:
    def reset(self, **columns: object) -> str:
        return " An album is open."

    def zoom(self, part: str) -> Any:
        """Show a part.

        Args:
            part: which one.
        """
        return PARTS[part]


def test_environments_and_interactions_go_on_after_images(engine, reference, monkeypatch):
    class Insists:
        async def start_interaction(self, instance_id: str, **kwargs: object) -> None:
            pass

        async def generate_response(self, instance_id: str, messages: Any, **kwargs: object) -> Any:
            return len(messages) > 4, "Look again.", 0.0, {}

    monkeypatch.setattr(engine._configured, "interactions", {"own": Insists()})
    [row] = engine.generate(ASKED[:1], interaction_kwargs={"name": "own"}, **GREEDY)
    check_row(reference, row, images=1, turns=3)
    assert [message["role"] for message in row.messages] == ["user", "assistant"] * 3
    always_calls(monkeypatch, {"part": "two"})
    with_turns(engine, monkeypatch, max_assistant_turns=3)
    [row] = engine.generate(ASKED[:1], environment_factory=Album, **GREEDY)
    check_row(reference, row, images=5, turns=3)
    assert row.messages[0]["content"][-1]["text"] == " An album is open."


def test_row_with_images_of_tools_goes_on_after_a_pause_and_as_a_prompt(
    engine, reference, monkeypatch
):
    always_calls(monkeypatch, {"part": "one"})
    with_turns(engine, monkeypatch, max_assistant_turns=3)
    [whole] = engine.generate(ASKED[:1], tools=[zoom], **GREEDY)
    rounds = iter([False, True])

    class UntilPaused(dict[str, Any]):
        def __getitem__(self, part: str) -> Any:
            if next(rounds):
                begun(lambda: engine.pause("abort"))
                assert until(lambda: engine.paused, 30)
            return super().__getitem__(part)

    with monkeypatch.context() as patch:
        patch.setitem(globals(), "PARTS", UntilPaused(PARTS))
        [ended] = engine.generate(ASKED[:1], tools=[zoom], **GREEDY)
    assert ended.finish_reason == "abort" and len(ended.images) == 3
    engine.resume()
    with pytest.raises(PromptError, match="a row with images"):
        engine.generate(as_rollouts(ended))
    [row] = engine.generate([ended], tools=[zoom], **GREEDY)
    assert row.response[0] == whole.response[0] and row.images == whole.images
    check_row(reference, row, images=3, turns=3)
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
    check_row(reference, row, images=2, turns=2)
    assert row.images[1] == digest(WIDE.crop((10, 20, 70, 60)))
