"""Refused calls, and what their exceptions say they are about."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from _inf.errors import InferenceError


@contextlib.contextmanager
def refused(
    kind: type[InferenceError], says: str | None = None, **about: Any
) -> Iterator[pytest.ExceptionInfo[InferenceError]]:
    """about: `key`, `index` and `row`. says: words that are a promise themselves, as a regex."""
    with pytest.raises(kind, match=says) as caught:
        yield caught
    found = vars(caught.value)
    assert {name: found[name] for name in about} == about, str(caught.value)
