"""Compares prompts with images with what Transformers' own processor and model make of them: alone,
in one batch with text, and streamed. The images are patterns that are made here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, cast

import numpy as np

from _inf.apps.check.comparisons import PLAIN, SEED, of_logits
from _inf.apps.check.differences import distances
from _inf.apps.rendered_call import shown_rules
from _inf.errors import ConfigError, PromptError, RequestFailure
from _inf.parts.found import readers
from _inf.parts.images.prompt import has_vision, processor_of
from _inf.request.prompts import normalize
from _inf.types import JSON, Prompt

if TYPE_CHECKING:
    from torch import Tensor

    from _inf.parts.images import Images
    from inf import InferenceEngine

SIZES = ((168, 224), (224, 112))  # height and width in pixels
Answer = tuple[object, list[int], list[float]]  # a prompt, its answer's ids and log probs


def image_differences(
    engine: InferenceEngine, reference: InferenceEngine, max_tokens: int
) -> tuple[dict[str, float], list[str]]:
    """Return the numbers of `images/`, or a note that says why there are none. A model that reads
    text only has neither."""
    if not has_vision(engine.model_folder):
        return {}, []
    if "image" not in readers(engine.config):
        return {}, [f"images: not compared: {engine.config.rollout.name} reads none"]
    asked = _prompts()
    try:
        metrics = _of_processor(engine, asked)
        for kind, answers in _answers(engine, asked, max_tokens).items():
            theirs = [of_logits(reference, prompt, ids) for prompt, ids, _ in answers]
            ours = [logprobs for *_, logprobs in answers]
            both = np.concatenate(ours), np.concatenate(theirs)
            metrics |= distances(*both, f"images/{kind}/")
    except (ConfigError, PromptError, RequestFailure) as failure:  # images of this model
        return {}, [f"images: not compared: {failure}"]
    return metrics, ["images: patterns of 224 x 168 and 112 x 224 pixels"]


def _prompts() -> list[list[JSON]]:
    """A message with one image, and one with two between texts."""
    from PIL import Image

    made = np.random.default_rng(SEED)
    first, second = (
        {"type": "image", "image": Image.fromarray(made.integers(0, 256, (*size, 3), np.uint8))}
        for size in SIZES
    )
    contents = [
        [first, {"type": "text", "text": "What is in the picture?"}],
        [{"type": "text", "text": "Compare "}, second, {"type": "text", "text": " with "}, first],
    ]
    return [[{"role": "user", "content": content}] for content in contents]


def _answers(
    engine: InferenceEngine, asked: Sequence[object], max_tokens: int
) -> Mapping[str, list[Answer]]:
    options: JSON = {**PLAIN, "n": 1, "seed": SEED, "max_tokens": max_tokens}
    alone = [engine.generate([prompt], **options)[0] for prompt in asked]
    first, _, *others = engine.generate([asked[0], "Say something.", *asked[1:]], **options)
    chunks = [*engine.stream(asked[0], **options)]
    streamed = [[each for chunk in chunks for each in chunk.token_ids]]
    logprobs = [[each for chunk in chunks for each in chunk.logprobs]]
    found = {"alone": alone, "in_batch": [first, *others]}
    return {
        **{
            kind: [
                (prompt, row.token_ids or [], row.logprobs or [])
                for prompt, row in zip(asked, rows, strict=True)
            ]
            for kind, rows in found.items()
        },
        "streamed": [*zip(asked, streamed, logprobs, strict=False)],
    }


def _of_processor(engine: InferenceEngine, asked: Sequence[list[JSON]]) -> dict[str, float]:
    """The shares of prompts whose ids, and whose inputs such as `pixel_values`, are not those of
    the processor's own `apply_chat_template`, or whose positions SGLang is given otherwise."""
    processor = processor_of(engine.tokenizer.name_or_path)
    template = shown_rules(engine, {"tools": []}).template
    ids, inputs, rendered = [], [], []
    for messages in asked:
        theirs: dict[str, Tensor] = dict(
            processor.apply_chat_template(
                messages,
                tokenize=True,
                add_generation_prompt=True,
                return_dict=True,
                return_tensors="pt",
            )
        )
        [form] = normalize([messages], readers(engine.config))
        ours = cast(Prompt, form).rendered(template, engine.model.limits)
        ids.append(ours.token_ids != theirs.pop("input_ids")[0].tolist())
        del theirs["attention_mask"]
        images = cast("Images", ours.parts[0])
        inputs.append(not _equal(images.inputs, theirs))
        rendered.append((images, ours.token_ids))
    metrics = {"images/ids_differ": fmean(ids), "images/inputs_differ": fmean(inputs)}
    if engine.config.rollout.name == "sglang":
        from _inf.parts.images.sglang import positions_differ

        hf_config = engine.rollout.model_config.hf_config
        metrics["images/positions_differ"] = fmean(positions_differ(rendered, hf_config))
    return metrics


def _equal(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        value.equal(theirs[name]) for name, value in ours.items()
    )
