"""A prompt with images whose ids a session of `inf serve` has recorded."""

from __future__ import annotations

import dataclasses

from torch.nn.functional import pad

from _inf.parts.images import Images
from _inf.types import Prompt


def with_text_after(prompt: Prompt, ids: list[int]) -> Prompt:
    """A rendered prompt with more ids of text after its own."""
    own = len(prompt.token_ids)
    [part] = prompt.parts
    assert isinstance(part, Images) and ids[:own] == prompt.token_ids
    inputs = {
        name: pad(value, (0, len(ids) - own)) if value.shape == (1, own) else value
        for name, value in part.inputs.items()
    }
    part = dataclasses.replace(part, inputs=inputs)
    return dataclasses.replace(prompt, token_ids=ids, parts=(part,))
