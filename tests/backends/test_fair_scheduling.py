"""Which row runs next: no call waits for all rows of another."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from _inf.backends.verl import environment

pytestmark = [pytest.mark.engine, pytest.mark.verl]  # it imports the whole stack


def requests(call: str, rows: int, first: int = 0) -> list[Any]:
    return [SimpleNamespace(rid=f"{call}-{row}") for row in range(first, first + rows)]


def order(waiting: Sequence[Any], running: Sequence[Any] | None = ()) -> list[str]:
    """The order of the queue, with a policy of SGLang's that does not change it."""
    environment.prepare("auto")
    from _inf.backends.verl.child.scheduler import take_turns

    queue = list(waiting)
    batch = None if running is None else SimpleNamespace(reqs=list(running))
    assert take_turns(lambda policy, waiting, running: True, None, queue, batch) is True
    return [req.rid for req in queue]


def test_two_batches_take_turns_and_a_late_one_gets_no_more() -> None:
    waiting = [*requests("old", 3), *requests("new", 3)]
    assert order(waiting, None) == ["old-0", "new-0", "old-1", "new-1", "old-2", "new-2"]
    waiting = [*requests("old", 2, 2), *requests("new", 4)]
    after = order(waiting, requests("old", 2))
    assert after == ["new-0", "new-1", "old-2", "new-2", "old-3", "new-3"]


def test_no_rows_id_is_the_beginning_of_another_rows() -> None:
    """SGLang aborts all requests whose ids begin with the one that is named."""
    environment.prepare("auto")
    from _inf.backends.verl.calls import Call

    call = Call(None, None)  # type: ignore[arg-type]
    ids = [call.rid(row) for row in range(101)]
    assert [each for each in ids[10:] if each.startswith(tuple(ids[:10]))] == []
    assert {each.partition("-")[0] for each in ids} == {call.name}
