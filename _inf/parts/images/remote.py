"""Fetches images from other machines, where `rollout.images.allow_remote` lets it."""

from __future__ import annotations

import importlib.util
import time
from typing import TYPE_CHECKING

from _inf.errors import PromptError

if TYPE_CHECKING:
    import httpx
elif importlib.util.find_spec("httpx"):
    import httpx
else:  # the same names, in its next version
    import httpx2 as httpx

MOST_SECONDS, MOST_BYTES, MOST_REDIRECTS = 20.0, 2**25, 3


def fetched(url: str, place: str) -> bytes:
    """The bytes at an address. httpx (0.28 and 2) follows redirects to http and https only; it
    leaves a password out of those to other hosts. `place` begins an error, which does not repeat
    the address: it may hold secrets."""
    found, end = bytearray(), time.monotonic() + MOST_SECONDS
    plain = {"Accept-Encoding": "identity"}  # few bytes that unpack to many are not an image
    client = httpx.Client(
        timeout=MOST_SECONDS, follow_redirects=True, max_redirects=MOST_REDIRECTS, headers=plain
    )
    try:
        with client, client.stream("GET", url) as answer:
            why = "" if answer.is_success else f"status {answer.status_code}"
            for piece in () if why else answer.iter_raw():
                found += piece
                if len(found) > MOST_BYTES:
                    why = f"it has more than {MOST_BYTES:,} bytes"
                elif time.monotonic() > end:
                    why = f"it takes longer than {MOST_SECONDS:g} s"
                if why:
                    break
    except Exception as failure:  # its text may have the whole address
        why = type(failure).__name__
    if why:
        raise PromptError(f"{place} cannot be fetched: {why}.")
    return bytes(found)
