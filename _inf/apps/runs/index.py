"""Reads all files of a run once, and keeps of each row where it stands and a few figures.

A run of 200 steps with 1,024 rows each is some 400 MB of text, which nobody needs at once.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from _inf.apps.json_lines import json_line
from _inf.apps.rollouts.rollout import Rollout
from _inf.apps.rollouts.row_files import check_name, rollouts_of_line, whole_file, with_reward
from _inf.apps.rollouts.sources import with_texts
from _inf.apps.rollouts.trainers import reader_of
from _inf.apps.rollouts.trainers.reader import SCORE_IS, finite
from _inf.apps.rollouts.trainers.whole_files import WHOLE, BrokenFile
from _inf.errors import ConfigError
from _inf.types import Tokenizer

if TYPE_CHECKING:
    import pandas

# Of a row: its step, the number of its prompt, its score, the length of its answer in characters
# and in tokens, and whether a limit ended it; None is what the row does not say.
COLUMNS = ("step", "prompt", "score", "characters", "tokens", "cut")

STEP_FOLDER = re.compile(r"(?:global_)?step_(\d+)(?:_evals)?")  # prime-rl's and SkyRL's


class Place(NamedTuple):
    """Where a row stands.

    line: its number, from 1; 0 in a file that is read as a whole. offset, size: of the line's or
    the file's bytes. part: which of the rows there.
    """

    file: Path
    line: int
    offset: int
    size: int
    part: int = 0

    @property
    def name(self) -> str:
        return f"{self.file}, line {self.line}" if self.line else str(self.file)

    @property
    def number(self) -> int:
        """The line's number, or the row's in a file that is read as a whole, from 1."""
        return self.line or self.part + 1


@dataclass
class Index:
    """The rows of a run, in the order of their steps.

    places: of each row. table: `COLUMNS` of each row, and `length`: tokens if all rows have them,
        else characters. prompts: their texts. notes: sentences on what was left out. reward: the
        name of the figure that is the reward; None: each row's own. tokenizer: for the texts of
        ids.
    """

    places: list[Place]
    table: pandas.DataFrame
    prompts: list[str]
    notes: list[str]
    reward: str | None
    tokenizer: Tokenizer
    _last: tuple[Path, list[Rollout]] | None = field(default=None, repr=False)

    @property
    def unit(self) -> str:
        """The unit of `length`."""
        return "characters" if self.table["tokens"].isna().any() else "tokens"

    def read(self, places: Iterable[int]) -> Iterator[tuple[int, Rollout]]:
        """Yield rows with their numbers, those of a file one after another."""
        for number in sorted({*places}, key=lambda number: self.places[number]):
            yield number, self._row(self.places[number])

    def _row(self, place: Place) -> Rollout:
        changed = f"{place.name}: it changed since it was read"
        if place.line:
            with place.file.open("rb") as file:
                file.seek(place.offset)
                line = parsed(file.read(place.size), changed)
            rows = rollouts_of_line(line, place.line, place.name)
        elif (last := self._last) and last[0] == place.file:  # other threads read, too
            rows = last[1]
        else:
            if place.file.stat().st_size != place.size:
                raise ConfigError(f"{changed}.")
            rows = whole_file(place.file)
            self._last = place.file, rows
        return with_texts(with_reward(rows[place.part], self.reward), self.tokenizer)


def read_index(paths: Sequence[Path], tokenizer: Tokenizer, reward: str | None) -> Index:
    """Read the files. tokenizer: counts the tokens of text; None: text has no tokens."""
    import pandas

    places: list[Place] = []
    notes: list[str] = []
    figures: list[tuple[object, ...]] = []
    prompts: dict[str, int] = {}
    scores = _Scores(reward)
    trainers: dict[str, Path] = {}
    for path in paths:
        for place, row in _rows(path, notes, trainers):
            prompt, text, tokens = read_row(row)
            if tokens is None and tokenizer is not None:
                tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
            cut = None if row.finish_reason is None else row.finish_reason == "length"
            same_prompt = prompts.setdefault(prompt, len(prompts))
            step = _step(row, path, places)
            figures.append((step, same_prompt, scores.of(row), len(text), tokens, cut))
            places.append(place)
    if not places:
        raise ConfigError(" ".join([f"{paths[0].parent}: its files have no rows.", *notes]))
    table = pandas.DataFrame(figures, columns=COLUMNS)
    table = table.astype({"score": float, "tokens": float, "cut": "boolean"})
    index = Index(places, table, list(prompts), notes + scores.notes(), reward, tokenizer)
    table["length"] = table[index.unit]
    order = table["step"].argsort(kind="stable")
    index.places = [places[at] for at in order]
    index.table = table.iloc[order].reset_index(drop=True)
    return index


class _Scores:
    """Takes the rows' rewards, and notes what they are and what is none."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._no_numbers: collections.Counter[str] = collections.Counter()
        self._are: collections.Counter[str] = collections.Counter()
        self._rows = 0
        self._names: set[str] = set()

    def of(self, row: Rollout) -> float | None:
        reward = with_reward(row, self._name).reward
        self._rows += 1
        if self._name is not None:
            figures = {**row.extra, **(row.reward_scores or {})}
            self._names |= {name for name, each in figures.items() if finite(each) is not None}
        elif (meaning := row.extra.get(SCORE_IS)) is not None:
            self._are[meaning] += 1
        elif reward is None and row.extra.get("score") is not None:
            self._no_numbers[type(row.extra["score"]).__name__] += 1
        return reward

    def notes(self) -> list[str]:
        if self._name is not None and self._name not in self._names:
            raise ConfigError.of(
                "reward",
                f"no row has a number {self._name}; those that they have: {sorted(self._names)}.",
            )
        notes = [
            f"{rows} rows have a score of type {kind}, which counts as none."
            for kind, rows in self._no_numbers.items()
        ]
        for meaning, rows in self._are.items():
            of_some = "" if rows == self._rows else f" of {rows} rows"
            notes.append(f"The score{of_some} is {meaning}; --reward NAME takes one of them.")
        return notes


