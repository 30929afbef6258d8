"""The metrics of an evaluation: verl's by its own names, pass@k and standard errors beside them."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import pytest

from _inf.apps.eval.eval_report import EvalReport
from _inf.apps.eval.metrics import metrics, pass_at_k


def row(number: int, reward: float | None, source: str = "math", **extra: Any) -> dict[str, Any]:
    about = {"number": number, "data_source": source, "completion_tokens": 1}
    return {**about, "reward": reward, "reward_extra": extra}


def test_pass_at_k_is_the_share_of_draws_with_a_right_answer():
    for n, right, k in itertools.product((1, 2, 5), range(6), range(1, 6)):
        if right <= n and k <= n:
            answers = [1] * right + [0] * (n - right)
            draws = [any(draw) for draw in itertools.combinations(answers, k)]
            assert pass_at_k(n, right, k) == pytest.approx(statistics.fmean(draws))


@pytest.mark.verl
def test_metrics_are_verls_own_and_ours_beside_them():
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    rewards = [[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
    flat = [(i, each) for i, group in enumerate(rewards) for each in group]
    found = metrics([row(i, each, pred=str(each)) for i, each in flat], 4)
    prompts, values = [str(i) for i, _ in flat], [each for _, each in flat]
    columns = {"reward": values, "pred": [str(each) for each in values]}
    theirs = process_validation_metrics(["math"] * 12, prompts, columns)["math"]["reward"]
    named = {name.split("/", 3)[3]: v for name, v in found.items()}
    assert named.items() >= dict(theirs).items() and "maj@4/mean" in theirs
    assert found["val-core/math/reward/mean@4"] == pytest.approx(5 / 12)
    assert found["val-aux/math/reward/pass@1"] == pytest.approx(5 / 12)
    assert found["val-aux/math/reward/pass@4"] == pytest.approx(2 / 3)
    error = statistics.stdev([0.5, 0.0, 0.75]) / 3**0.5
    assert found["val-aux/math/reward/stderr@4"] == pytest.approx(error)


def test_accuracy_of_the_function_is_the_core_value_where_it_gives_one():
    found = metrics([row(0, -1.0, acc=False), row(1, 1.0, acc=True)], 1)
    wanted = {"val-core/math/acc/mean@1": 0.5, "val-aux/math/reward/mean@1": 0.0}
    wanted |= {"val-aux/math/acc/pass@1": 0.5, "val-aux/math/acc/stderr@1": 0.5}
    assert found == wanted | {"val-aux/math/reward/stderr@1": 1.0}


def test_prompts_without_all_their_rewards_are_left_out_and_sources_kept_apart():
    rows = [row(0, 1.0), row(0, None), row(1, 1.0), row(1, 0.0), row(2, 0.0, "code")]
    found = metrics([*rows, row(2, 0.0, "code")], 2)
    assert found["val-core/math/reward/mean@2"] == 0.5
    assert found["val-core/code/reward/mean@2"] == 0.0
    assert "val-aux/math/reward/stderr@2" not in found  # of one prompt
    assert metrics([row(0, None)], 1) == {}
    # Above one there is no pass@k, and a value named reward does not replace the reward.
    assert metrics([row(0, 3.0) | {"reward_extra": {"reward": 1.0}}], 1) == {
        "val-core/math/reward/mean@1": 3.0
    }


def reported(rows: list[dict[str, Any]], n: int = 1) -> EvalReport:
    names = ("model", "data", "reward", "reward_version", "tokens_per_second")
    facts = dict.fromkeys((*names, "limit", "rescored_because"))
    facts |= {"n": n, "answers_kept": 0, "rewards_kept": 0, "parameters": {"max_tokens": 64}}
    return EvalReport.of(rows, len(rows), **facts)


def test_report_begins_with_how_many_are_right_and_how_many_were_cut():
    by_accuracy = [row(0, 1.0, acc=1.0), row(1, -1.0, acc=0.0), row(2, -1.0, acc=0.0)]
    right = [row(i, float(i < 7)) for i in range(20)]
    mean, apart = "a mean reward of", "95 % interval 0.3500 to 0.9500"
    alike = "no interval: the questions do not differ"
    for rows, n, said in (
        (right, 1, "7 of 20 right (35 %, 95 % interval 18 to 57)"),
        (by_accuracy, 1, "1 of 3 right (33 %, 95 % interval 6 to 79)"),
        ([row(0, None)], 1, "none of 1 answers has a reward"),
        ([row(0, 0.35), row(1, 0.95)], 1, f"{mean} 0.6500 of 2 answers ({apart})"),
        (4 * [row(0, 1.0)], 4, f"4 of 4 answers to 1 questions right (100 %, {alike})"),
    ):
        rows = [{**rows[0], "finish_reason": "length"}, *rows[1:]]
        report = reported(rows, n)
        assert f"{report}".startswith(f"{said}, 1 cut by max_tokens (64)\n")
        assert repr(report) == f"<EvalReport: {said}, 1 cut by max_tokens (64)>"
        rows[0]["limit"] = "max_assistant_turns"
        assert report.table().startswith(f"{said}, 1 cut by a limit\n")


def test_interval_of_several_answers_to_each_question_is_as_wide_as_that_of_the_questions():
    """Answers to one question are alike: forty to ten questions tell hardly more than ten."""
    rows = [row(i, float(i < 4)) for i in range(10) for _ in range(4)]
    assert "(40 %, 95 % interval 10 to 70 by question)" in reported(rows, 4).result()
