"""Shortens prompts to what tells one from another."""

from __future__ import annotations

import os
from collections.abc import Sequence

PREVIEW = 120  # characters of a prompt
ALL = 8 * 2**20  # of all of them


def previews(prompts: Sequence[str]) -> list[str]:
    """Return the beginnings of what differs; the ends, if the prompts begin in different ways."""
    length = min(PREVIEW, ALL // len(prompts))
    end = same_end(prompts)
    same = os.path.commonprefix(prompts) if len(prompts) > 1 else ""
    begin = max(same.rfind(space) for space in (" ", "\n")) + 1
    texts = [prompt.removesuffix(end)[begin:] for prompt in prompts]
    if begin or len(prompts) == 1:
        return [" ".join(text[: 2 * length].split())[:length] for text in texts]
    return [" ".join(text[-2 * length :].split())[-length:] for text in texts]


def same_end(prompts: Sequence[str]) -> str:
    """Return what all of several prompts end with, as those of a chat template do."""
    return os.path.commonprefix([text[::-1] for text in prompts])[::-1] if len(prompts) > 1 else ""
