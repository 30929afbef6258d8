"""GSM8K (Cobbe et al., https://arxiv.org/abs/2110.14168): school problems, each with one number.

    Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May.
    How many clips did Natalia sell altogether in April and May?

and an answer whose last line is `#### 72`. In: a file in that form, or the Hub's. Out: prompts and,
for an answer, the verdict of four rules, which disagree (docs/evaluation.md).
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from _inf.apps.batch.run_files import Job
from _inf.errors import ConfigError, InferenceError
from _inf.models.resolve import HUB_TIMEOUT, hub_reason
from _inf.response.output import GenerationOutput
from _inf.runtime import quiet

HUB = "openai/gsm8k"
# verl's, of `examples/data_preprocess/gsm8k.py`.
SUFFIX = 'Let\'s think step by step and output the final answer after "####".'
FINAL = r"#### (\-?[0-9\.\,]+)"
# lm-evaluation-harness, `tasks/gsm8k/gsm8k.yaml`, version 3: a pattern, which match, and what both
# sides lose before they are compared.
LM_EVAL = {
    "lm_eval_strict_match": (FINAL, 0),
    "lm_eval_flexible_extract": (r"(-?[$0-9.,]{2,})|(-?[0-9]+)", -1),
}
IGNORED = (",", r"\$", r"(?s).*#### ", r"\.$")
VERL = {"verl_strict": "strict", "verl_flexible": "flexible"}
RULES = (*VERL, *LM_EVAL)
GRADER = {
    "type": "function",
    "function": {
        "name": "calc_gsm8k_reward",
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
        """The number after `####`, as verl's preprocessing takes it."""
        found = re.search(FINAL, self.answer)
        assert found is not None  # `load` has seen to it
        return found[1].replace(",", "")

    @property
    def asked(self) -> dict[str, str]:
        return {"role": "user", "content": f"{self.question} {SUFFIX}"}


def load(path: Path | None, split: Literal["train", "test"]) -> list[Problem]:
    """The problems of a file of JSON lines, or those of the Hub's `openai/gsm8k`."""
    rows = _hub(split) if path is None else _file(path)
    problems = []
    for where, row in rows:
        match row:
            case {"question": str(question), "answer": str(answer)} if re.search(FINAL, answer):
                problems.append(Problem(question, answer))
            case _:
                raise ConfigError(
                    f"{where}: not a problem; one is "
                    '{"question": "...", "answer": "... #### 72"}.'
                )
    return problems


def _file(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError(f"{path} cannot be read: {failure}") from None
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{path}, line {number}"
        if line.strip():
            try:
                yield where, json.loads(line)
            except ValueError as failure:
                raise ConfigError(f"{where}: not JSON: {failure}") from None


def _hub(split: str) -> Iterator[tuple[str, Any]]:
    with quiet.third_party():
        rows = _downloaded(split)
    for index, row in enumerate(rows):
        yield f"{HUB} {split}[{index}]", row


def _downloaded(split: str) -> Any:
    from datasets import load_dataset
    from huggingface_hub import HfApi

    reason = ""
    try:
        HfApi().dataset_info(HUB, timeout=HUB_TIMEOUT)
    except Exception as failure:
        reason = f"{hub_reason(failure)}, and "
    try:
        with _without_the_hub() if reason else contextlib.nullcontext():
            return load_dataset(HUB, "main", split=split)
    except Exception as failure:
        raise InferenceError(
            f"{HUB}: {reason or 'the download failed: '}"
            f"{'it was not downloaded before' if reason else hub_reason(failure)}. "
            "Name a file of its problems instead: --data, and --shots-from for examples."
        ) from failure


@contextlib.contextmanager
def _without_the_hub() -> Iterator[None]:
    """Only what was downloaded before; datasets would ask the Hub five times more, for 20 s."""
    from datasets import config
    from huggingface_hub import constants

    before = config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def examples(problems: Sequence[Problem], shots: int, path: Path | None) -> list[Problem]:
    """The first `shots` of a file, or of the Hub's train split; refused where one is scored too."""
    if not shots:
        return []
    found = load(path, "train")[:shots]
    if len(found) < shots:
        raise ConfigError(f"shots: {shots} were asked for, and {path} holds {len(found)}.")
    if both := {each.question for each in found} & {each.question for each in problems}:
        raise ConfigError(
            f"shots: {len(both)} of the examples are among the problems to be scored, so that the "
            "model would be shown their answers; take them from another file (--shots-from)."
        )
    return found


def jobs(problems: Sequence[Problem], shots: Sequence[Problem], *, tool: bool) -> Iterator[Job]:
    shown = [
        message
        for shot in shots
        for message in (shot.asked, {"role": "assistant", "content": shot.answer})
    ]
    for line, problem in enumerate(problems, 1):
        yield _job(line, problem, [*shown, problem.asked], tool)


def _job(line: int, problem: Problem, messages: list[dict[str, str]], tool: bool) -> Job:
    def row(output: GenerationOutput) -> dict[str, Any]:
        [answer] = output
        about = answer.metadata
        names = ("finish_reason", "completion_tokens", *(("tool_calls",) if tool else ()))
        return {
            "problem": line - 1,
            "question": problem.question,
            "truth": problem.truth,
            "completion": answer.completion,
            **{name: about[name] for name in names},
            "scores": scores(answer.completion, problem),
        }

    graded = {GRADER["function"]["name"]: {"create_kwargs": {"ground_truth": problem.truth}}}  # type: ignore[index]
    return Job(line, messages, row, {"tools_kwargs": graded} if tool else {})


def tools() -> list[Any]:
    """verl's Gsm8kTool, which tells the model its reward, and a calculator."""
    from verl.tools.gsm8k_tool import Gsm8kTool
    from verl.tools.schemas import OpenAIFunctionToolSchema

    from _inf.tools.calculator import SCHEMA, Calculator

    with contextlib.redirect_stdout(io.StringIO()):  # verl's BaseTool prints its schema
        return [
            cls({}, OpenAIFunctionToolSchema.model_validate(schema))
            for cls, schema in ((Gsm8kTool, GRADER), (Calculator, SCHEMA))
        ]


def scores(completion: str, problem: Problem) -> dict[str, bool]:
    """Each rule's verdict."""
    from verl.utils.reward_score.gsm8k import compute_score

    verl = {
        name: bool(compute_score(completion, problem.truth, method=method))
        for name, method in VERL.items()
    }
    return verl | {name: _lm_eval(completion, problem.answer, *LM_EVAL[name]) for name in LM_EVAL}


def _lm_eval(completion: str, gold: str, pattern: str, place: int) -> bool:
    found = re.findall(pattern, completion)
    answer = "".join(found[place]).strip() if found else "[invalid]"
    return _compared(answer) == _compared(gold)


def _compared(text: str) -> str:
    for pattern in IGNORED:
        text = re.sub(pattern, "", text)
    return text.lower()
