"""Images in messages on `hf`: ids, answers and log probs are those of Transformers."""

from __future__ import annotations

import base64
import dataclasses
import importlib.util
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from _inf.backends.hf.forward import Forward
from inf import ConfigError, InferenceEngine, InferenceError, PromptError
from tests.support.tiny import tiny_model
from tests.support.vision import KINDS, Reference, picture, vision_model

pytestmark = pytest.mark.engine
ROLLOUT = {"name": "hf", "dtype": "float32", "prompt_length": 512, "response_length": 32}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, "progress": False}
WIDE, TALL = picture(1, 80, 120), picture(2, 112, 56)


def image(source: object) -> dict[str, Any]:
    return {"type": "image", "image": source}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


CONTENTS = [
    [image(WIDE), text("What is it?")],
    [text("Compare "), image(WIDE), text(" with "), image(TALL)],
    [text("No picture at all, but words. " * 4)],
    [image(TALL), text("Say more about it. " * 9)],
]


def prompts(contents: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    return [[{"role": "user", "content": content}] for content in contents]


def folder_of(kind: str) -> Path:
    if kind != "llava" and importlib.util.find_spec("torchvision") is None:
        pytest.skip(f"the processor of {kind} needs torchvision")
    return vision_model(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_transformers(kind):
    """In one batch with text, and streamed alone; each is shared by the rows of its prompt."""
    folder = folder_of(kind)
    reference = Reference(folder)
    with InferenceEngine(model_path=str(folder), rollout=ROLLOUT) as engine:
        rows = engine.generate(prompts(CONTENTS), **GREEDY)
        for row, content in zip(rows, CONTENTS, strict=True):
            ids, answer, logprobs = reference.answer(content, 12)
            assert (row.prompt_token_ids, row.token_ids) == (ids, answer)
            assert row.logprobs == pytest.approx(logprobs, abs=1e-5)
        assert len({*map(tuple, (row.token_ids for row in rows))}) > 1
        chunks = engine.stream(prompts(CONTENTS[1:2])[0], **GREEDY)
        assert [token for chunk in chunks for token in chunk.token_ids] == rows[1].token_ids
        first, *others = engine.generate(prompts(CONTENTS[1:2]), n=3, temperature=1, seed=1)
        assert first.cached_tokens == 0
        assert [row.cached_tokens for row in others] == [len(rows[1].prompt_token_ids)] * 2


@pytest.fixture(scope="module")
def engine() -> Iterator[InferenceEngine]:
    with InferenceEngine(model_path=str(vision_model("llava")), rollout=ROLLOUT) as engine:
        yield engine


def test_each_form_of_an_image_is_the_same_one(engine, tmp_path):
    file = tmp_path / "a picture.png"
    WIDE.save(file)
    data = base64.b64encode(file.read_bytes()).decode()
    transparent = WIDE.convert("RGBA")
    forms = [
        image(WIDE), image(file), image(str(file)), image(file.read_bytes()), image(transparent),
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        {"type": "image_url", "image_url": {"url": file.as_uri(), "detail": "high"}},
    ]  # fmt: skip
    rows = engine.generate(prompts([[form, text("What?")] for form in forms]), **GREEDY)
    assert {tuple(row.token_ids) for row in rows} == {tuple(rows[0].token_ids)}
    assert {tuple(row.images) for row in rows} == {tuple(rows[0].images)}
    [other] = engine.generate(prompts([[image(TALL), text("What?")]]), **GREEDY)
    assert other.images != rows[0].images and other.token_ids != rows[0].token_ids
    [plain] = engine.generate("What?", **GREEDY)
    assert plain.images is None


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (image(b"no image"), "prompt 0, message 0: content[0]: the image cannot be read"),
        (image(png(8, 8)[:-30]), "the image cannot be read"),
        (image("missing.png"), "there is no file missing.png"),
        (image("/dev/zero"), "there is no file /dev/zero"),
        (image(png(8000, 8000)), "8000 x 8000 pixels"),
        (image(7), "7 is no image"),
        (image("https://host/a.png"), "nothing is fetched"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,###"}}, "not in base64"),
        ({"type": "image_url", "image_url": {"url": "photo.png"}}, "'photo.png' is no URL"),
        ({"type": "image", "image": WIDE, "size": 3}, "unknown key 'size'"),
        ({"type": "input_audio", "input_audio": {}}, "only text is supported"),
    ],
)
def test_a_wrong_image_is_refused_by_its_place(engine, part, says):
    with pytest.raises(PromptError) as failure:
        engine.generate(prompts([[part]]))
    assert says in str(failure.value) and failure.value.index == 0


def test_what_takes_text_only_says_so(engine):
    [asked] = prompts(CONTENTS[:1])
    for call, says in (
        (lambda: engine.generate([asked], prompt_logprobs=1), "prompt_logprobs"),
        (lambda: engine.generate([asked], num_beams=2), "num_beams"),
        (lambda: engine.generate([asked], tools=[len_of]), "prompt 0 has images"),
        (lambda: engine.generate([[{"role": "system", "content": asked[0]["content"]}]]), "only"),
        (lambda: engine.generate([[{"role": "user", "content": [image(WIDE), text("<image>")]}]]),
         "its text contains '<image>'"),
        (lambda: engine.generate(prompts([[image(WIDE)] * 65])), "65 images"),
        (lambda: engine.generate(prompts([[image(WIDE)] * 40])), "tokens with its images"),
        (lambda: engine.score([asked], ["It is."]), "only text is supported"),
    ):  # fmt: skip
        with pytest.raises((PromptError, ConfigError), match=says):
            call()


def test_row_with_images_is_not_continued(engine):
    [row] = engine.generate(prompts(CONTENTS[:1]), **GREEDY)
    ended = dataclasses.replace(row, finish_reason="abort")
    with pytest.raises(PromptError, match="a row with images, which it does not keep"):
        engine.generate([ended])


@pytest.mark.verl
def test_batch_for_a_trainer_takes_text_only(engine):
    with pytest.raises(PromptError, match="prompt 1 has content besides text"):
        engine.rollout_batch(["Hello", *prompts(CONTENTS[:1])])


def len_of(words: str) -> int:
    """The length of words.

    Args:
        words: any text.
    """
    return len(words)


def test_running_rows_with_images_go_on_after_an_update(engine):
    """Their prompts are computed again with the answer so far, which has no inputs of its own."""
    [before] = engine.generate(prompts(CONTENTS[:1]), **GREEDY)
    chunks = engine.stream(prompts(CONTENTS[:1])[0], **GREEDY)
    first = next(chunks)
    engine.update_weights(dict(engine._backend.forward.model.state_dict()), running="keep")
    after = [*first.token_ids, *(token for chunk in chunks for token in chunk.token_ids)]
    assert after == before.token_ids
    assert engine.weight_version == 1


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="it is there")
def test_processor_whose_package_is_missing_names_the_extra():
    with InferenceEngine(model_path=str(vision_model("qwen2_vl")), rollout=ROLLOUT) as engine:
        with pytest.raises(ConfigError, match=r"inf-engine\[images\]"):
            engine.generate(prompts(CONTENTS[:1]))


