"""A prompt with images whose ids a session of `inf serve` has recorded."""

from __future__ import annotations

import dataclasses

from _inf.parts.images import Images
from _inf.types import Prompt


def with_ids(prompt: Prompt, ids: list[int]) -> Prompt:
    """A rendered prompt with the same images in other ids, such as those that a session has
    recorded of its messages. An input with a value for each token gets those that the tokens have
    in the prompt, and 0, text, for others."""
    own = (1, len(prompt.token_ids))
    [part] = prompt.parts
    assert isinstance(part, Images)
    inputs = dict(part.inputs)
    for name, value in part.inputs.items():
        if value.shape == own:
            known = dict(zip(prompt.token_ids, value[0].tolist(), strict=True))
            inputs[name] = value.new_tensor([[known.get(token, 0) for token in ids]])
    part = dataclasses.replace(part, inputs=inputs)
    return dataclasses.replace(prompt, token_ids=ids, parts=(part,))
