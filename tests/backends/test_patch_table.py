"""Rows of a table of patches, applied to a class in place of an upstream one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from _inf.backends.verl.patch_table import Wrap, apply

pytestmark = pytest.mark.verl

UPSTREAM = f"{__name__}:Upstream"


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """Found as this module's `Upstream`."""

    class Upstream:
        def method(self, number: int) -> int:
            return number + 1

        @staticmethod
        def static(number: int) -> int:
            return number + 2

        @classmethod
        def named(cls, number: int) -> tuple[str, int]:
            return cls.__name__, number

    monkeypatch.setitem(globals(), "Upstream", Upstream)
    return Upstream


def doubled(original: Callable[..., int], *args: Any) -> Any:
    return original(*args[:-1], 2 * args[-1])


def test_wrapped_function_is_called_with_upstreams_own_whatever_its_kind(
    upstream: type[Any],
) -> None:
    apply(Wrap(f"{UPSTREAM}.{name}", doubled, "") for name in ("method", "static", "named"))
    assert upstream().method(5) == 11
    assert upstream.static(5) == upstream().static(5) == 12
    assert upstream.named(5) == upstream().named(5) == ("Upstream", 10)
