"""`load_run`: a trainer's samples over all steps."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

from _inf.apps.rollouts.rollout import Rollout
from _inf.apps.runs.files import files_of_run
from _inf.apps.runs.index import Index, read_index
from _inf.types import Tokenizer

if TYPE_CHECKING:
    import pandas


class Rows(Sequence[Rollout]):
    """The rows of a run in the order of their steps, each read from its file when it is asked
    for."""

    def __init__(self, index: Index, places: range | None = None) -> None:
        self._index = index
        self._places = range(len(index.places)) if places is None else places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> Rollout: ...
    @overload
    def __getitem__(self, at: slice) -> Rows: ...
    def __getitem__(self, at: int | slice) -> Rollout | Rows:
        if isinstance(at, slice):
            return Rows(self._index, self._places[at])
        number = self._places[at]
        ((_, row),) = self._index.read([number])
        return row


class Run:
    """The samples of a trainer's run: `inf.load_run`.

    name: of its folder or files.
    steps: their numbers, in order.
    rows: a lazy sequence of `Rollout`s, in the order of the steps.
    notes: sentences on what was left out.
    """

    def __init__(self, name: str, index: Index) -> None:
        self.name = name
        self.index = index
        self.rows = Rows(index)
        self.steps: list[int] = sorted(set(index.table["step"].tolist()))
        self.notes = index.notes

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<Run {self.name}: {len(self.steps)} steps, {len(self)} rows>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a line for each row: `step`, `prompt` (its number; equal prompts have the same),
        `score`, `length`, `characters`, `tokens`, `cut`, with NaN for what a file does not say."""
        return self.index.table.copy()

    def by_step(self) -> pandas.DataFrame:
        """Return a line for each step: `rows`, `cut` (the share of answers that a limit ended), and
        mean, 25 %, 50 % and 75 % quantiles of `score` and `length`, such as `score_mean`."""
        groups = self.index.table.groupby("step")
        steps = groups.agg(rows=("length", "size"), cut=("cut", "mean"))
        for name in ("score", "length"):
            steps[f"{name}_mean"] = groups[name].mean()
            quantiles = groups[name].quantile([0.25, 0.5, 0.75]).unstack()
            steps[[f"{name}_25", f"{name}_50", f"{name}_75"]] = quantiles
        return steps

    def by_prompt(self) -> pandas.DataFrame:
        """Return a line for each prompt: `rows`, `steps`, the mean scores of the `first` and the
        `last` step that has one, and their difference, `change`; the greatest changes first."""
        means = self.index.table.groupby(["prompt", "step"])["score"].agg(["mean", "size"])
        groups = means.groupby("prompt")
        prompts = groups["size"].agg(rows="sum", steps="size")
        prompts["first"], prompts["last"] = groups["mean"].first(), groups["mean"].last()
        change = prompts["last"] - prompts["first"]
        prompts["change"] = change.where(groups["mean"].count() > 1)
        order = prompts["change"].abs().fillna(-1).sort_values(ascending=False, kind="stable")
        return prompts.loc[order.index]


def load_run(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    tokenizer: Tokenizer = None,
    reward: str | None = None,
) -> Run:
    """Read the samples of a whole run.

    path: a folder that a trainer writes samples into (verl, TRL, slime, prime-rl, SkyRL:
        docs/your_run.md), or one of `save_rollouts` files; or a file, or several.
    tokenizer: for lengths in tokens, without which files without ids have characters; and for the
        text of each id.
    reward: the score is this one of a row's `reward_scores` or other keys.

    Raises `ConfigError` with the file, the line and what was looked for.
    """
    given = [path] if isinstance(path, str | os.PathLike) else path
    paths = [*dict.fromkeys(map(Path, given))]
    notes: list[str] = []
    files = files_of_run(paths, notes)
    name = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    index = read_index(files, tokenizer, reward)
    index.notes[:0] = notes
    return Run(name, index)
