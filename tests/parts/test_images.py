"""Images in messages on `hf`: ids, answers and log probs are those of Transformers."""

from __future__ import annotations

import base64
import http.server
import importlib.util
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import ExifTags, Image

import inf
from _inf.backends.hf.forward import Forward
from _inf.config import load_config
from _inf.parts import found
from _inf.parts.images import prompt
from _inf.parts.images.prompt import image_parts
from _inf.request.prompts import normalize
from inf import (
    ConfigError,
    InferenceEngine,
    InferenceError,
    PromptError,
    load_rollouts,
    save_rollouts,
)
from tests.engine.lifecycle.test_continued_rows import aborted, assert_same
from tests.support.vision import (
    KINDS,
    TALL,
    WIDE,
    Reference,
    by_url,
    image,
    picture,
    png,
    user,
    vision_model,
)

pytestmark = pytest.mark.engine
ROLLOUT = {"name": "hf", "dtype": "float32", "prompt_length": 512, "response_length": 32}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, "progress": False}
CONTENTS = [
    [image(WIDE), "What is it?"],
    ["Compare ", image(WIDE), " with ", image(TALL)],
    ["No picture at all, but words. " * 4],
    [image(TALL), "Say more about it. " * 9],
]


def prompts(contents: list[list[Any]]) -> list[list[dict[str, Any]]]:
    return [[user(*content)] for content in contents]


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
        rows = check_rows(engine, reference)
        check_beams(engine, reference)
        assert streamed(engine) == rows[1].token_ids
        first, *others = engine.generate(prompts(CONTENTS[1:2]), n=3, temperature=1, seed=1)
        assert first.cached_tokens == 0
        assert [row.cached_tokens for row in others] == [len(rows[1].prompt_token_ids)] * 2


def check(row: Any, reference: Reference, content: list[Any]) -> None:
    ids, answer, logprobs = reference.answer(content, len(row.token_ids))
    assert (row.prompt_token_ids, row.token_ids) == (ids, answer)
    assert row.logprobs == pytest.approx(logprobs, abs=1e-5)


def check_rows(engine: InferenceEngine, reference: Reference) -> Any:
    rows = engine.generate(prompts(CONTENTS), **GREEDY)
    for row, content in zip(rows, CONTENTS, strict=True):
        check(row, reference, content)
    check_scores(engine, rows, reference)
    assert len({*map(tuple, (row.token_ids for row in rows))}) > 1
    return rows


def streamed(engine: InferenceEngine, then: Callable[[], object] = list, **more: Any) -> list[int]:
    """The ids of the second prompt's answer. then: what is called after its first token."""
    chunks = engine.stream([user(*CONTENTS[1])], **GREEDY | more)
    first = next(chunks)
    then()
    return [*first.token_ids, *(token for chunk in chunks for token in chunk.token_ids)]


def check_beams(engine: Any, reference: Reference) -> None:
    rows = engine.generate(prompts(CONTENTS[1:]), n=2, num_beams=3, **GREEDY)
    for place, content in enumerate(CONTENTS[1:]):
        inputs = reference.inputs(content)
        beams = reference.model.generate(
            **inputs, max_new_tokens=12, do_sample=False, num_beams=3, num_return_sequences=2
        )
        prompt = len(inputs["input_ids"][0])
        for row, beam in zip(rows[2 * place : 2 * place + 2], beams[:, prompt:], strict=True):
            assert row.token_ids == beam.tolist()
            whole = reference.logits(content, row.token_ids)[prompt - 1 :].log_softmax(-1)
            logprobs = whole.gather(1, beam[:, None])[:, 0].tolist()
            assert row.logprobs == pytest.approx(logprobs, abs=1e-5)


def check_scores(engine: Any, rows: Any, reference: Reference) -> None:
    """Compare with one pass over each prompt and a given answer."""
    answers = [[*range(7, 7 + number)] for number in (5, 1, 3, 0)]
    asked = prompts(CONTENTS)
    scored = engine.score(asked, answers, top_logprobs=2)
    has_logits = engine.config.rollout.name == "hf"
    logits = engine.get_logits(asked, answers) if has_logits else None
    shared = engine.generate([*asked, *asked], prompt_logprobs=2, **GREEDY)
    for place, (content, answer) in enumerate(zip(CONTENTS, answers, strict=True)):
        ids = [*rows[place].prompt_token_ids, *answer]
        whole = reference.logits(content, answer)
        table = whole.log_softmax(-1)
        logprobs = table.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        start = len(ids) - 1 - len(answer)
        assert scored[place].logprobs == pytest.approx(logprobs[start:], abs=1e-5)
        if logits is not None:
            both = logits[place, : len(answer)], whole[start:]
            torch.testing.assert_close(*both, atol=1e-4, rtol=1e-4)
        for row in shared[place :: len(asked)]:
            assert row.prompt_logprobs[1:] == pytest.approx(logprobs[:start], abs=1e-5)
            assert row.token_ids == rows[place].token_ids


