"""GSM8K (Cobbe et al., https://arxiv.org/abs/2110.14168): school problems, each with one number.

    Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May.
    How many clips did Natalia sell altogether in April and May?

and an answer whose last line is `#### 72`. In: a file in that form, or the Hub's. Out: prompts, and
the verdict of four rules on an answer, which sometimes disagree (docs/evaluation.md).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from _inf.apps.batch.lines import Job
from _inf.errors import ConfigError, InferenceError
from _inf.models.resolve import HUB_TIMEOUT, hub_reason
from _inf.response.output import GenerationOutput
from _inf.runtime import quiet

HUB = "openai/gsm8k"
# From verl's `examples/data_preprocess/gsm8k.py`.
SUFFIX = 'Let\'s think step by step and output the final answer after "####".'
FINAL = r"#### (\-?[0-9\.\,]+)"
# lm-evaluation-harness, `tasks/gsm8k/gsm8k.yaml`, version 3: a pattern and the index of the match
# to take. `IGNORED` is removed from both sides before the comparison.
LM_EVAL = {
    "lm_eval_strict_match": (FINAL, 0),
    "lm_eval_flexible_extract": (r"(-?[$0-9.,]{2,})|(-?[0-9]+)", -1),
}
IGNORED = (",", r"\$", r"(?s).*#### ", r"\.$")
VERL = {"verl_strict": "strict", "verl_flexible": "flexible"}
RULES = (*VERL, *LM_EVAL)
GRADER_NAME = "calc_gsm8k_reward"
GRADER = {
    "type": "function",
    "function": {
        "name": GRADER_NAME,
        "description": "Check a final answer. Submit the number alone.",
        "parameters": {
            "type": "object",
            "properties": {
                "answer": {"type": "string", "description": "The final number, without units"}
            },
            "required": ["answer"],
        },
    },
}


@dataclasses.dataclass(frozen=True)
class Problem:
    question: str
    answer: str

    @property
    def truth(self) -> str:
        """The number after `####`, extracted as in verl's preprocessing."""
        match = re.search(FINAL, self.answer)
        assert match is not None  # checked by `load`
        return match[1].replace(",", "")

    @property
    def asked(self) -> dict[str, str]:
        return {"role": "user", "content": f"{self.question} {SUFFIX}"}


def load(path: Path | None, split: Literal["train", "test"]) -> list[Problem]:
    """Return the problems of a file of JSON lines, or of the Hub's `openai/gsm8k`."""
    problems = []
    for number, row in enumerate(_hub(split) if path is None else _file(path), 1):
        match row:
            case {"question": str(question), "answer": str(answer)} if re.search(FINAL, answer):
                problems.append(Problem(question, answer))
            case _:
                raise ConfigError(
                    f"{path or HUB}, problem {number}: it must be "
                    '{"question": "...", "answer": "... #### 72"}.'
                )
    return problems


def _file(path: Path) -> list[Any]:
    try:
        texts = path.read_text(encoding="utf-8").split("\n")
        return [json.loads(text) for text in texts if text.strip()]
    except (OSError, ValueError) as failure:
        raise ConfigError(f"{path} cannot be read: {failure}") from None


def _hub(split: str) -> list[Any]:
    """Download a split; use an earlier download if the Hub cannot be reached."""
    import pandas
    from huggingface_hub import HfApi, hf_hub_download

    reason = ""
    try:
        HfApi().dataset_info(HUB, timeout=HUB_TIMEOUT)  # a download would try for 20 s
    except Exception as failure:
        reason = f"{hub_reason(failure)}, and it was not downloaded before"
    name = f"main/{split}-00000-of-00001.parquet"
    try:
        with quiet.third_party():
            file = hf_hub_download(HUB, name, repo_type="dataset", local_files_only=bool(reason))
    except Exception as failure:
        raise InferenceError(
            f"{HUB}: {reason or hub_reason(failure)}. Name a file of its problems instead: --data, "
            "and --shots-from for examples."
        ) from failure
    rows: list[Any] = pandas.read_parquet(file).to_dict("records")
    return rows


def examples(problems: Sequence[Problem], shots: int, path: Path | None) -> list[Problem]:
    """Return the first `shots` problems of a file or the Hub's train split, none of them scored."""
    if not shots:
        return []
    solved = load(path, "train")[:shots]
    if len(solved) < shots:
        raise ConfigError(f"shots: {shots} are needed, but {path} has only {len(solved)}.")
    if both := {shot.question for shot in solved} & {problem.question for problem in problems}:
        raise ConfigError(
            f"shots: {len(both)} of the examples are among the problems to be scored, so that the "
            "model would be shown their answers; take them from another file (--shots-from)."
        )
    return solved


def jobs(problems: Sequence[Problem], shots: Sequence[Problem], *, tool: bool) -> list[Job]:
    shown = [
        message
        for shot in shots
        for message in (shot.asked, {"role": "assistant", "content": shot.answer})
    ]
    jobs = []
    for line, problem in enumerate(problems, 1):
        graded = {GRADER_NAME: {"create_kwargs": {"ground_truth": problem.truth}}}
        params = {"tools_kwargs": graded} if tool else {}
        row = functools.partial(_row, problem)
        jobs.append(Job(line, [*shown, problem.asked], row, params))
    return jobs


def _row(problem: Problem, output: GenerationOutput) -> dict[str, Any]:
    [answer] = output
    names = ("finish_reason", "completion_tokens", "tool_calls")
    return {
        "question": problem.question,
        "truth": problem.truth,
        "completion": answer.completion,
        **{name: answer.metadata[name] for name in names if name in answer.metadata},
        "scores": scores(answer.completion, problem),
    }


def tools() -> list[Any]:
    """Return verl's Gsm8kTool, which tells the model its reward, and a calculator."""
    from verl.tools.gsm8k_tool import Gsm8kTool
    from verl.tools.schemas import OpenAIFunctionToolSchema

    from _inf.tools.calculator import SCHEMA, Calculator

    with contextlib.redirect_stdout(io.StringIO()):  # verl's BaseTool prints its schema
        return [
            cls({}, OpenAIFunctionToolSchema.model_validate(schema))
            for cls, schema in ((Gsm8kTool, GRADER), (Calculator, SCHEMA))
        ]


def scores(completion: str, problem: Problem) -> dict[str, bool]:
    """Return each rule's verdict."""
    from verl.utils.reward_score.gsm8k import compute_score

    verl = {
        name: bool(compute_score(completion, problem.truth, method=method))
        for name, method in VERL.items()
    }
    return verl | {name: _lm_eval(completion, problem.answer, *LM_EVAL[name]) for name in LM_EVAL}


def _lm_eval(completion: str, gold: str, pattern: str, index: int) -> bool:
    matches = re.findall(pattern, completion)
    answer = "".join(matches[index]).strip() if matches else "[invalid]"
    return _normalized(answer) == _normalized(gold)


def _normalized(text: str) -> str:
    for pattern in IGNORED:
        text = re.sub(pattern, "", text)
    return text.lower()
