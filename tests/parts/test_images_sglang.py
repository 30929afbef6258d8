"""Images in messages on `sglang`: answers and log probs are those of Transformers."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

import inf
from _inf.parts.images.digests import digest
from inf import (
    ConfigError,
    InferenceEngine,
    PromptError,
    as_rollouts,
    rollouts_to_data_proto,
)
from tests.parts.test_image_turns import ASKED, STOPS, always_calls, with_turns, zoom
from tests.parts.test_images import (
    CONTENTS,
    GREEDY,
    ROLLOUT,
    check,
    check_continued,
    check_rows,
    prompts,
    streamed,
)
from tests.support.vision import TALL, WIDE, Reference, image, vision_model

pytestmark = [pytest.mark.engine, pytest.mark.verl]

OWN = {"name": "sglang", "response_length": 380}


def engine_of(kind: str) -> InferenceEngine:
    return InferenceEngine(model_path=str(vision_model(kind)), rollout=ROLLOUT | OWN)


@pytest.fixture(scope="module")
def engine() -> Iterator[InferenceEngine]:
    with engine_of("qwen2_5_vl") as engine:
        yield engine


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(vision_model("qwen2_5_vl"))


@pytest.fixture(scope="module")
def on_hf() -> Iterator[InferenceEngine]:
    with InferenceEngine(model_path=str(vision_model("qwen2_5_vl")), rollout=ROLLOUT) as engine:
        yield engine


def check_answers(engine: InferenceEngine, reference: Reference) -> None:
    rows = check_rows(engine, reference)
    [again] = engine.generate(prompts(CONTENTS[1:2]), **GREEDY)
    assert again.token_ids == rows[1].token_ids and again.images == rows[1].images


def test_answers_are_those_of_transformers(engine, reference):
    """In one batch with text, in the cache, and streamed."""
    check_answers(engine, reference)
    assert streamed(engine) == reference.answer(CONTENTS[1], 12)[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl"])
def test_answers_of_another_model_are_those_of_transformers(kind):
    with engine_of(kind) as engine:
        check_answers(engine, Reference(vision_model(kind)))
        report = inf.check(engine, batch=4, max_tokens=4)
        assert report.passed and report.metrics["images/positions_differ"] == 0, report.findings


def test_plain_image_is_another_one_standing_than_lying(engine, reference):
    """Both have the same pixels, in as many tokens."""
    for size in ((112, 56), (56, 112)):
        content = [image(Image.new("RGB", size, "red")), "What is it?"]
        [row] = engine.generate(prompts([content]), **GREEDY)
        check(row, reference, content)


def test_image_token_that_was_sampled_is_no_image(engine, reference):
    """The row is computed again, from its prompt's images and an answer with such tokens."""
    image_token = engine.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    options: dict[str, Any] = {"max_tokens": 24, "logit_bias": {image_token: 100}}
    before = streamed(engine, **options)
    assert image_token in before

    def update() -> None:
        engine.update_weights(reference.model.state_dict(), running="keep", recompute=True)

    assert streamed(engine, update, **options) == before


def test_tokens_of_an_answer_are_no_images(engine, reference):
    """Those that begin an image or a video, at its end and before one another: each has the place
    of a text's token."""
    begin, video = engine.tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|video_pad|>"])
    answer, content = [begin, video, 40, begin], CONTENTS[1]
    [scored] = engine.score(prompts([content]), [answer])
    inputs = reference.inputs(content)
    prompt = inputs.pop("input_ids")
    positions, _ = reference.model.model.get_rope_index(prompt, inputs["image_grid_thw"])
    later = positions.max() + 1 + torch.arange(len(answer))
    with torch.no_grad():
        logits = reference.model(
            input_ids=torch.cat([prompt, torch.tensor([answer])], 1),
            position_ids=torch.cat([positions, later.expand(3, 1, -1)], 2),
            **{name: value for name, value in inputs.items() if name != "attention_mask"},
        ).logits[0, -len(answer) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
    assert scored.logprobs == pytest.approx(expected.tolist(), abs=1e-5)
    batch = engine.rollout_batch(prompts([content]), max_tokens=6, logit_bias={begin: 100})
    assert batch.batch["responses"][0, :6].tolist() == [begin] * 6
    places = batch.batch["position_ids"][0, 1:, 512:518]
    assert places.tolist() == (later[0] + torch.arange(6)).expand(3, -1).tolist()
    with pytest.raises(PromptError, match=re.escape("its text contains '<|video_pad|>'")):
        engine.generate(prompts([[image(WIDE), "<|vision_start|><|video_pad|>"]]))


def test_rows_are_continued_as_if_nothing_had_ended_them(engine, tmp_path):
    check_continued(engine, tmp_path)


def test_penalty_counts_the_tokens_of_the_prompt(engine, on_hf):
    [row], [expected] = (
        each.generate(prompts(CONTENTS[:1]), repetition_penalty=1.3, **GREEDY)
        for each in (engine, on_hf)
    )
    assert row.token_ids == expected.token_ids
    assert row.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def check_actor(batch: Any, model: Any) -> None:
    """verl's actor calls its model so (0.6.1, `workers/actor/dp_actor.py`)."""
    from verl.utils.model import extract_multi_modal_inputs

    answers = batch.batch["responses"].shape[1]
    for row in range(len(batch)):
        own = batch[[row]]
        inputs = extract_multi_modal_inputs(own.non_tensor_batch["multi_modal_inputs"])
        with torch.no_grad():
            logits = model(
                own.batch["input_ids"],
                attention_mask=own.batch["attention_mask"],
                position_ids=own.batch["position_ids"].transpose(0, 1),
                **inputs,
            ).logits[:, -answers - 1 : -1]
        ids, mask = own.batch["responses"], own.batch["response_mask"].bool()
        computed = logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]
        assert torch.allclose(computed[mask], own.batch["rollout_log_probs"][mask], atol=1e-5)


