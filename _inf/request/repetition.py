"""When `repetition_detection` ends an answer, as in vLLM (0.32.0, `v1/core/sched/utils.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

REPETITION = "repetition"  # the finish reason


def repeats(ids: Sequence[int], detection: Mapping[str, int]) -> bool:
    """Whether ids end in `min_count` equal parts of `min_pattern_size` to `max_pattern_size`
    tokens."""
    count = detection["min_count"]
    for size in range(detection["min_pattern_size"], detection["max_pattern_size"] + 1):
        begin = len(ids) - size * count
        if begin < 0:
            return False
        # What is equal to itself a part further on is one part, again and again.
        if ids[-1] == ids[-1 - size] and ids[begin:-size] == ids[begin + size :]:
            return True
    return False
