"""Images in messages on `sglang`: answers and log probs are those of Transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from PIL import Image

from inf import ConfigError, InferenceEngine, PromptError
from tests.parts.test_images import (
    CONTENTS,
    GREEDY,
    ROLLOUT,
    WIDE,
    check_continued,
    image,
    prompts,
    text,
)
from tests.support.vision import Reference, vision_model

pytestmark = [pytest.mark.engine, pytest.mark.verl]


def engine_of(kind: str) -> InferenceEngine:
    return InferenceEngine(model_path=str(vision_model(kind)), rollout=ROLLOUT | {"name": "sglang"})


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
    engine.update_weights(reference.model.state_dict(), running="keep")
    after = [*first.token_ids, *(token for chunk in chunks for token in chunk.token_ids)]
    assert after == before.token_ids


def test_rows_are_continued_as_if_nothing_had_ended_them(engine, tmp_path):
    check_continued(engine, tmp_path)


def test_scores_of_prompts_with_images_are_refused(engine):
    [asked] = prompts(CONTENTS[:1])
    with pytest.raises(ConfigError, match="prompt_logprobs: rollout.name: sglang has none"):
        engine.generate(["Hello", asked], prompt_logprobs=1)
    with pytest.raises(PromptError, match="prompt 1 has more than text") as failure:
        engine.get_logprobs(["Hello", asked], ["a", "b"])
    assert failure.value.index == 1


def test_penalty_counts_the_tokens_of_the_prompt(engine):
    [row] = engine.generate(prompts(CONTENTS[:1]), repetition_penalty=1.3, **GREEDY)
    with InferenceEngine(model_path=str(vision_model("qwen2_5_vl")), rollout=ROLLOUT) as other:
        [expected] = other.generate(prompts(CONTENTS[:1]), repetition_penalty=1.3, **GREEDY)
    assert row.token_ids == expected.token_ids
    assert row.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


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