@pytest.fixture(scope="module")
def engine() -> Iterator[InferenceEngine]:
    with InferenceEngine(model_path=str(vision_model("llava")), rollout=ROLLOUT) as engine:
        yield engine


def test_each_form_of_an_image_is_the_same_one(engine, tmp_path):
    file = tmp_path / "a picture.png"
    file.write_bytes(png(WIDE))
    data = base64.b64encode(png(WIDE)).decode()
    lying, exif = tmp_path / "lying.png", Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    WIDE.transpose(Image.Transpose.ROTATE_90).save(lying, exif=exif)
    forms = [
        image(WIDE), image(file), image(str(file)), image(png(WIDE)), image(lying),
        image(WIDE.convert("RGBA")), image({"bytes": png(WIDE), "path": None}),
        by_url(f"data:image/png;base64,{data}"),
        {"type": "image_url", "image_url": {"url": file.as_uri(), "detail": "high"}},
        {**image(file), "cache_control": {"type": "ephemeral"}, "text": None},
    ]  # fmt: skip
    rows = engine.generate(prompts([[form, "What?"] for form in forms]), **GREEDY)
    assert {tuple(row.token_ids) for row in rows} == {tuple(rows[0].token_ids)}
    assert {tuple(row.images) for row in rows} == {tuple(rows[0].images)}
    [other] = engine.generate(prompts([[image(TALL), "What?"]]), **GREEDY)
    assert other.images != rows[0].images and other.token_ids != rows[0].token_ids
    [plain] = engine.generate("What?", **GREEDY)
    assert plain.images is None


def test_what_is_transparent_is_white(engine):
    red, white = (Image.new("RGB", (56, 56), color) for color in ("red", "white"))
    red.info["transparency"] = (255, 0, 0)
    rows = engine.generate(prompts([[image(png(red))], [image(white)]]), max_tokens=1)
    assert rows[0].images == rows[1].images


def blank(side: int) -> bytes:
    return png(Image.new("1", (side, side)))


# Its decoder starts a program.
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (image(b"no image"), "prompt 0, message 0: content[0]: the image cannot be read"),
        (image(blank(8)[:-30]), "the image cannot be read"),
        (image("missing.png"), "there is no file missing.png"),
        (image("/dev/zero"), "there is no file /dev/zero"),
        (image(blank(8000)), "8000 x 8000 pixels"),
        (image(7), "7 is no image"),
        (image(Image.new("RGB", (0, 5))), "the image has 0 x 5 pixels"),
        (image(Image.new("I;16", (8, 8))), "a number of more than 8 bits"),
        (by_url("file://host/a.png"), "of another machine"),
        (image(EPS), "it is none of PNG"),
        (image("https://me:secret@host/a.png?secret"), "'https://host/a.png' is on another"),
        (by_url("data:image/png;base64,###"), "not in base64"),
        (by_url("photo.png"), "'photo.png' is no URL"),
        ({"type": "image", "image": WIDE, "size": 3}, "unknown key 'size'"),
        ({"type": "input_audio", "input_audio": {}}, "only text is supported"),
    ],
)
def test_a_wrong_image_is_refused_by_its_place(engine, part, says):
    with pytest.raises(PromptError) as failure:
        engine.generate(prompts([[part]]))
    assert says in str(failure.value) and failure.value.index == 0


