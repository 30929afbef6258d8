"""The metrics of an evaluation: verl's by its own names, pass@k and standard errors beside them."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import pytest

from _inf.apps.eval.eval_report import EvalReport
from _inf.apps.eval.metrics import metrics, pass_at_k


def row(number: int, reward: float | None, source: str = "math", **more: Any) -> dict[str, Any]:
    return {"number": number, "data_source": source, "reward": reward, "reward_extra": {}, **more}


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_draws_with_a_right_answer(n: int) -> None:
    for right, k in itertools.product(range(n + 1), range(1, n + 1)):
        answers = [1] * right + [0] * (n - right)
        draws = [any(draw) for draw in itertools.combinations(answers, k)]
        assert pass_at_k(n, right, k) == pytest.approx(statistics.fmean(draws))


@pytest.mark.verl
def test_metrics_are_verls_own_and_ours_beside_them() -> None:
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    rewards = [[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
    rows = [row(i, each) for i, group in enumerate(rewards) for each in group]
    found = metrics(rows, 4)
    flat = [each for group in rewards for each in group]
    theirs = process_validation_metrics(
        ["math"] * 12, [str(i // 4) for i in range(12)], {"reward": flat}
    )["math"]["reward"]
    assert {name.split("/", 3)[3]: v for name, v in found.items() if "@" in name}.items() >= dict(
        theirs
    ).items()
    assert found["val-core/math/reward/mean@4"] == pytest.approx(5 / 12)
    assert found["val-aux/math/reward/pass@1"] == pytest.approx(5 / 12)
    assert found["val-aux/math/reward/pass@4"] == pytest.approx(2 / 3)
    means = [0.5, 0.0, 0.75]
    assert found["val-aux/math/reward/stderr@4"] == pytest.approx(statistics.stdev(means) / 3**0.5)


def test_accuracy_of_the_function_is_the_core_value_where_it_gives_one() -> None:
    extra = [{"score": -1.0, "acc": False}, {"score": 1.0, "acc": True}]
    rows = [row(i, each["score"], reward_extra=each) for i, each in enumerate(extra)]
    found = metrics(rows, 1)
    assert found["val-core/math/acc/mean@1"] == 0.5
    assert found["val-aux/math/reward/mean@1"] == 0.0
    assert found["val-aux/math/acc/pass@1"] == 0.5
    assert found["val-aux/math/acc/stderr@1"] == 0.5
    assert found["val-aux/math/reward/stderr@1"] == 1.0  # of every mean, pass@k of the core one
    assert "val-aux/math/reward/pass@1" not in found


def test_prompts_without_all_their_rewards_are_left_out_and_sources_kept_apart() -> None:
    rows = [row(0, 1.0), row(0, None), row(1, 1.0), row(1, 0.0), row(2, 0.0, "code")]
    rows += [row(2, 0.0, "code")]
    found = metrics(rows, 2)
    assert found["val-core/math/reward/mean@2"] == 0.5
    assert found["val-core/code/reward/mean@2"] == 0.0
    assert metrics([row(0, None)], 1) == {}
    assert not [name for name in metrics([row(0, 3.0)], 1) if "pass@" in name]  # above one


def test_value_named_reward_in_a_functions_dict_does_not_replace_the_reward() -> None:
    rows = [row(0, 1.0, reward_extra={"score": 1.0, "reward": 0.25})]
    assert metrics(rows, 1)["val-core/math/reward/mean@1"] == 1.0


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ([1.0, 0.0, None, 1.0], "2 of 3 right, 1 cut by max_tokens (64)"),
        ([0.0, 0.0], "0 of 2 right, 1 cut by max_tokens (64)"),
        ([0.5, 1.0], "a mean reward of 0.7500 of 2 answers, 1 cut by max_tokens (64)"),
        ([None], "none of 1 answers has a reward, 1 cut by max_tokens (64)"),
    ],
)
def test_report_begins_with_how_many_are_right_and_how_many_were_cut(
    rewards: list[float | None], said: str
) -> None:
    rows = [
        {"number": i, "data_source": "sums", "reward": reward, "completion_tokens": 1}
        for i, reward in enumerate(rewards)
    ]
    rows[0]["finish_reason"] = "length"
    assert reported(rows).table().splitlines()[0] == said
    rows[0]["limit"] = "max_assistant_turns"
    assert reported(rows).table().splitlines()[0] == said.replace("max_tokens (64)", "a limit")


def test_right_is_what_acc_says() -> None:
    rows = [
        {"number": i, "data_source": "sums", "reward": 2 * acc - 1, "reward_extra": {"acc": acc}}
        | {"completion_tokens": 1}
        for i, acc in enumerate([1, 0, 0])
    ]
    assert reported(rows).table().startswith("1 of 3 right, 0 cut by max_tokens (64)\n")


def reported(rows: list[dict[str, Any]]) -> EvalReport:
    names = ("model", "data", "reward", "reward_version", "tokens_per_second")
    facts: dict[str, Any] = dict.fromkeys((*names, "limit", "rescored_because"))
    facts |= {"n": 1, "answers_kept": 0, "rewards_kept": 0, "parameters": {"max_tokens": 64}}
    return EvalReport.of(rows, len(rows), **facts)
