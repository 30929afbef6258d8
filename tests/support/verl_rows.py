"""Rows of verl's form, as its `examples/data_preprocess` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def verl_rows(
    count: int, extra: Mapping[str, Any] | None = None, **columns: Any
) -> list[dict[str, Any]]:
    """extra: of `extra_info`, besides the index. columns: further ones, the same in all rows."""
    return [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"Count from {index}."}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(index)},
            "extra_info": {"index": index, **(extra or {})},
            **columns,
        }
        for index in range(count)
    ]