def test_images_of_tools_are_in_the_batch(engine, reference, monkeypatch):
    asked = {"temperature": 0, "max_tokens": 40, "stop_token_ids": STOPS, "tools": [zoom]}
    with_turns(engine, monkeypatch, max_assistant_turns=2, max_parallel_calls=50)
    for calls, images in ((1, [3, 2]), (50, [1, 0])):  # so many results do not fit
        always_calls(monkeypatch, *[{"part": "two"}] * calls)
        batch = engine.rollout_batch(ASKED, **asked)
        grids = [
            each.get("image_grid_thw", ()) for each in batch.non_tensor_batch["multi_modal_inputs"]
        ]
        assert [len(grid) for grid in grids] == images
        kept = [rollout.messages[0]["content"] for rollout in as_rollouts(batch)]
        assert kept[0][0]["image"] == f"sha256:{digest(WIDE)}"
        assert kept[0][1:] == ASKED[0][0]["content"][1:] and kept[1] == ASKED[1][0]["content"]
        check_actor(batch, reference.model)


def test_batch_for_a_trainer_gives_the_actor_its_log_probs(engine, reference):
    batch = engine.rollout_batch(prompts(CONTENTS), n=2, seed=3, max_tokens=12)
    assert batch.batch["position_ids"].shape == (8, 4, 512 + 380)
    has = [bool(inputs) for inputs in batch.non_tensor_batch["multi_modal_inputs"]]
    assert has == [True] * 4 + [False] * 2 + [True] * 2
    check_actor(batch, reference.model)
    text_only = engine.rollout_batch([[{"role": "user", "content": "Words."}]], max_tokens=2)
    assert len(type(batch).concat([text_only, batch])) == 9
    first, *_ = rollouts = as_rollouts(batch)
    assert first.extra["multi_modal_inputs"] == ["image_grid_thw", "pixel_values"]
    text_only = rollouts_to_data_proto(rollouts[4:6])
    assert text_only.batch["input_ids"].tolist() == batch.batch["input_ids"][4:6].tolist()
    with pytest.raises(ConfigError, match="it has images, whose pixels are not kept"):
        rollouts_to_data_proto(rollouts)


@pytest.mark.parametrize("made", [True, False])
def test_batch_of_verls_dataset_is_answered(engine, reference, tmp_path, monkeypatch, made):
    """made: whether the dataset keeps what the processor made, and the trainer passes it on."""
    import datasets

    # Imported by verl (`utils/dataset/vision_utils.py`) for videos and undecoded images alone.
    unused = SimpleNamespace(fetch_image=None, fetch_video=None)
    monkeypatch.setitem(sys.modules, "qwen_vl_utils", unused)
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    asked = {"Compare <image> with <image>": [WIDE, TALL], "Words.": []}
    rows = [
        {"prompt": [{"role": "user", "content": text}], "images": images, "data_source": "own"}
        for text, images in asked.items()
    ]
    file = tmp_path / "rows.parquet"
    table = datasets.Dataset.from_list(rows)
    table.cast_column("images", datasets.List(datasets.Image())).to_parquet(file)
    settings = {"max_prompt_length": 128, "filter_overlong_prompts": False}
    dataset = RLHFDataset(
        str(file),
        engine.tokenizer,
        OmegaConf.create(settings | {"return_multi_modal_inputs": made}),
        reference.processor,
    )
    batch = DataProto.from_single_dict(collate_fn([dataset[0], dataset[1]]))
    batch.meta_info = {"do_sample": False, "eos_token_id": engine.tokenizer.eos_token_id}
    answer = engine.rollout.generate_sequences(batch)
    for row, content in enumerate((CONTENTS[1], ["Words."])):
        mask = answer.batch["response_mask"][row].bool()
        ids = answer.batch["responses"][row][mask].tolist()
        assert ids == reference.answer(content, len(ids))[1]


