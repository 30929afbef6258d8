"""The reward of rows whose loop gives none (`reward.custom_reward_function`)."""

from __future__ import annotations

from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None
) -> float:
    return float(ground_truth in solution_str)
