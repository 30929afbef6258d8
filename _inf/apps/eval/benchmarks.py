"""Finds the data that `inf eval` names: a benchmark with its reward, or a file. The prompts of
gsm8k, math500, aime24 and aime25 ask for answers in the form that verl's reward functions read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from _inf.apps.eval import reasoning_tasks
from _inf.apps.eval.dataset import EvalData, benchmark_rows, verl_row
from _inf.errors import ConfigError, shown
from _inf.runtime.extras import require_verl

# As verl's `examples/data_preprocess/gsm8k.py` and `math_dataset.py` ask.
HASHES = '{} Let\'s think step by step and output the final answer after "####".'
BOXED = "{} Let's think step by step and output the final answer within \\boxed{{}}."
# As the AIME data of verl's DAPO recipe asks; its `math_dapo` reads the text after "Answer:".
ANSWER = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem."
    '\n\n{}\n\nRemember to put your answer on its own line after "Answer:".'
)
RULES = {"verl_strict": "strict", "verl_flexible": "flexible"}  # verl's of gsm8k


def after_hashes(answer: str) -> str:
    """The number after `####`, extracted as in verl's preprocessing."""
    match = re.search(r"#### (\-?[0-9\.\,]*[0-9][0-9\.\,]*)", answer)
    return match[1].replace(",", "") if match else ""


def whole(answer: str) -> str:
    """A whole number without zeros before it, as models write it."""
    return str(int(answer)) if answer.isdecimal() else ""


@dataclasses.dataclass(frozen=True)
class Preset:
    """A benchmark with the columns `question` and `answer`.

    file: its file in the Hub's repository. data_source: chooses verl's reward function. truth: of
    an answer, or ""; form: what an answer must be.
    """

    hub: str
    file: str
    data_source: str
    prompt: str
    question: str = "problem"
    truth: Callable[[str], str] = str.strip
    form: str = "a text or a number"


GSM8K, NUMBER = "gsm8k", "a whole number"
PRESETS = {
    GSM8K: Preset(
        "openai/gsm8k",
        "main/test-00000-of-00001.parquet",
        "openai/gsm8k",
        HASHES,
        "question",
        after_hashes,
        "a text with #### and a number",
    ),
    "math500": Preset("HuggingFaceH4/MATH-500", "test.jsonl", "HuggingFaceH4/MATH-500", BOXED),
    "aime24": Preset(
        "HuggingFaceH4/aime_2024",
        "data/train-00000-of-00001.parquet",
        "aime_2024",
        ANSWER,
        truth=whole,
        form=NUMBER,
    ),
    "aime25": Preset("math-ai/aime25", "test.jsonl", "aime_2025", ANSWER, truth=whole, form=NUMBER),
}
NAMED = ", ".join((*PRESETS, reasoning_tasks.FORM))


@dataclasses.dataclass(frozen=True)
class BenchmarkOptions:
    """The options of `inf eval` that not every benchmark has."""

    data: Annotated[
        Path | None,
        typer.Option(
            help="A file of the benchmark's problems, in the Hub's form; by default, the Hub's."
        ),
    ] = None
    size: Annotated[int, typer.Option(min=1, help="rg: how many questions of each task.")] = (
        reasoning_tasks.SIZE
    )
    data_seed: Annotated[
        int,
        typer.Option(min=0, max=reasoning_tasks.MAX_SEED, help="rg: the seed of the questions."),
    ] = reasoning_tasks.SEED

    def check(self, source: str) -> None:
        """Refuse an option of another benchmark than `source`."""
        of_presets = ", ".join(PRESETS), source in PRESETS
        of_tasks = reasoning_tasks.FORM, source.startswith(reasoning_tasks.PREFIX)
        for (owner, fits), option, is_given in (
            (of_presets, "data", self.data is not None),
            (of_tasks, "size", self.size != reasoning_tasks.SIZE),
            (of_tasks, "data-seed", self.data_seed != reasoning_tasks.SEED),
        ):
            if is_given and not fits:
                raise ConfigError(f"--{option}: it is an option of {owner}, not of {source}.")


def data_of(source: str, options: BenchmarkOptions, reward: str | None) -> EvalData:
    """Return the data of `inf eval SOURCE`, with this reward function or else the source's own."""
    options.check(source)
    if source.startswith(reasoning_tasks.PREFIX):
        size, seed = options.size, options.data_seed
        rows, own = reasoning_tasks.load_tasks(source, size, seed)
        stem = "rg" if "," in source else source.replace(":", "-")
        return EvalData(rows, f"{source}, size {size}, seed {seed}", Path(stem), reward or own)
    if source not in PRESETS:
        return EvalData(source, source, Path("eval"), reward)
    name = str(options.data or PRESETS[source].hub)
    if source == GSM8K and reward is None:
        require_verl(GSM8K)
        return EvalData(preset_rows(source, options.data), name, Path(source), compute_score)
    return EvalData(preset_rows(source, options.data), name, Path(source), reward)


def preset_rows(name: str, file: Path | None) -> list[dict[str, object]]:
    """Return the rows of a file, or of the Hub's data set, in verl's form."""
    preset = PRESETS[name]
    rows = benchmark_rows(file, preset.hub, preset.file)
    where = f"{file or preset.hub}, row"
    return [_row(preset, row, f"{where} {i}", i) for i, row in enumerate(rows)]


def _row(preset: Preset, row: object, where: str, index: int) -> dict[str, object]:
    found = row if isinstance(row, dict) else {}
    question, answer = found.get(preset.question), found.get("answer")
    if not (isinstance(question, str) and isinstance(answer, str | int)):
        raise ConfigError(
            f'{where}: it must have "{preset.question}" and "answer", as {preset.hub}; it is '
            f"{shown(row)}"
        )
    if not (truth := preset.truth(str(answer))):
        raise ConfigError(f"{where}: answer must be {preset.form}, not {shown(answer)}.")
    extra = {"index": index, **found}
    return verl_row(preset.data_source, preset.prompt.format(question), truth, extra)


def compute_score(solution_str: str, ground_truth: str, **rest: object) -> dict[str, float]:
    """The reward of gsm8k: both of verl's rules; `score` is the strict one's."""
    from verl.utils.reward_score.gsm8k import compute_score

    verdicts = {
        name: float(compute_score(solution_str, ground_truth, method=method))
        for name, method in RULES.items()
    }
    return {"score": verdicts["verl_strict"], **verdicts}