def test_template_of_an_older_processor_is_read(tmp_path):
    folder = shutil.copytree(vision_model("llava"), tmp_path / "older")
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    with InferenceEngine(model_path=str(folder), rollout=ROLLOUT) as engine:
        [row] = engine.generate(prompts(CONTENTS[:1]), **GREEDY)
        assert row.prompt_token_ids == Reference(folder).answer(CONTENTS[0], 1)[0]
    (folder / "chat_template.json").write_text("{}")
    with pytest.raises(ConfigError, match="chat_template.json: KeyError"):
        InferenceEngine(model_path=str(folder), rollout=ROLLOUT)


def test_model_whose_next_token_is_another_one_is_refused(monkeypatch):
    """As if its positions after an image were those of a text of as many tokens."""
    folder = folder_of("qwen2_5_vl")
    with InferenceEngine(model_path=str(folder), rollout=ROLLOUT) as engine:
        monkeypatch.setattr(Forward, "shift", 0)
        with pytest.raises(InferenceError, match="with pixel_values.* does not run"):
            engine.generate(prompts(CONTENTS[:1]), **GREEDY)
        monkeypatch.undo()
        [row] = engine.generate(prompts(CONTENTS[:1]), **GREEDY)
        assert len(row.token_ids) == 12


def test_model_that_reads_text_only_says_so():
    with InferenceEngine(model_path=str(tiny_model()), rollout=ROLLOUT) as engine:
        with pytest.raises(ConfigError, match="model_path: .* (no processor|reads text only)"):
            engine.generate(prompts(CONTENTS[:1]))
