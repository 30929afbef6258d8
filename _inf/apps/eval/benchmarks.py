"""Finds the data that `inf eval` names: a benchmark with its reward, or a file. math500, aime24 and
aime25 are described here, with prompts whose answers verl's reward functions read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from _inf.apps.eval import gsm8k, reasoning_tasks
from _inf.apps.eval.dataset import EvalData, benchmark_rows, verl_row
from _inf.errors import ConfigError, shown

# As verl's `examples/data_preprocess/math_dataset.py` asks; its `math_reward` reads \boxed{}.
BOXED = "{} Let's think step by step and output the final answer within \\boxed{{}}."
# As the AIME data of verl's DAPO recipe asks; its `math_dapo` reads the text after "Answer:".
ANSWER = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem."
    '\n\n{}\n\nRemember to put your answer on its own line after "Answer:".'
)


@dataclasses.dataclass(frozen=True)
class Preset:
    """A benchmark with the columns `problem` and `answer`.

    file: its file in the Hub's repository. data_source: chooses verl's reward function. integer:
    answers are whole numbers; zeros before them are left out, as models write them.
    """

    hub: str
    file: str
    data_source: str
    prompt: str
    integer: bool = False


PRESETS = {
    "math500": Preset("HuggingFaceH4/MATH-500", "test.jsonl", "HuggingFaceH4/MATH-500", BOXED),
    "aime24": Preset(
        "HuggingFaceH4/aime_2024", "data/train-00000-of-00001.parquet", "aime_2024", ANSWER, True
    ),
    "aime25": Preset("math-ai/aime25", "test.jsonl", "aime_2025", ANSWER, True),
}


GSM8K = "gsm8k"
BENCHMARKS = (GSM8K, *PRESETS)
NAMED = ", ".join((*BENCHMARKS, reasoning_tasks.FORM))


@dataclasses.dataclass(frozen=True)
class BenchmarkOptions:
    """The options of `inf eval` that not every benchmark has."""

    data: Annotated[
        Path | None, typer.Option(help="A benchmark's problems, as on the Hub; else the Hub's.")
    ] = None
    size: Annotated[int, typer.Option(min=1, help="rg: questions of each task.")] = (
        reasoning_tasks.SIZE
    )
    data_seed: Annotated[
        int,
        typer.Option(min=0, max=reasoning_tasks.MAX_SEED, help="rg: the seed of the questions."),
    ] = reasoning_tasks.SEED

    def check(self, source: str) -> None:
        """Refuse an option of another benchmark than `source`."""
        is_task = source.startswith(reasoning_tasks.PREFIX)
        for owner, fits, names in (
            (", ".join(BENCHMARKS), source in BENCHMARKS, ("data",)),
            (reasoning_tasks.FORM, is_task, ("size", "data_seed")),
        ):
            for name in () if fits else names:
                if getattr(self, name) != getattr(BenchmarkOptions, name):  # its default
                    option = name.replace("_", "-")
                    raise ConfigError(f"--{option}: it is an option of {owner}, not of {source}.")


def data_of(source: str, options: BenchmarkOptions, reward: str | None) -> EvalData:
    """Return the data of `inf eval SOURCE`, with this reward function or else the source's own."""
    options.check(source)
    if source.startswith(reasoning_tasks.PREFIX):
        size, seed = options.size, options.data_seed
        rows, own = reasoning_tasks.load_tasks(source, size, seed)
        stem = "rg" if "," in source else source.replace(":", "-")
        return EvalData(rows, f"{source}, size {size}, seed {seed}", Path(stem), reward or own)
    if source == GSM8K:
        scored = reward or gsm8k.reward()
        return EvalData(
            gsm8k.rows(options.data), str(options.data or gsm8k.HUB), Path(source), scored
        )
    if source in PRESETS:
        name = str(options.data or PRESETS[source].hub)
        return EvalData(preset_rows(source, options.data), name, Path(source), reward)
    return EvalData(source, source, Path("eval"), reward)


def preset_rows(name: str, file: Path | None) -> list[dict[str, Any]]:
    """Return the rows of a file, or of the Hub's data set, in verl's form."""
    preset = PRESETS[name]
    rows = benchmark_rows(file, preset.hub, preset.file)
    where = f"{file or preset.hub}, row"
    return [_row(preset, row, f"{where} {i}", i) for i, row in enumerate(rows)]


def _row(preset: Preset, row: Any, where: str, index: int) -> dict[str, Any]:
    match row:
        case {"problem": str(problem), "answer": str() | int() as answer, **others}:
            truth = str(answer).strip()
        case _:
            raise ConfigError(
                f'{where}: it must have "problem" and "answer", as {preset.hub}; it is {shown(row)}'
            )
    if preset.integer:
        if not truth.isdecimal():
            raise ConfigError(f"{where}: answer must be a whole number, not {shown(answer)}.")
        truth = str(int(truth))
    extra = {"index": index, **others}
    return verl_row(preset.data_source, preset.prompt.format(problem), truth, extra)
