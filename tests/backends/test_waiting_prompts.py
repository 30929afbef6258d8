"""SGLang's requests with equal prompts: which of them wait for another one, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from _inf.backends.verl import environment

pytestmark = [pytest.mark.engine, pytest.mark.verl]  # it imports the whole stack

PROMPT = [*range(40)]


def request(rid: str, prompt: Sequence[int] = PROMPT, **given: Any) -> Any:
    ids = {"origin_input_ids": [*prompt], "fill_ids": [*prompt], "output_ids": []}
    about = {"extra_key": None, "return_logprob": True, "logprob_start_len": len(prompt) - 1}
    return SimpleNamespace(rid=rid, **{**ids, **about, "prefix_indices": [], **given})


def computed(
    queue: list[Any], running: Sequence[Any] = (), disabled: bool = False, page_size: int = 1
) -> list[str]:
    """The requests that a pass takes from the queue."""
    environment.prepare("auto")
    from sglang.srt.managers.schedule_policy import AddReqResult

    from _inf.backends.verl.child.equal_prompts import wait_for_equal_prompt

    def add(adder: Any, request: Any) -> Any:
        adder.can_run_list.append(request)
        return AddReqResult.CONTINUE

    adder = SimpleNamespace(can_run_list=[], page_size=page_size)
    adder.tree_cache = SimpleNamespace(disable=disabled)
    adder.running_batch = SimpleNamespace(reqs=list(running))
    for each in queue:
        assert wait_for_equal_prompt(add, adder, each) is AddReqResult.CONTINUE
    queue[:] = [each for each in queue if each not in adder.can_run_list]
    return [each.rid for each in adder.can_run_list]


def test_prompt_of_another_adapter_is_another_prompt():
    assert computed([request("plain"), request("one", extra_key="one")]) == ["plain", "one"]


def test_request_waits_for_one_other_at_most():
    """Whatever the cache keeps of it."""
    queue = [request(f"a{row}") for row in range(4)]
    assert computed(queue) == ["a0"]
    assert computed(queue) == ["a1", "a2", "a3"]


def test_request_waits_for_one_that_runs_and_has_no_token_yet():
    """As it is with the overlap schedule: the cache gets a prompt with its first token."""
    first, queue = request("a0"), [request("a1")]
    assert computed(queue, [first]) == []
    first.output_ids = [7]
    queue[0].prefix_indices = PROMPT[:-1]
    assert computed(queue, [first]) == ["a1"]


@pytest.mark.parametrize(
    "given",
    [
        {"logprob_start_len": 0},  # all of its log probs are asked for, so it is computed whole
        {"logprob_start_len": 10, "prefix_indices": PROMPT[:10]},
        {"prefix_indices": PROMPT[:39]},
        {"return_logprob": False, "prefix_indices": PROMPT[:39]},
    ],
    ids=str,
)
def test_request_of_which_the_cache_would_have_no_more_does_not_wait(given):
    assert computed([request("a0"), request("a1", **given)]) == ["a0", "a1"]


def test_no_rows_id_is_the_beginning_of_another_rows():
    """SGLang aborts all requests whose ids begin with the one that is named."""
    environment.prepare("auto")
    from _inf.backends.verl.calls import Call

    call = Call(None, None)  # type: ignore[arg-type]
    ids = [call.rid(row) for row in range(101)]
    assert [each for each in ids[10:] if each.startswith(tuple(ids[:10]))] == []
    assert {each.partition("-")[0] for each in ids} == {call.name}