@pytest.fixture
def site() -> Iterator[str]:
    """The address of a server."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place = self.path.partition("?")[0]
            self.send_response(302 if place in REDIRECTS else 200 if place in BODIES else 404)
            if place in REDIRECTS:
                self.send_header("Location", REDIRECTS[place])
            self.end_headers()
            self.wfile.write(BODIES.get(place, b""))

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://user:secret@127.0.0.1:{server.server_port}"
        server.shutdown()


BODIES = {"/a.png": png(WIDE), "/text": b"text", "/large": bytes(2**25 + 1)}
REDIRECTS = {"/there": "/a.png", "/round": "/round", "/file": "file:///etc/hostname"}


def test_images_of_other_machines_are_fetched_if_the_config_says_so(engine, site):
    images = {"allow_remote": True, "max_per_prompt": 2, "max_pixels": WIDE.width * WIDE.height}
    readers = found.readers(load_config(engine.config, {"rollout": {"images": images}}))

    def read(*sources: str) -> list[Image.Image]:
        [prompt] = normalize([[user(*map(by_url, sources))]], readers)
        return [part["image"] for part in image_parts(prompt.messages)]

    for url in (f"{site}/a.png?secret", f"{site}/there".upper().replace("THERE", "there")):
        assert [each.tobytes() for each in read(url)] == [WIDE.tobytes()]
    for path, says in {
        "/missing": "/missing' cannot be fetched: status 404",
        "/text": "the image cannot be read",
        "/large": "it has more than 33,554,432 bytes",
        "/round": "TooManyRedirects",
        "/file": "UnsupportedProtocol",
    }.items():
        with pytest.raises(PromptError, match=says) as failure:
            read(f"{site}{path}?secret")
        assert str(failure.value).startswith("prompt 0, message 0: content[0]: ")
        assert "secret" not in str(failure.value)
    with pytest.raises(PromptError, match=r"3 images, more than 2 \(rollout.images.max_per_prompt"):
        read(*[f"{site}/missing"] * 3)
    with pytest.raises(PromptError, match=r"more than 9,600 \(rollout.images.max_pixels"):
        normalize(prompts([[image(picture(3, 121, 80))]]), readers)


def test_what_cannot_be_answered_says_so(engine):
    [asked] = prompts(CONTENTS[:1])
    for call, says in (
        (lambda: engine.score([asked], [[engine.tokenizer.convert_tokens_to_ids("<image>")]]),
         "refused a row with pixel_values"),
        (lambda: engine.generate([[{**user(image(WIDE)), "role": "system"}]]), "only"),
        (lambda: engine.generate([[user(image(WIDE), "<image>")]]), "its text contains '<image>'"),
        (lambda: engine.generate([[user(*[image("missing.png")] * 65)]]), "65 images, more than"),
        (lambda: engine.generate([[user(*[image(WIDE)] * 40)]]), "tokens with its images"),
    ):  # fmt: skip
        with pytest.raises(InferenceError, match=says):
            call()


def check_continued(engine: InferenceEngine, folder: Path) -> None:
    """Of a greedy row and a sampled one."""
    asked = {"temperature": [0, 1.0], "seed": 3, "max_tokens": 60, "ignore_eos": True}
    expected = engine.generate(prompts(CONTENTS[:2]), progress=False, **asked)
    rows = aborted(engine, lambda: engine.generate(prompts(CONTENTS[:2]), progress=False, **asked))
    for row, other in zip(engine.generate([*rows], **asked), expected, strict=True):
        assert_same(row, other)
        assert row.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert row.images == other.images
    save_rollouts(rows, folder / "rows.jsonl", engine.tokenizer)
    with pytest.raises(PromptError, match="a row with images, which only a row has"):
        engine.generate(load_rollouts(folder / "rows.jsonl"))


def test_rows_with_images_are_continued_as_if_nothing_had_ended_them(engine, tmp_path):
    check_continued(engine, tmp_path)


def test_running_rows_with_images_go_on_after_an_update(engine):
    """Their prompts are computed again with the answer so far, which has no inputs of its own."""
    weights = dict(engine._backend.forward.model.state_dict())
    before = streamed(engine)
    assert streamed(engine, lambda: engine.update_weights(weights, running="keep")) == before
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
        with pytest.raises(InferenceError, match="pixel_values.* does not run"):
            engine.generate(prompts(CONTENTS[:1]), **GREEDY)
        monkeypatch.undo()
        report = inf.check(engine, batch=4, max_tokens=8)
        assert report.passed, report.findings
        assert report.metrics["images/ids_differ"] == report.metrics["images/inputs_differ"] == 0
        kinds = [f"images/{kind}/logprobs_diff_max" for kind in ("alone", "in_batch", "streamed")]
        assert all(0 < report.metrics[kind] < 1e-5 for kind in kinds)
        monkeypatch.setattr(Forward, "shift", 0)
        monkeypatch.setattr(prompt, "processed", with_other_pixels)
        report = inf.check(engine, batch=4, max_tokens=8)
        assert {finding.metric for finding in report.findings} == {"images/inputs_differ", *kinds}


def with_other_pixels(*args: Any, processed: Any = prompt.processed, **kwargs: Any) -> Any:
    *others, inputs = processed(*args, **kwargs)
    return *others, {**inputs, "pixel_values": inputs["pixel_values"] / 2}


def test_model_that_reads_text_only_says_so(tiny):
    with pytest.raises(ConfigError, match="model_path: .* (no processor|reads text only)"):
        tiny.generate(prompts(CONTENTS[:1]))
