"""Which rows of a trainer's batch are one group: a GRPO advantage compares the rows of a `uid`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from _inf.apps.rollouts.sources import traces_to_data_proto
from _inf.apps.serve.sessions import Sessions, Start
from _inf.types import RequestOutput, Tokenizer, Trace

TOKENIZER = cast(Tokenizer, SimpleNamespace(pad_token_id=0))


def answered(sessions: Sessions, name: str, *requests: tuple[list[int], str]) -> list[Trace]:
    """The traces of a session in which each request, of a prompt and a text, began a trace."""
    session = sessions.of_request(name)
    for ids, text in requests:
        choice: Any = SimpleNamespace(
            output=RequestOutput(token_ids=[9], logprobs=[-0.5]),
            finish_reason="stop",
            message={"role": "assistant", "content": "Yes"},
            ended=True,
        )
        session.add(Start([{"role": "user", "content": text}]), ids, choice)
    sessions.open(session)
    return session.traces()


def groups_of(traces: list[Trace]) -> list[list[int]]:
    """The numbers of the rows of each `uid`."""
    batch = traces_to_data_proto(traces, [1.0] * len(traces), TOKENIZER, (8, 8))
    columns, groups = batch.non_tensor_batch, dict[str, list[int]]()
    for row, uid in enumerate(columns["uid"]):
        groups.setdefault(uid, []).append(row)
    assert [columns["prompt_index"][rows[0]] for rows in groups.values()] == [*range(len(groups))]
    return [*groups.values()]


@pytest.mark.verl
def test_all_traces_of_a_session_are_in_the_group_of_its_first_prompt() -> None:
    sessions = Sessions()
    one = answered(sessions, "one", ([1, 2], "Task"), ([5], "Sub-agent"), ([1, 6], "Shortened"))
    two = answered(sessions, "two", ([1, 2], "Task"), ([7], "Sub-agent"))
    other = answered(sessions, "other", ([3], "Another task"), ([5], "Sub-agent"))
    assert groups_of([*one, *two, *other]) == [[0, 1, 2, 3, 4], [5, 6]]


@pytest.mark.verl
def test_session_that_has_a_deleted_ones_name_is_another_rollout() -> None:
    sessions = Sessions()
    before = answered(sessions, "worker", ([1], "Task"), ([5], "Sub-agent"))
    sessions.delete("worker")
    after = answered(sessions, "worker", ([2], "Another task"), ([5], "Sub-agent"))
    assert groups_of([*before, *after]) == [[0, 1], [2, 3]]


@pytest.mark.verl
def test_traces_that_no_session_made_are_grouped_by_their_prompts() -> None:
    said = [{"role": "assistant", "content": "Yes"}]
    traces = [
        Trace(str(n), ids, [9], [1], [-0.5], said, ["stop"], [0])
        for n, ids in enumerate(([1], [2], [1]))
    ]
    assert groups_of(traces) == [[0, 2], [1]]
