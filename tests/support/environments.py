"""Environments with TRL's contract for the model that calls a calculator (`tool_calling`), right
ones and each kind of wrong one. They use nothing of this project."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any


class Sums:
    """Calculates. The reward is how often."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.row: dict[str, Any] = {}

    def reset(self, **row: Any) -> str | None:
        self.calls, self.row = [], row
        return row.get("shows")

    def calculator(self, expression: str) -> str:
        """Calculates.

        Args:
            expression: The expression.
        """
        self.calls.append(expression)
        one, operator, other = expression.split()
        sums = {"+": int(one) + int(other), "*": int(one) * int(other)}
        return str(sums[operator])

    def get_reward(self) -> float:
        return float(len(self.calls))

    def _own(self) -> None:
        """No tool."""


class Table(Sums):
    """Keeps its calls in a database, which only the thread that has opened it may use."""

    def reset(self, **row: Any) -> str | None:
        self.base = sqlite3.connect(":memory:")
        self.base.execute("create table calls (expression)")
        return super().reset(**row)

    def calculator(self, expression: str) -> str:
        """Calculates.

        Args:
            expression: The expression.
        """
        self.base.execute("insert into calls values (?)", (expression,))
        return super().calculator(expression)

    def get_reward(self) -> float:
        return float(self.base.execute("select count(*) from calls").fetchone()[0])

    @property
    def picture(self) -> Callable[[], str]:
        raise ValueError("nothing is drawn, and no tool")


class WaitingSums(Table):
    """Calculates once it may go on."""

    made = 0
    entered, goes_on = threading.Event(), threading.Event()

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1

    def calculator(self, expression: str) -> str:
        """Calculates.

        Args:
            expression: The expression.
        """
        self.entered.set()
        assert self.goes_on.wait(30)
        return super().calculator(expression)


class OfClass:
    def reset(self, **row: Any) -> None: ...

    @classmethod
    def calculator(cls, expression: str) -> str:
        """Calculates.

        Args:
            expression: The expression.
        """
        return "84"


class Static(OfClass):
    @staticmethod
    def calculator(expression: str) -> str:  # type: ignore[override]
        """Calculates.

        Args:
            expression: The expression.
        """
        return "84"


class Shows:
    """Shows what is in its row, and changes what it gets."""

    def reset(self, shows: list[str], prompt: list[Any], **row: Any) -> str:
        prompt[0]["content"] = "changed"
        return shows.pop()


class CountingSums(Sums):
    def count(self) -> int:
        """Counts."""
        return len(self.calls)


class AwaitedSums(Sums):
    """The same in coroutines, but for `reset`, which TRL does not await."""

    async def calculator(self, expression: str) -> str:  # type: ignore[override]
        """Calculates.

        Args:
            expression: The expression.
        """
        await asyncio.sleep(0)
        return super().calculator(expression)

    async def get_reward(self) -> float:  # type: ignore[override]
        return super().get_reward()


class AsyncSums:
    """In coroutines; says how many calls ran at once."""

    def __init__(self) -> None:
        self.running = self.most = 0

    async def reset(self, **row: Any) -> None:
        await asyncio.sleep(0)

    async def calculator(self, expression: str) -> str:
        """Calculates.

        Args:
            expression: The expression.
        """
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.05)
        self.running -= 1
        return "5"

    async def get_reward(self) -> float:
        return float(self.most)


class Counter:
    """Without a reward; remembers its own calls."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.count = 0

    def reset(self, **row: Any) -> None:
        self.count = 10

    def calculator(self, expression: str) -> int:
        """Counts.

        Args:
            expression: Anything.
        """
        self.count += 1
        return self.count


class Wrong(Sums):
    """Does what its row says, in place of a right answer."""

    def reset(self, **row: Any) -> Any:
        self.how = row["how"]
        match self.how:
            case "raises":
                raise ValueError("no such game")
            case "error of ours":
                raise row["error"]
            case "hangs":
                time.sleep(5)
            case "number":
                return 3
            case "long":
                return " many" * 2000
        return None

    def calculator(self, expression: str) -> str:
        """Calculates.

        Args:
            expression: The expression.
        """
        if self.how == "tool raises":
            raise ValueError("the calculator is broken")
        return super().calculator(expression)

    def get_reward(self) -> float:
        if self.how == "reward raises":
            raise ValueError("no reward")
        return math.nan if self.how == "reward nan" else 1.0


class WithoutReset:
    pass


class Unhinted:
    def reset(self, **row: Any) -> None: ...

    def move(self, where): ...  # type: ignore[no-untyped-def]


class CannotBeMade:
    def __init__(self) -> None:
        raise OSError("no display")
