"""Known benchmarks as rows of verl's form: what `inf eval math500`, `aime24` and `aime25` ask, with
the prompt whose answers verl's reward function for the data source reads."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from _inf.apps.eval.dataset import file_rows, hub_rows, verl_row
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
    """A benchmark with the columns `problem` and `answer`. file: its file in the Hub's repository.
    data_source: chooses verl's reward function. integer: answers are whole numbers, and zeros
    before them are left out, as models write them."""

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


def preset_rows(name: str, file: Path | None) -> list[dict[str, Any]]:
    """Return the rows of a file, or of the Hub's data set, in verl's form."""
    preset = PRESETS[name]
    rows = hub_rows(preset.hub, preset.file) if file is None else file_rows(file)
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
    asked = {"role": "user", "content": preset.prompt.format(problem)}
    return verl_row(preset.data_source, [asked], truth, {"index": index, **others})