def parsed(line: bytes, where: str) -> Mapping[str, object]:
    """Return a line's object."""
    row = json_line(line, where)
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: a row is a JSON object, not {line[:40]!r}.")
    return row


def _rows(
    path: Path, notes: list[str], trainers: dict[str, Path]
) -> Iterator[tuple[Place, Rollout]]:
    """Yield the rows; what is not whole, the last line or all of a table, is left out with a
    note. trainers: whose files were read, and the first one of each."""
    check_name(path)
    if path.suffix in WHOLE:
        try:
            rows = whole_file(path)
        except BrokenFile as failure:
            notes.append(f"{failure} It was left out.")
        else:
            for part, row in enumerate(rows):
                yield Place(path, 0, 0, path.stat().st_size, part), row
        return
    for place, text in _lines(path, notes):
        line = parsed(text, place.name)
        if place.offset == 0 and (reader := reader_of(line)):
            _check_trainer(reader.trainer, path, trainers)
        rows = rollouts_of_line(line, place.line, place.name)
        for part, row in enumerate(rows):
            yield place._replace(part=part), row


def _check_trainer(trainer: str, path: Path, trainers: dict[str, Path]) -> None:
    for other, first in trainers.items():
        if other != trainer:
            raise ConfigError(
                f"{first} is of {other} and {path} of {trainer}: a run has one trainer; name the "
                "files of one."
            )
    trainers[trainer] = path


def _lines(path: Path, notes: list[str]) -> Iterator[tuple[Place, bytes]]:
    offset = 0
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                place = Place(path, number, offset, len(text))
                if text.endswith(b"\n") or _is_json(text):
                    yield place, text
                else:
                    notes.append(f"{place.name}: left out; the file ends inside it.")
            offset += len(text)


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def read_row(row: Rollout) -> tuple[str, str, int | None]:
    """Return the prompt, the answer and the answer's number of tokens."""
    texts = row.prompt_texts and "".join(row.prompt_texts)
    prompt = texts or row.extra.get("prompt") or row.messages or row.prompt_token_ids
    tokens = None if row.response_mask is None else sum(row.response_mask)
    text = prompt if isinstance(prompt, str) else json.dumps(prompt or "", default=str)
    return text, row.completion or "", tokens


def _step(row: Rollout, path: Path, before: Sequence[Place]) -> int:
    """Return the row's step; of a row without one that of its folder, such as `step_12`, else the
    last number in its file's name, else the number of files before it."""
    if (step := finite(row.extra.get("step"))) is not None:
        return int(step)
    folders = path.absolute().parts[:-1]
    numbers = [int(found[1]) for name in folders if (found := STEP_FOLDER.fullmatch(name))]
    numbers = numbers or [int(digits) for digits in re.findall(r"\d+", path.stem)]
    return numbers[-1] if numbers else len({place.file for place in before} - {path})
