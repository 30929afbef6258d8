"""Checks a row's reward, or reports why its function returned none."""

from __future__ import annotations

import dataclasses
import math

from _inf.errors import InferenceError, shown
from _inf.response.json_values import DEEPEST, json_value


class RewardError(InferenceError):
    """A reward function gave no reward for one row; the message says why.

    raised: the name of the exception's class, if the function raised one.
    """

    def __init__(self, message: str, raised: str | None = None) -> None:
        super().__init__(message)
        self.raised = raised


@dataclasses.dataclass(frozen=True)
class Reward:
    """A row's reward, and the other values that its function returned, by verl's names. Raises
    `RewardError` for one of these that JSON cannot hold, or that no metric can be made of."""

    value: float
    extra: dict[str, object] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.extra.items():
            _check_value(name, value)

    @classmethod
    def of(cls, result: object) -> Reward:
        """Check what a function returned. Raises `RewardError`."""
        extra = result if isinstance(result, dict) else {}
        if extra is result and "score" not in extra:
            raise RewardError(f"a reward's dict must have 'score'; it has {shown(list(result))}.")
        value = extra.get("score", result)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):  # 10**400 is no float
            raise RewardError(f"a reward must be a number, not {shown(value)}.") from None
        if not math.isfinite(number):
            raise RewardError(f"a reward must be a finite number, not {number}.")
        return cls(number, extra)


def _check_value(name: str, value: object) -> None:
    """Raise `RewardError` for an odd value of `Reward.extra`."""
    try:
        usable = json_value(value) == value
        if isinstance(value, int):
            float(value)  # 10**400 is no float
    except OverflowError:
        usable = False
    if not usable:
        raise RewardError(
            f"a reward's {name!r} must be finite and nested at most {DEEPEST} levels deep, "
            f"not {shown(value)}."
        )
