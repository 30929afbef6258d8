"""The page of `inf show FOLDER`: a run over its steps, as one file or from `Server`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from _inf.apps.rollouts.page import filled, row_data
from _inf.apps.runs.run import Run
from _inf.types import JSON

if TYPE_CHECKING:
    import pandas

PREVIEW = 120  # characters of a prompt, after what all prompts begin with
MOST_TEXT = 16 * 2**20  # characters of the rows in a page that is one file
# What run.js shows of a prompt at first: answers of so many steps, and so many of each.
STEPS, OF_A_STEP = 12, 4


def run_page(run: Run, *, served: bool = False) -> str:
    """Return the page. It has the figures of all rows; a served one asks for their text, and one
    that is a file has it of as many rows as fit, the most changed prompts first."""
    prompts = run.by_prompt()
    details = {} if served else _details(run, list(prompts.index))
    left_out = 0 if served else len(run) - len(details)
    notes = list(run.notes)
    if left_out:
        notes.append(
            f"This page has the text of {len(details)} of {len(run)} rows, first those of the "
            "prompts that changed most; with --serve it has all."
        )
    texts = _previews(run.index.prompts)
    data = {
        "name": run.name,
        "notes": notes,
        "unit": run.index.unit,
        "asks_server": served,
        "left_out": left_out,
        "steps": _columns(run.by_step().reset_index()),
        "prompts": [
            {"id": number, "text": texts[number], **row}
            for number, row in zip(prompts.index, _lines(prompts), strict=True)
        ],
        "rows": _columns(run.index.table[["step", "prompt", "score", "length"]]),
        "details": details,
    }
    return filled(data, "run", asks_server=served)


def _details(run: Run, prompts: list[int]) -> dict[int, JSON]:
    """Return rows by their numbers, until `MOST_TEXT` is full: of each prompt those that are shown
    at first, then all others."""
    details: dict[int, JSON] = {}
    left = MOST_TEXT
    for place in _in_order(run.index.table, prompts):
        if place not in details:
            row = row_data(run.rows[place])
            left -= len(json.dumps(row))
            if left < 0 and details:
                break
            details[place] = row
    return details


def _in_order(table: pandas.DataFrame, prompts: list[int]) -> Iterator[int]:
    places = table.groupby("prompt").indices
    for prompt in prompts:
        of_steps = table.loc[places[prompt]].groupby("step").indices
        for step in _spread(list(of_steps), STEPS):
            yield from places[prompt][of_steps[step][:OF_A_STEP]].tolist()
    for prompt in prompts:
        yield from places[prompt].tolist()


def _spread(values: list[int], most: int) -> list[int]:
    """Return up to `most` of the values, evenly spread, as run.js chooses them."""
    if len(values) <= most:
        return values
    return [values[int(at * (len(values) - 1) / (most - 1) + 0.5)] for at in range(most)]


def _previews(prompts: Sequence[str]) -> list[str]:
    """The beginnings of what differs; the ends, if the prompts begin in different ways."""
    same = os.path.commonprefix(prompts) if len(prompts) > 1 else ""
    begin = max(same.rfind(space) for space in (" ", "\n")) + 1
    if begin or len(prompts) == 1:
        cut = (prompt[begin : begin + 2 * PREVIEW] for prompt in prompts)
        return [" ".join(text.split())[:PREVIEW] for text in cut]
    return [" ".join(prompt[-2 * PREVIEW :].split())[-PREVIEW:] for prompt in prompts]


def _columns(frame: pandas.DataFrame) -> dict[str, list[object]]:
    """Return the columns as JSON has them: null for what is not known."""
    known = frame.astype(object).where(frame.notna(), None)
    return {str(name): known[name].tolist() for name in known}


def _lines(frame: pandas.DataFrame) -> list[JSON]:
    columns = _columns(frame)
    return [dict(zip(columns, line, strict=True)) for line in zip(*columns.values(), strict=True)]
