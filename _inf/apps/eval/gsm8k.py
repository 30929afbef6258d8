"""GSM8K (Cobbe et al., https://arxiv.org/abs/2110.14168): school problems, each with one number.

    Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May.
    How many clips did Natalia sell altogether in April and May?

and an answer whose last line is `#### 72`. Rows of verl's form, and a reward function with the
verdicts of verl's two rules (docs/evaluation.md). `inf lm-eval` runs lm-evaluation-harness's
version.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from _inf.apps.eval.dataset import file_rows, hub_rows, verl_row
from _inf.apps.eval.reward_process import RewardFunction
from _inf.errors import ConfigError
from _inf.runtime.extras import require_verl

HUB, HUB_FILE = "openai/gsm8k", "main/{}-00000-of-00001.parquet"
# From verl's `examples/data_preprocess/gsm8k.py`.
SUFFIX = 'Let\'s think step by step and output the final answer after "####".'
FINAL = r"#### (\-?[0-9\.\,]+)"
RULES = {"verl_strict": "strict", "verl_flexible": "flexible"}
GRADER_NAME, CALCULATOR_NAME = "calc_gsm8k_reward", "calculator"
ANSWER = {"type": "string", "description": "The final number, without units"}
GRADER = {
    "type": "function",
    "function": {
        "name": GRADER_NAME,
        "description": "Check a final answer. Submit the number alone.",
        "parameters": {"type": "object", "properties": {"answer": ANSWER}, "required": ["answer"]},
    },
}


@dataclasses.dataclass(frozen=True)
class Problem:
    question: str
    answer: str

    @property
    def truth(self) -> str:
        """The number after `####`, extracted as in verl's preprocessing; "" if there is none."""
        match = re.search(FINAL, self.answer)
        return match[1].replace(",", "") if match and re.search("[0-9]", match[1]) else ""

    @property
    def asked(self) -> dict[str, str]:
        return {"role": "user", "content": f"{self.question} {SUFFIX}"}


def load_problems(path: Path | None, split: Literal["train", "test"]) -> list[Problem]:
    """Return the problems of a file of JSON lines, or of the Hub's `openai/gsm8k`."""
    problems = []
    rows = hub_rows(HUB, HUB_FILE.format(split)) if path is None else file_rows(path)
    for number, row in enumerate(rows, 1):
        match row:
            case {"question": str(question), "answer": str(answer)} if (
                problem := Problem(question, answer)
            ).truth:
                problems.append(problem)
            case _:
                raise ConfigError(
                    f"{path or HUB}, problem {number}: it must be "
                    '{"question": "...", "answer": "... #### 72"}.'
                )
    return problems


def solved(problems: Sequence[Problem], count: int, path: Path | None) -> list[Problem]:
    """Return the first `count` problems of a file or the Hub's train split, none of them scored."""
    if not count:
        return []
    shots = load_problems(path, "train")[:count]
    if len(shots) < count:
        raise ConfigError.of("shots", f"{count} are needed, but {path} has only {len(shots)}.")
    if both := {shot.question for shot in shots} & {problem.question for problem in problems}:
        raise ConfigError(
            f"shots: {len(both)} of the examples are among the problems to be scored, so that the "
            "model would be shown their answers; take them from another file (--shots-from)."
        )
    return shots


def rows(
    problems: Sequence[Problem], shots: Sequence[Problem], *, tool: bool
) -> list[dict[str, Any]]:
    """Return rows of verl's form; `shots` are turns before each question. tool: for `tools`."""
    before: list[dict[str, str]] = []
    for shot in shots:
        before += [shot.asked, {"role": "assistant", "content": shot.answer}]
    rows = []
    for index, problem in enumerate(problems):
        extra = {"index": index, **dataclasses.asdict(problem)}
        if tool:
            create = {"create_kwargs": {"ground_truth": problem.truth}}
            extra["tools_kwargs"] = {GRADER_NAME: create, CALCULATOR_NAME: {}}
        rows.append(verl_row(HUB, [*before, problem.asked], problem.truth, extra))
    return rows


def tools() -> list[Any]:
    """Return verl's Gsm8kTool, which tells the model its reward, and a calculator."""
    require_verl("--tool")
    from verl.tools.gsm8k_tool import Gsm8kTool
    from verl.tools.schemas import OpenAIFunctionToolSchema

    from _inf.tools.calculator import SCHEMA, Calculator

    with contextlib.redirect_stdout(io.StringIO()):  # verl's BaseTool prints its schema
        return [
            cls({}, OpenAIFunctionToolSchema.model_validate(schema))
            for cls, schema in ((Gsm8kTool, GRADER), (Calculator, SCHEMA))
        ]


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
