"""Images on SGLang: its scheduler gets what the model's processor has made, with the prompt's ids.

SGLang's own processors (0.5.9, `multimodal/processors/`) would decode the ids and encode the text
again.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.rotary_embedding import MRotaryEmbedding
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem
from transformers import AutoModelForImageTextToText

from _inf.backends.verl import translation
from _inf.backends.verl.support import EXACT_WITH_IMAGES, architecture
from _inf.errors import ConfigError
from _inf.parts.images import Images
from _inf.parts.images.prompt import images_only

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from _inf.types import SamplingParams


class Translation(translation.Translation[Images]):
    @classmethod
    def check(cls, hf_config: PretrainedConfig) -> None:
        """Refuse images of a model that SGLang may not compute as Transformers does."""
        if (name := architecture(hf_config)) not in EXACT_WITH_IMAGES:
            raise ConfigError.of(
                "model_path",
                f"images of {name} were never compared with Transformers on SGLang 0.5.9, or "
                f"differ, only those of {', '.join(EXACT_WITH_IMAGES)}. rollout.name: hf reads "
                "them.",
            )

    def sent(self, params: SamplingParams) -> dict[str, object]:
        return {"image_data": [ImageInputs(self.part)]}


@dataclasses.dataclass(frozen=True)
class ImageInputs:
    """Makes what SGLang's request has beside its ids."""

    part: Images

    def of_request(self, ids: list[int], hf_config: PretrainedConfig) -> dict[str, object]:
        """ids: the prompt's, and those of an answer that goes on."""
        inputs = dict(self.part.inputs)
        item = MultimodalDataItem(
            Modality.IMAGE,
            hash=_number(self.part),
            offsets=[*self.part.places],
            feature=inputs.pop("pixel_values"),
            model_specific_data=inputs,
        )
        return {"mm_items": [item], **_positions(self.part, ids, hf_config)}


def positions_differ(
    prompts: Iterable[tuple[Images, list[int]]], hf_config: PretrainedConfig
) -> list[bool]:
    """Whether SGLang gets other positions of each prompt than Transformers (4.57.1) computes."""
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(hf_config, attn_implementation="eager")
    differ = []
    for part, ids in prompts:
        grid = part.inputs["image_grid_thw"]
        places, delta = model.model.get_rope_index(torch.tensor([ids]), grid)
        theirs = {"mrope_positions": places.squeeze(1), "mrope_position_delta": delta}
        ours = _positions(part, ids, hf_config)
        differ.append(not all(value.equal(theirs[name]) for name, value in ours.items()))
    return differ


def _number(part: Images) -> int:
    """Under which SGLang caches the images. Its own is of `pixel_values` alone, in which a plain
    image has the same numbers lying as standing."""
    return int(hashlib.sha256("".join(part.digests).encode()).hexdigest(), 16)


def _positions(
    part: Images, ids: list[int], hf_config: PretrainedConfig
) -> dict[str, torch.Tensor]:
    """Of models whose positions are of three kinds: 3 x tokens, and by how much later tokens are
    nearer than their places."""
    rope = getattr(hf_config.get_text_config(), "rope_scaling", None) or {}
    if "mrope_section" not in rope:
        return {}
    positions, delta = MRotaryEmbedding.get_rope_index(
        spatial_merge_size=hf_config.vision_config.spatial_merge_size,
        image_token_id=hf_config.image_token_id,
        video_token_id=hf_config.video_token_id,
        vision_start_token_id=hf_config.vision_start_token_id,
        model_type=type(hf_config).model_type,  # of an object 4.57.1 may give its text_config's
        tokens_per_second=getattr(hf_config.vision_config, "tokens_per_second", None),
        input_ids=torch.tensor([images_only(ids, part.places)]),
        image_grid_thw=part.inputs["image_grid_thw"],
    )
    return {"mrope_positions": positions.squeeze(1), "mrope_position_delta": delta}
