"""The page of `inf show FOLDER`: a run over its steps, as one file or from `Server`."""

from __future__ import annotations

import collections
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from _inf.apps.rollouts.page import filled, row_data
from _inf.apps.runs.previews import previews
from _inf.apps.runs.run import Run
from _inf.types import JSON

if TYPE_CHECKING:
    import pandas

MOST_TEXT = 16 * 2**20  # characters of the rows in a page that is one file
FIRST = 32  # rows that are read to see how large they are
SCRIPTS = ("row.js", "chart.js", "answers.js", "run.js")
# What answers.js shows of a prompt at first: answers of so many steps, and so many of each.
STEPS, OF_A_STEP = 12, 4


def run_page(run: Run, *, served: int | None = None) -> str:
    """Return the page. It has the figures of all rows. served: the number of the server's reading
    of the run, with which the page asks for the text of rows; a page that is a file has it of as
    many rows as fit, the most changed prompts first."""
    prompts = run.by_prompt()
    details, questions = ({}, {}) if served is not None else _details(run, list(prompts.index))
    left_out = 0 if served is not None else len(run) - len(details)
    notes = list(run.notes)
    if len(run.steps) > 1 and prompts["change"].isna().all():
        notes.append("No prompt has scores at two steps, so the list's order is theirs in the run.")
    if left_out:
        notes.append(
            f"This page has the text of {len(details)} of {len(run)} rows, first those of the "
            "prompts that changed most; with --serve it has all."
        )
    data = {
        "name": run.name,
        "read": time.strftime("%Y-%m-%d %H:%M"),
        "notes": notes,
        "unit": run.index.unit.removesuffix("s"),
        "asks_server": served is not None,
        "reading": served,
        "left_out": left_out,
        "steps": _columns(run.by_step().reset_index()),
        "previews": previews(run.index.prompts),
        "rows": _columns(run.index.table[["prompt", "score", "length"]]),
        "questions": questions,
        "details": details,
    }
    styles = ("page.css", "run.css")
    return filled(data, "run.html", styles, SCRIPTS, asks_server=served is not None)


def rows_of_page(run: Run, places: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return rows as the page shows them, each with its line, by their numbers."""
    rows = {}
    for place, row in run.index.read(places):
        rows[place] = row_data(row)
        at = run.index.places[place]
        rows[place]["facts"].append(("line", f"{at.file.name}:{at.number}"))
    return {place: rows[place] for place in places}


def _details(run: Run, prompts: list[int]) -> tuple[dict[int, JSON], dict[int, str]]:
    """Return rows by their numbers, until `MOST_TEXT` is full: of each prompt those that are shown
    at first, then all others; and the texts of their prompts, of which the rows have null."""
    details: dict[int, JSON] = {}
    questions: dict[int, str] = {}
    left = MOST_TEXT
    numbers = run.index.table["prompt"].tolist()
    places = iter(dict.fromkeys(_in_order(run.index.table, prompts)))  # each is read once
    while some := [*itertools.islice(places, _that_fit(left, len(details)))]:
        for place, row in rows_of_page(run, some).items():
            question = run.index.prompts[numbers[place]]
            for message in row["messages"] or ():
                if message["content"] == question:
                    message["content"] = None
                    left -= len(question) * (numbers[place] not in questions)
                    questions[numbers[place]] = question
            left -= len(json.dumps(row))
            if left < 0 and details:
                return details, questions
            details[place] = row
    return details, questions


def _that_fit(left: int, taken: int) -> int:
    """Return how many rows more may fit: a first few, then as their size tells, and some more, so
    that few files of many rows are read twice."""
    return max(1, int(1.2 * taken * left / (MOST_TEXT - left))) if taken else FIRST


def _in_order(table: pandas.DataFrame, prompts: list[int]) -> Iterator[int]:
    steps = table["step"].tolist()
    places: dict[int, list[int]] = collections.defaultdict(list)  # of each prompt, by their steps
    for place, prompt in enumerate(table["prompt"].tolist()):
        places[prompt].append(place)
    for prompt in prompts:
        groups = itertools.groupby(places[prompt], key=lambda place: steps[place])
        of_steps = {step: [*group] for step, group in groups}
        for step in _spread(list(of_steps), STEPS):
            yield from of_steps[step][:OF_A_STEP]
    for prompt in prompts:
        yield from places[prompt]


def _spread(values: list[int], most: int) -> list[int]:
    """Return up to `most` of the values, evenly spread, as answers.js chooses them."""
    if len(values) <= most:
        return values
    return [values[int(at * (len(values) - 1) / (most - 1) + 0.5)] for at in range(most)]


def _columns(frame: pandas.DataFrame) -> dict[str, list[object]]:
    """Return the columns as JSON has them: null for what is not known."""
    known = frame.astype(object).where(frame.notna(), None)
    return {str(name): known[name].tolist() for name in known}
