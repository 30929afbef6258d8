"""GSM8K (Cobbe et al., https://arxiv.org/abs/2110.14168): school problems, each with one number.

    Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May.
    How many clips did Natalia sell altogether in April and May?

and an answer whose last line is `#### 72`. Rows of verl's form, and a reward function with the
verdicts of verl's two rules (docs/evaluation.md).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from _inf.apps.eval.dataset import benchmark_rows, verl_row
from _inf.apps.eval.reward_process import RewardFunction
from _inf.errors import ConfigError
from _inf.runtime.extras import require_verl

HUB, HUB_FILE = "openai/gsm8k", "main/test-00000-of-00001.parquet"
# From verl's `examples/data_preprocess/gsm8k.py`.
SUFFIX = 'Let\'s think step by step and output the final answer after "####".'
FINAL = r"#### (\-?[0-9\.\,]+)"
RULES = {"verl_strict": "strict", "verl_flexible": "flexible"}


def rows(path: Path | None) -> list[dict[str, Any]]:
    """Return rows of verl's form, of a file or of the Hub's test problems."""
    rows = []
    for index, row in enumerate(benchmark_rows(path, HUB, HUB_FILE)):
        match row:
            case {"question": str(question), "answer": str(answer)} if truth := _truth(answer):
                extra = {"index": index, "question": question, "answer": answer}
            case _:
                raise ConfigError(
                    f"{path or HUB}, problem {index + 1}: it must be "
                    '{"question": "...", "answer": "... #### 72"}.'
                )
        rows.append(verl_row(HUB, f"{question} {SUFFIX}", truth, extra))
    return rows


def _truth(answer: str) -> str:
    """The number after `####`, extracted as in verl's preprocessing; "" if there is none."""
    match = re.search(FINAL, answer)
    return match[1].replace(",", "") if match and re.search("[0-9]", match[1]) else ""


def reward() -> RewardFunction:
    """Return the reward function of both rules, which are verl's."""
    require_verl("gsm8k")
    return compute_score


def compute_score(solution_str: str, ground_truth: str, **rest: Any) -> dict[str, float]:
    """Return both rules' verdicts; `score` is the strict one's."""
    from verl.utils.reward_score.gsm8k import compute_score

    verdicts = {
        name: float(compute_score(solution_str, ground_truth, method=method))
        for name, method in RULES.items()
    }
    return {"score": verdicts["verl_strict"], **verdicts}
