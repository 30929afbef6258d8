"""The HTTP package that the installed `openai` is built on: httpx, from version 3 on httpx2, which
has the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai

if TYPE_CHECKING:
    import httpx
elif int(openai.__version__.partition(".")[0]) < 3:
    import httpx
else:
    import httpx2 as httpx

__all__ = ["httpx"]
