"""Tiny random models that read images, with the processors that belong to them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from tests.support.tiny import built_once, save_tokenizer

CONTEXT = 1024
TEXT = dict(
    hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=CONTEXT, bos_token_id=None,
    pad_token_id=None,
)  # fmt: skip
VISION = dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, patch_size=14
)
QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}MARK{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}\
<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def picture(seed: int, height: int, width: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


WIDE, TALL = picture(1, 80, 120), picture(2, 112, 56)


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def image(source: object) -> dict[str, Any]:
    return {"type": "image", "image": source}


def by_url(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def user(*content: Any) -> dict[str, Any]:
    """A message of parts, of which those of text are strings."""
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    return {"role": "user", "content": parts}


def _with_tokens(folder: Path, *tokens: str) -> tuple[Any, list[int]]:
    save_tokenizer(folder, CONTEXT)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    return tokenizer, [tokenizer.convert_tokens_to_ids(token) for token in tokens]


def _text(tokenizer: Any, **more: Any) -> dict[str, Any]:
    return {**TEXT, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, **more}


def _qwen(config: str, processor: str, vision: dict[str, Any], **rope: Any) -> Any:
    """rope: more of its positions, which are of three kinds."""

    def build(folder: Path) -> tuple[Any, Any]:
        tokenizer, (start, end, image, video) = _with_tokens(folder, *QWEN)
        scaling = {"rope_type": "default", "mrope_section": [2, 3, 3], **rope}
        about = getattr(transformers, config)(
            text_config=_text(tokenizer, rope_scaling=scaling),
            vision_config=dict(depth=2, num_heads=2, in_chans=3, **vision),
            image_token_id=image,
            video_token_id=video,
            vision_start_token_id=start,
            vision_end_token_id=end,
        )
        tokenizer.save_pretrained(folder)
        side = 2 * vision["patch_size"]
        images = transformers.Qwen2VLImageProcessor(
            patch_size=vision["patch_size"], min_pixels=4 * side**2, max_pixels=64 * side**2
        )
        kept = {**images.to_dict(), "processor_class": processor}
        (folder / "preprocessor_config.json").write_text(json.dumps(kept))
        mark = "<|vision_start|><|image_pad|><|vision_end|>"
        (folder / "chat_template.jinja").write_text(TEMPLATE.replace("MARK", mark))
        return about, None  # it is made of these files

    return build


def _llava(folder: Path) -> tuple[Any, Any]:
    tokenizer, [image] = _with_tokens(folder, "<image>")
    vision = transformers.CLIPVisionConfig(**VISION, image_size=56, projection_dim=32)
    text = transformers.LlamaConfig(**_text(tokenizer))
    about = transformers.LlavaConfig(
        text_config=text, vision_config=vision, image_token_index=image, image_seq_length=16
    )
    images = transformers.CLIPImageProcessor(
        size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}
    )
    return about, transformers.LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE.replace("MARK", "<image>"),
    )


def _mistral3(folder: Path) -> tuple[Any, Any]:
    tokenizer, [image, _, _] = _with_tokens(folder, "[IMG]", "[IMG_BREAK]", "[IMG_END]")
    text = transformers.MistralConfig(**_text(tokenizer))
    about = transformers.Mistral3Config(
        text_config=text,
        vision_config=dict(model_type="pixtral", image_size=112, head_dim=16, **VISION),
        image_token_index=image,
        spatial_merge_size=2,
    )
    images = transformers.PixtralImageProcessor(
        size={"longest_edge": 112}, patch_size={"height": 14, "width": 14}
    )
    return about, transformers.PixtralProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=14,
        spatial_merge_size=2,
        chat_template=TEMPLATE.replace("MARK", "[IMG]"),
    )


OF_2 = dict(embed_dim=32, hidden_size=64, mlp_ratio=2, patch_size=14)
OF_25 = dict(hidden_size=32, out_hidden_size=64, intermediate_size=64, patch_size=14)
OF_25 |= dict(fullatt_block_indexes=[1], window_size=56)
OF_3 = dict(hidden_size=32, out_hidden_size=64, intermediate_size=64, patch_size=16)
OF_3 |= dict(deepstack_visual_indexes=[0], num_position_embeddings=64)
KINDS: dict[str, Callable[[Path], tuple[Any, Any]]] = {
    "qwen2_vl": _qwen("Qwen2VLConfig", "Qwen2VLProcessor", OF_2, type="mrope"),
    "qwen2_5_vl": _qwen("Qwen2_5_VLConfig", "Qwen2_5_VLProcessor", OF_25, type="mrope"),
    "qwen3_vl": _qwen("Qwen3VLConfig", "Qwen3VLProcessor", OF_3, mrope_interleaved=True),
    "llava": _llava,
    "mistral3": _mistral3,
}


def vision_model(kind: str) -> Path:
    """The folder of a tiny random model."""

    def build(folder: Path) -> None:
        about, processor = KINDS[kind](folder)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            auto = transformers.AutoModelForImageTextToText
            model = auto.from_config(about, dtype=torch.float32)
            for (
                weight
            ) in model.parameters():  # large, so that the best token is not always the same
                if weight.dim() > 1:
                    weight.normal_(0, 0.15)
        model.save_pretrained(folder)
        if processor is not None:
            processor.save_pretrained(folder)

    return built_once(f"vision-{kind}", "2", build)


class Reference:
    """Transformers' own processor and greedy answers."""

    def __init__(self, folder: Path) -> None:
        auto = transformers.AutoModelForImageTextToText
        self.model = auto.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None
        self.processor = transformers.AutoProcessor.from_pretrained(folder)

    def answer(self, content: list[Any], tokens: int) -> tuple[list[int], list[int], list[float]]:
        """The ids of a user's message, of its answer, and the answer's log probs."""
        inputs = self.inputs(content)
        found = self.model.generate(
            **inputs, max_new_tokens=tokens, do_sample=False, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        prompt = inputs["input_ids"][0].tolist()
        ids = found.sequences[0, len(prompt) :]
        logprobs = torch.stack(found.logits)[:, 0].log_softmax(-1).gather(1, ids[:, None])
        return prompt, ids.tolist(), logprobs[:, 0].tolist()

    def inputs(self, content: list[Any]) -> dict[str, torch.Tensor]:
        """Those of a user's message."""
        messages = [user(*content)]
        inputs = self.processor.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, return_dict=True,
            return_tensors="pt",
        )  # fmt: skip
        return dict(inputs)

    def logits(self, content: list[Any], answer: list[int]) -> torch.Tensor:
        """Of all tokens but the first, in one pass over a user's message and its answer."""
        ids = [*self.inputs(content)["input_ids"][0].tolist(), *answer]
        return self.one_pass(ids, [part["image"] for part in content if isinstance(part, dict)])

    def one_pass(self, ids: list[int], images: list[Any]) -> torch.Tensor:
        """The logits of each id but the first: ids x vocabulary."""
        inputs = self.inputs([*map(image, images)])
        inputs["input_ids"] = torch.tensor([ids])
        inputs["attention_mask"] = torch.ones(1, len(ids), dtype=torch.long)
        if "mm_token_type_ids" in inputs:
            is_image = inputs["input_ids"] == self.processor.image_token_id
            inputs["mm_token_type_ids"] = is_image.long()
        with torch.no_grad():
            return self.model(**inputs).logits[0, :-1]
