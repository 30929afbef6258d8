"""Which rows of a trainer's batch are one group: a GRPO advantage compares the rows of a `uid`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest

from _inf.apps.rollouts.traces import Trace, traces_to_data_proto
from _inf.apps.serve.open_sessions import Sessions
from _inf.apps.serve.sessions import Start
from _inf.errors import ConfigError
from _inf.types import RequestOutput, Tokenizer

TOKENIZER = cast(Tokenizer, SimpleNamespace(pad_token_id=0))


def answered(sessions: Sessions, name: str, *requests: tuple[list[int], str]) -> list[Trace]:
    """The traces of a session in which each request, of a prompt and a text, began a trace."""
    session = sessions.of_request(name)
    for ids, text in requests:
        choice = SimpleNamespace(
            output=RequestOutput(token_ids=[9], logprobs=[-0.5]),
            finish_reason="stop",
            message={"role": "assistant", "content": "Yes"},
            ended=True,
        )
        session.add(Start([{"role": "user", "content": text}]), ids, choice)
    return session.traces()


def batch_of(traces: list[Trace], **given: Any) -> Any:
    asked = {"rewards": None, "uid": None} | given
    return traces_to_data_proto(
        traces, tokenizer=TOKENIZER, widths=(8, 8), **asked
    ).non_tensor_batch


def groups_of(traces: list[Trace]) -> list[list[int]]:
    """The numbers of the rows of each `uid`."""
    columns, groups = batch_of(traces), dict[str, list[int]]()
    for row, uid in enumerate(columns["uid"]):
        groups.setdefault(uid, []).append(row)
    assert [columns["prompt_index"][rows[0]] for rows in groups.values()] == [*range(len(groups))]
    return [*groups.values()]


@pytest.mark.verl
def test_all_traces_of_a_session_are_in_the_group_of_its_first_prompt():
    sessions = Sessions()
    one = answered(sessions, "one", ([1, 2], "Task"), ([5], "Sub-agent"), ([1, 6], "Shortened"))
    two = answered(sessions, "two", ([1, 2], "Task"), ([7], "Sub-agent"))
    other = answered(sessions, "other", ([3], "Another task"), ([5], "Sub-agent"))
    sessions.delete("other")  # another session of that name is another rollout
    after = answered(sessions, "other", ([4], "A third task"), ([5], "Sub-agent"))
    traces = [*one, *two, *other, *after]
    assert groups_of(traces) == [[0, 1, 2, 3, 4], [5, 6], [7, 8]]
    of_no_session = [trace(None, prompt=prompt) for prompt in (1, 2, 1)]  # by their prompts
    assert groups_of(of_no_session) == [[0, 2], [1]]


# ─── Tasks and rollouts ───


def trace(
    rollout: str | None, task: str | None = None, reward: float | None = None, prompt: int = 1
) -> Trace:
    said = [{"role": "assistant", "content": "Yes"}]
    names = {"reward": reward, "task": task, "rollout": rollout}
    return Trace("id", [prompt], [9], [1], [-0.5], said, ["stop"], [(0, 0)], **names)


@pytest.mark.verl
def test_traces_of_a_rollout_share_its_task_and_its_reward():
    columns = batch_of([trace("a", "sums", 1.0), trace("a"), trace("b", "sums", 0.0), trace("c")])
    assert columns["uid"].tolist()[:3] == ["sums"] * 3 != columns["uid"].tolist()[1:]
    assert columns["rollout"].tolist() == ["a", "a", "b", "c"]
    scores = [scores.get("reward") for scores in columns["reward_scores"]]
    assert scores == [1.0, 1.0, 0.0, None]
    assert batch_of([trace("a", "sums")], uid=["mine"])["uid"].tolist() == ["mine"]


@pytest.mark.verl
def test_rewards_that_are_no_finite_numbers_or_contradict_each_other_are_refused():
    values = {"reward": [0.0, 1.0], "task": ["x", "y"]}
    for name, both in values.items():
        others = [trace("a", **{name: value}) for value in both]
        with pytest.raises(ConfigError, match=rf"traces\[2\]: it has no {name}.*'a'"):
            batch_of([*others, trace("a")])
    for reward in (float("nan"), True, "x"):
        with pytest.raises(ConfigError, match=r"^traces\[1\]: reward: "):
            batch_of([trace("a"), trace("b")], rewards=[numpy.float32(0.5), reward])
