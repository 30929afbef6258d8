"""`repetition_detection`: ends an answer that repeats itself, as in vLLM (0.32.0,
`v1/core/sched/utils.py`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from _inf.errors import ConfigError
from _inf.parts.part import Part
from _inf.request.keyword import Keyword
from _inf.request.values import count, mapping, one_of

REPETITION = "repetition"  # the finish reason


def detection(name: str, value: object) -> dict[str, int] | None:
    given = mapping(name, value)
    found = {"max_pattern_size": 0, "min_pattern_size": 0, "min_count": 0}
    for key, number in given.items():
        place = f"{name}.{key}"
        found[one_of(place, key, [*found])] = count(place, number, least=0)
    if found["max_pattern_size"] == 0 and found["min_pattern_size"] == 0:
        return None
    if found["min_pattern_size"] > found["max_pattern_size"]:
        raise ConfigError.of(f"{name}.min_pattern_size", "it is above max_pattern_size.")
    if found["min_count"] < 2:
        raise ConfigError.of(f"{name}.min_count", "a repetition has at least 2 equal parts.")
    return found | {"min_pattern_size": max(1, found["min_pattern_size"])}


@dataclasses.dataclass(frozen=True)
class Repetition(Part):
    same_names = {"openai"}
    keywords = {
        "repetition_detection": Keyword(
            detection,
            'Ends an answer that repeats itself: `{"max_pattern_size": 8, "min_count": 4}`. Its '
            "last tokens are so many equal parts of `min_pattern_size` (1) to `max_pattern_size` "
            "tokens; `finish_reason` is then `repetition` (as vLLM).",
            dict[str, int],
            "",
            "repetition_detection",
        )
    }
    repetition_detection: Mapping[str, int] = dataclasses.field(default_factory=dict)


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
