"""Images in messages on `sglang`: answers and log probs are those of Transformers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from inf import ConfigError, InferenceEngine
from tests.parts.test_images import (
    CONTENTS,
    GREEDY,
    ROLLOUT,
    TALL,
    WIDE,
    check_continued,
    check_scores,
    image,
    prompts,
    text,
)
from tests.support.vision import Reference, vision_model

pytestmark = [pytest.mark.engine, pytest.mark.verl]

OWN = {"name": "sglang", "response_length": 380}


def engine_of(kind: str) -> InferenceEngine:
    return InferenceEngine(model_path=str(vision_model(kind)), rollout=ROLLOUT | OWN)


def check(row: Any, reference: Reference, content: list[dict[str, Any]]) -> None:
    ids, answer, logprobs = reference.answer(content, len(row.token_ids))
    assert (row.prompt_token_ids, row.token_ids) == (ids, answer)
    assert row.logprobs == pytest.approx(logprobs, abs=1e-5)


@pytest.fixture(scope="module")
def engine() -> Iterator[InferenceEngine]:
    with engine_of("qwen2_5_vl") as engine:
        yield engine


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(vision_model("qwen2_5_vl"))


def check_answers(engine: InferenceEngine, reference: Reference) -> None:
    rows = engine.generate(prompts(CONTENTS), **GREEDY)
    for row, content in zip(rows, CONTENTS, strict=True):
        check(row, reference, content)
    check_scores(engine, rows, reference)
    assert len({*map(tuple, (row.token_ids for row in rows))}) > 1
    [again] = engine.generate(prompts(CONTENTS[1:2]), **GREEDY)
    assert again.token_ids == rows[1].token_ids and again.images == rows[1].images


def test_answers_are_those_of_transformers(engine, reference):
    """In one batch with text, in the cache, and streamed."""
    check_answers(engine, reference)
    chunks = engine.stream(prompts(CONTENTS[1:2])[0], **GREEDY)
    ids = [token for chunk in chunks for token in chunk.token_ids]
    assert ids == reference.answer(CONTENTS[1], 12)[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl"])
def test_answers_of_another_model_are_those_of_transformers(kind):
    with engine_of(kind) as engine:
        check_answers(engine, Reference(vision_model(kind)))


def test_plain_image_is_another_one_standing_than_lying(engine, reference):
    """Both have the same pixels, in as many tokens."""
    for size in ((112, 56), (56, 112)):
        content = [image(Image.new("RGB", size, "red")), text("What is it?")]
        [row] = engine.generate(prompts([content]), **GREEDY)
        check(row, reference, content)


def test_image_token_that_was_sampled_is_no_image(engine, reference):
    """The row is computed again, from its prompt's images and an answer with such tokens."""
    image_token = engine.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    asked = prompts(CONTENTS[:1])
    options = GREEDY | {"max_tokens": 24, "logit_bias": {image_token: 100}}
    [before] = engine.generate(asked, **options)
    assert image_token in before.token_ids
    chunks = engine.stream(asked[0], **options)
    first = next(chunks)
    engine.update_weights(reference.model.state_dict(), running="keep", recompute=True)
    after = [*first.token_ids, *(token for chunk in chunks for token in chunk.token_ids)]
    assert after == before.token_ids


def test_rows_are_continued_as_if_nothing_had_ended_them(engine, tmp_path):
    check_continued(engine, tmp_path)


def test_penalty_counts_the_tokens_of_the_prompt(engine):
    [row] = engine.generate(prompts(CONTENTS[:1]), repetition_penalty=1.3, **GREEDY)
    with InferenceEngine(model_path=str(vision_model("qwen2_5_vl")), rollout=ROLLOUT) as other:
        [expected] = other.generate(prompts(CONTENTS[:1]), repetition_penalty=1.3, **GREEDY)
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


def test_batch_for_a_trainer_gives_the_actor_its_log_probs(engine, reference):
    batch = engine.rollout_batch(prompts(CONTENTS), n=2, seed=3, max_tokens=12)
    assert batch.batch["position_ids"].shape == (8, 4, 512 + 380)
    has = [bool(inputs) for inputs in batch.non_tensor_batch["multi_modal_inputs"]]
    assert has == [True] * 4 + [False] * 2 + [True] * 2
    check_actor(batch, reference.model)


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

    asked = "Compare <image> with <image>"
    rows = [
        {
            "prompt": [{"role": "user", "content": asked}],
            "images": [WIDE, TALL],
            "data_source": "own",
        },
        {"prompt": [{"role": "user", "content": "Words."}], "images": [], "data_source": "own"},
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
    contents = [[text("Compare "), image(WIDE), text(" with "), image(TALL)], [text("Words.")]]
    for row, content in enumerate(contents):
        mask = answer.batch["response_mask"][row].bool()
        ids = answer.batch["responses"][row][mask].tolist()
        assert ids == reference.answer(content, len(ids))[1]


def test_batch_with_images_that_its_ids_do_not_show_is_refused(engine):
    from verl import DataProto

    batch = DataProto.from_dict(
        {name: torch.ones(1, 4, dtype=torch.int64) for name in ("input_ids", "attention_mask")},
        {"multi_modal_data": [{"image": [WIDE]}]},
    )
    with pytest.raises(ConfigError, match="0 tokens of images, and its images have 12"):
        engine.rollout.generate_sequences(batch)
    batch.non_tensor_batch["multi_modal_data"][0] = {"video": []}
    with pytest.raises(ConfigError, match=r"multi_modal_data'\]\[0\]: \['video'\]"):
        engine.rollout.generate_sequences(batch)


def test_new_weights_encode_images_again(engine, reference):
    """Last of this engine's tests."""
    [before] = engine.generate(prompts(CONTENTS[:1]), **GREEDY)
    with torch.no_grad():
        for name, weight in reference.model.named_parameters():
            if "visual" in name:
                weight.mul_(1.5)
    engine.update_weights(reference.model.state_dict())
    [after] = engine.generate(prompts(CONTENTS[:1]), **GREEDY)
    check(after, reference, CONTENTS[0])
    assert after.logprobs != before.logprobs


@pytest.mark.slow
def test_model_whose_images_differ_is_refused():
    with engine_of("mistral3") as engine:
        with pytest.raises(ConfigError, match="images of Mistral3ForConditionalGeneration"):
            engine.generate(prompts([[image(WIDE)]]))
