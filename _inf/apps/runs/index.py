"""Reads all files of a run once, and keeps of each row where it stands and a few figures.

A run of 200 steps with 1,024 rows each is some 400 MB of text, which nobody needs at once.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from _inf.apps.rollouts.sources import row_of_file
from _inf.apps.rollouts.trainer_rows import finite, is_of_verl
from _inf.errors import ConfigError

if TYPE_CHECKING:
    import pandas

# Of a row: its step, the number of its prompt, its score, the length of its answer in characters
# and in tokens, and whether a limit ended it; None is what the row does not say.
COLUMNS = ("step", "prompt", "score", "characters", "tokens", "cut")


class Place(NamedTuple):
    """Where a row stands. line: its number, from 1; offset, size: of its bytes in the file."""

    file: Path
    line: int
    offset: int
    size: int


@dataclass
class Index:
    """The rows of a run, in the order of their steps.

    places: of each row. table: `COLUMNS` of each row, and `length`: tokens if all rows have them,
        else characters. prompts: their texts. notes: sentences on what was left out.
    """

    places: list[Place]
    table: pandas.DataFrame
    prompts: list[str]
    notes: list[str]

    @property
    def unit(self) -> str:
        """The unit of `length`."""
        return "characters" if self.table["tokens"].isna().any() else "tokens"


def read_index(paths: Sequence[Path], count: Callable[[str], int] | None) -> Index:
    """Read the files. count: the number of a text's tokens; None: text has no tokens."""
    import pandas

    places: list[Place] = []
    notes: list[str] = []
    figures: list[tuple[object, ...]] = []
    prompts: dict[str, int] = {}
    no_numbers: collections.Counter[str] = collections.Counter()
    for path in paths:
        for place, row in _rows(path, notes):
            prompt, text, score, tokens = read_row(row, place)
            if score is not None and finite(score) is None:
                no_numbers[type(score).__name__] += 1
            if tokens is None and count is not None:
                tokens = count(text)
            finish = row.get("finish_reason")
            cut = None if finish is None else finish == "length"
            same_prompt = prompts.setdefault(prompt, len(prompts))
            step = _step(row, path, places)
            figures.append((step, same_prompt, finite(score), len(text), tokens, cut))
            places.append(place)
    if not places:
        raise ConfigError(f"{paths[0].parent}: its files have no rows.")
    for kind, rows in no_numbers.items():
        notes.append(f"{rows} rows have a score of type {kind}, which counts as none.")
    table = pandas.DataFrame(figures, columns=COLUMNS)
    table = table.astype({"score": float, "tokens": float, "cut": "boolean"})
    index = Index(places, table, list(prompts), notes)
    table["length"] = table[index.unit]
    order = table["step"].argsort(kind="stable")
    index.places = [places[at] for at in order]
    index.table = table.iloc[order].reset_index(drop=True)
    return index


def parsed(line: bytes, where: str) -> Mapping[str, object]:
    """Return a line's object."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as failure:
        raise ConfigError(f"{where}: it is not JSON: {failure}; remove the line.") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: a row is a JSON object, not {line[:40]!r}.")
    return row


def _rows(path: Path, notes: list[str]) -> Iterator[tuple[Place, Mapping[str, object]]]:
    """Yield the rows; a last one that is not whole is left out, with a note."""
    offset = 0
    with path.open("rb") as file:
        for line, text in enumerate(file, 1):
            if text.strip():
                where = f"{path}, line {line}"
                if text.endswith(b"\n") or _is_json(text):
                    yield Place(path, line, offset, len(text)), parsed(text, where)
                else:
                    notes.append(f"{where}: left out; the file ends inside it.")
            offset += len(text)


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def read_row(row: Mapping[str, object], place: Place) -> tuple[str, str, object, int | None]:
    """Return the prompt, the answer, the score and the answer's number of tokens."""
    if is_of_verl(row):
        return str(row["input"]), str(row["output"]), row["score"], None
    rollout = row_of_file(row, place.line, f"{place.file}, line {place.line}")
    texts = rollout.prompt_texts and "".join(rollout.prompt_texts)
    prompt = texts or rollout.extra.get("prompt") or rollout.messages or rollout.prompt_token_ids
    mask = rollout.response_mask
    tokens = None if mask is None else sum(mask)
    text = prompt if isinstance(prompt, str) else json.dumps(prompt or "")
    return text, rollout.completion or "", rollout.reward, tokens


def _step(row: Mapping[str, object], path: Path, before: Sequence[Place]) -> int:
    """Return the row's step; of a row without one the last number in its file's name, else the
    number of files before it."""
    if (step := finite(row.get("step"))) is not None:
        return int(step)
    in_name = re.findall(r"\d+", path.stem)
    return int(in_name[-1]) if in_name else len({place.file for place in before} - {path})
