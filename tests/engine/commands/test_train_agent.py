"""`examples/train_agent.py`: an agent and its sub-agent are one rollout, by scripted answers."""

from __future__ import annotations

import runpy
from typing import Any

import pytest
import torch

from inf import InferenceEngine
from tests.support.pages import ROOT
from tests.support.scripted_thoughts import speaking

pytestmark = pytest.mark.verl
CALL = '<tool_call>\n{"name": "price", "arguments": {"item": "pen"}}\n</tool_call>'


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    found = runpy.run_path(str(ROOT / "examples" / "train_agent.py"))
    found["rollouts"].__globals__.update(PRICES={"pen": 3}, SAMPLES=1, MAX_TOKENS=200)
    return found


def rollouts(program: dict[str, Any], engine: InferenceEngine) -> tuple[Any, torch.Tensor]:
    with engine.serve() as server:
        batch, rewards = program["rollouts"](engine, server)
        return batch, rewards


@pytest.mark.parametrize(
    ("said", "reward", "rows"),
    [
        ((CALL, "3", "A pen costs 3 dollars."), 1.0, 2),
        ((CALL, "4", "A pen costs 4 dollars."), 0.5, 2),
        (("It costs 3 dollars.",), 0.0, 1),
    ],
)
def test_agent_and_its_sub_agent_are_rows_of_one_rollout(
    program: dict[str, Any], said: tuple[str, ...], reward: float, rows: int
) -> None:
    with speaking() as (speaker, engine):
        speaker.says(*said)
        batch, rewards = rollouts(program, engine)
    assert rewards.tolist() == [reward] * rows
    columns = batch.non_tensor_batch
    assert [*columns["uid"]] == ["pen"] * rows and len({*columns["rollout"]}) == 1
    masked = batch.batch["response_mask"].sum(dim=1)
    assert masked.tolist()[-1] <= masked.tolist()[0]


def test_advantages_count_each_rollout_once(program: dict[str, Any]) -> None:
    """By hand: three rollouts of one task, of rewards 1, 0 and 0, the first of three rows. Their
    mean is 1/3 and their spread the square root of 1/3, whatever the number of rows."""
    from verl import DataProto

    names, rewards = ["a", "a", "a", "b", "c"], torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])
    mask = torch.tensor([[1, 0, 1], [1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 0, 1]])
    batch: Any = DataProto.from_dict(
        tensors={"response_mask": mask},
        non_tensors={"rollout": names, "uid": ["task"] * 5},
    )
    found = program["advantages"](batch, rewards)
    spread = (1 / 3) ** 0.5
    by_hand = torch.tensor([2 / 3, 2 / 3, 2 / 3, -1 / 3, -1 / 3]) / spread
    torch.testing.assert_close(found, by_hand[:, None] * mask, atol=1e-4, rtol=0)
