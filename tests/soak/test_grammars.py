"""Ten thousand different schemas through one server: the memory of its processes stays bounded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from _inf.backends.openai.http import httpx
from inf import InferenceEngine
from tests.support.figures import Figures

pytestmark = pytest.mark.soak

SCHEMAS, PROPERTIES, CLIENTS = 10_000, 30, 8
GROWTH_BYTES = 1.5 * 2**30


def schema(number: int) -> dict[str, Any]:
    named = {f"name_{number}_{n}": {"type": ["string", "integer"]} for n in range(PROPERTIES)}
    return {"type": "object", "properties": named, "required": list(named)}


def memory() -> int:
    """Of this process, which serves, and of the engine's."""
    me = psutil.Process()
    return sum(each.memory_info().rss for each in [me, *me.children(recursive=True)])


def asked(server: Any, numbers: range) -> Iterator[str]:
    """The beginnings of answers, each by a schema of its own."""
    with httpx.Client(base_url=server.base_url, timeout=300) as http:

        def ask(number: int) -> str:
            body = {"prompt": "Hi", "max_tokens": 4, "json_schema": schema(number)}
            response = http.post("/completions", json=body)
            assert response.status_code == 200, response.text
            return str(response.json()["choices"][0]["text"])

        with ThreadPoolExecutor(CLIENTS) as clients:
            yield from clients.map(ask, numbers)


def test_ten_thousand_schemas_leave_the_memory_bounded(
    tiny: InferenceEngine, figures: Figures
) -> None:
    with tiny.serve() as server:
        warm = list(asked(server, range(-100, 0)))
        before = memory()
        texts = list(asked(server, range(SCHEMAS)))
        grown = memory() - before
    figures(f"growth after {SCHEMAS} different schemas, MB", round(grown / 1e6))
    assert len(warm) == 100 and all(text.startswith('{"') for text in texts)
    assert grown < GROWTH_BYTES
