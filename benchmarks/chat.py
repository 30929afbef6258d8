"""Measures the time to the first token of a chat's next answer: with and without reuse of the
prefix, and with SGLang's own CPU attention.

    python benchmarks/chat.py
    python benchmarks/chat.py --pairs 5 --json out.json

Three engines run in one process, one working at a time. `reuse` keeps the KV cache across calls
(the default), `none` has `enable_prefix_caching: false`, `torch_native` keeps the cache and uses
SGLang's attention of that name. All get the same conversation of ten turns, turn by turn through
`engine.stream`, in alternating order; the history has the answers of `reuse`. The conversation is
new in each round, so only its own history can be reused (and the template's few words before it).
Answers are greedy and `--tokens` long.

How to read the table. Time to first token: from the call to the first chunk with a token, including
the template and the tokenizer; the median over the rounds in milliseconds, with the lowest and the
highest. Ratios: to `reuse`, of the medians. Prompt and cached: the prompt's tokens, and how many of
them `reuse` did not compute again; the rest is the new message and the end of the last answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from typing import Annotated, Any

import typer
from common import ConfigFile, JsonFile, footer, machine, save
from rich.console import Console
from rich.table import Table

REUSE = "reuse"
ENGINES: dict[str, dict[str, Any]] = {
    REUSE: {},
    "none": {"enable_prefix_caching": False},
    "torch_native": {"engine_kwargs": {"sglang": {"attention_backend": "torch_native"}}},
}
MESSAGES = (
    "I am planning a week in {place} with two children of six and nine. What should we see first?",
    "We like animals more than museums. The younger one is easily tired, and it may well rain.",
    "How do we get there from the airport, and what will it cost for the four of us, roughly?",
    "Please write a plan for the first three days, with one thing in the morning and one later on.",
    "The second day is too full. Move something to the fourth day, and say why you chose that one.",
    "What do people in {place} eat for breakfast, and where could we try it on a Sunday morning?",
    "My wife does not eat fish and the older child is allergic to nuts. Does that change anything?",
    "We would rather spend less. Which two things could we leave out without missing very much?",
    "What should we pack for the week, if we take one bag each and want to wash clothes only once?",
    "Now put all of it into one short letter to my mother, who will be looking after our cat.",
)
PLACES = ("Lisbon", "Oslo", "Kyoto", "Quito", "Nairobi", "Montreal", "Hanoi", "Naples", "Tbilisi")


@dataclasses.dataclass
class Turn:
    """One turn of one conversation on one engine."""

    first_token_seconds: float
    seconds: float
    prompt_tokens: int
    cached_tokens: int


def main(
    pairs: Annotated[int, typer.Option(help="Conversations, each held with all engines.")] = 7,
    turns: Annotated[int, typer.Option(max=len(MESSAGES), help="TurnOptions of each.")] = 10,
    tokens: Annotated[int, typer.Option(help="Length of an answer.")] = 48,
    config: ConfigFile = None,
    json_file: JsonFile = None,
) -> None:
    from inf import InferenceEngine

    status = Console(stderr=True).print
    figures: dict[str, list[list[Turn]]] = {name: [] for name in ENGINES}
    with contextlib.ExitStack() as stack:
        status("starting three engines ...")
        engines = {
            name: stack.enter_context(InferenceEngine(config, rollout=rollout))
            for name, rollout in ENGINES.items()
        }
        converse(engines, -1, min(turns, 2), tokens)  # warm
        for pair in range(pairs):
            for name, held in converse(engines, pair, turns, tokens).items():
                figures[name].append(held)
            status(f"conversation {pair + 1} of {pairs}", highlight=False)
    turns_of = {n: [[vars(t) for t in held] for held in f] for n, f in figures.items()}
    save(json_file, {"turns": turns_of})
    show(figures)


def converse(engines: dict[str, Any], pair: int, turns: int, tokens: int) -> dict[str, list[Turn]]:
    """Have one conversation, turn by turn with all engines."""
    held: dict[str, list[Turn]] = {name: [] for name in engines}
    # The place and the number come early, so conversations share only the template's beginning.
    place = f"{PLACES[pair % len(PLACES)]} (trip {pair})"
    history: list[dict[str, str]] = [{"role": "system", "content": f"You know {place} well."}]
    for turn in range(turns):
        history.append({"role": "user", "content": MESSAGES[turn].format(place=place)})
        answers = {}
        for name in engines if (pair + turn) % 2 else reversed(list(engines)):
            figure, answers[name] = ask(engines[name], history, tokens)
            held[name].append(figure)
        history.append({"role": "assistant", "content": answers[REUSE]})
    return held


def ask(engine: Any, history: list[dict[str, str]], tokens: int) -> tuple[Turn, str]:
    before, text, first = engine.stats(), "", 0.0
    start = time.perf_counter()
    chunks = engine.stream(history, temperature=0, max_tokens=tokens, ignore_eos=True)
    for chunk in chunks:
        if chunk.token_ids and not first:
            first = time.perf_counter() - start
        text += chunk.text
    seconds, after = time.perf_counter() - start, engine.stats()
    prompt, cached = (int(after[k] - before[k]) for k in ("prompt_tokens", "cached_tokens"))
    return Turn(first, seconds, prompt, cached), text


def show(figures: dict[str, list[list[Turn]]]) -> None:
    about, console = machine(), Console(width=120)
    table = Table(title=f"time to first token in ms, {about['cpu']}")
    others = [name for name in figures if name != REUSE]
    for heading in ("turn", "prompt", "cached", *figures, *(f"{n}/{REUSE}" for n in others)):
        table.add_column(heading, justify="right")
    for turn in range(len(figures[REUSE][0])):
        held = {name: [turns[turn] for turns in figures[name]] for name in figures}
        reuse = held[REUSE]
        table.add_row(
            str(turn + 1),
            f"{statistics.median(each.prompt_tokens for each in reuse):.0f}",
            f"{statistics.median(each.cached_tokens for each in reuse):.0f}",
            *map(spread, held.values()),
            *(f"{first_token(held[name]) / first_token(reuse):.2f}" for name in others),
        )
    console.print(table)
    console.print(footer(about))


def first_token(turns: list[Turn]) -> float:
    return statistics.median(each.first_token_seconds for each in turns)


def spread(turns: list[Turn]) -> str:
    each = [turn.first_token_seconds * 1e3 for turn in turns]
    return f"{statistics.median(each):.0f} ({min(each):.0f} to {max(each):.0f})"


if __name__ == "__main__":
    typer.run(main)