def test_batch_whose_images_cannot_be_computed_is_refused(engine, reference):
    """SGLang's process would die of most of them."""
    from verl import DataProto

    inputs = reference.inputs([image(WIDE)])
    ids = inputs["input_ids"]

    def answered(ids: torch.Tensor, data: Any) -> Any:
        given = {"multi_modal_data": [data]}
        places = torch.arange(ids.shape[1])[None]
        tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": places}
        batch = DataProto.from_dict(tensors, given)
        batch.meta_info = {"do_sample": False, "eos_token_id": engine.tokenizer.eos_token_id}
        return engine.rollout.generate_sequences(batch)

    data = {"image": [WIDE]}
    for call, says in (
        ((ids[:, :4], data), "0 tokens of images, and its images have 12"),
        ((ids, {"video": []}), r"multi_modal_data'\]\[0\]: \['video'\]"),
        ((ids, {"image": ["https://host/a.png"]}), "only images of PIL are read"),
        ((ids, {"image": [Image.new("RGB", (400, 1))]}), "processor refused its images"),
    ):
        with pytest.raises(ConfigError, match=says):
            answered(*call)
    assert len(answered(ids, data)) == len(answered(ids, {"image": []})) == 1


def test_pixels_of_a_call_that_has_ended_are_freed_at_once(engine):
    def alive() -> int:
        return sum(
            isinstance(o, torch.Tensor) and o.shape[-1:] == (1176,) for o in gc.get_objects()
        )

    gc.collect()
    gc.disable()
    try:
        before = alive()
        engine.generate(prompts(CONTENTS[:2]), max_tokens=2)
        engine.score(prompts(CONTENTS[:1]), [[7, 8]])
        assert alive() == before
    finally:
        gc.enable()


def test_check_compares_images_with_transformers(engine, on_hf, monkeypatch):
    from _inf.parts.images import sglang

    placed = sglang._positions

    def as_if_text(*args: Any) -> Any:
        positions = placed(*args)
        ids = positions["mrope_positions"].shape[1]
        return {**positions, "mrope_positions": torch.arange(ids).expand(3, -1)}

    asked = {"against": on_hf, "batch": 4, "max_tokens": 4}
    report = inf.check(engine, **asked)
    assert report.passed and report.metrics["images/positions_differ"] == 0, report.findings
    monkeypatch.setattr(sglang, "_positions", as_if_text)
    report = inf.check(engine, **asked)
    found = {finding.metric for finding in report.findings}
    assert {"images/positions_differ", "images/alone/logprobs_diff_max"} <= found


def test_new_weights_encode_images_again(engine, reference):
    """Those of a running row too. Last of this engine's tests."""
    [before] = engine.generate(prompts(CONTENTS[:1]), **GREEDY)
    names = ["<|vision_start|>", "<|image_pad|>", "<|video_pad|>"]  # Transformers would refuse them
    barred = engine.tokenizer.convert_tokens_to_ids(names)
    options = GREEDY | {"max_tokens": 300, "logit_bias": dict.fromkeys(barred, -100)}
    [old] = engine.generate(prompts(CONTENTS[:1]), **options)
    chunks = engine.stream(prompts(CONTENTS[:1])[0], **options)
    first = next(chunks)
    with torch.no_grad():
        for name, weight in reference.model.named_parameters():
            if "visual" in name:
                weight.mul_(1.5)
    engine.update_weights(reference.model.state_dict(), running="keep", recompute=True)
    *others, last = chunks
    ids = [token for chunk in (first, *others, last) for token in chunk.token_ids]
    [_, (_, begin)] = last.metadata["weight_versions"]
    assert ids[:begin] == old.token_ids[:begin] and 0 < begin < 300
    logits = reference.logits(CONTENTS[0], ids)[-len(ids) :]
    logits[:, barred] = -torch.inf
    assert logits.argmax(-1)[begin:].tolist() == ids[begin:]
    [after] = engine.generate(prompts(CONTENTS[:1]), **GREEDY)
    check(after, reference, CONTENTS[0])
    assert after.logprobs != before.logprobs


@pytest.mark.slow
def test_model_whose_images_differ_is_refused():
    with engine_of("mistral3") as engine:
        with pytest.raises(ConfigError, match="images of Mistral3ForConditionalGeneration"):
            engine.generate(prompts([[image(WIDE)]]))
