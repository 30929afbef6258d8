"""Measures what each keyword of `generate` costs: tokens per second with it, to those without it.

    python benchmarks/keywords.py
    python benchmarks/keywords.py --set rollout.name=hf --only seed,bad_words

One engine answers a number of rows, each with exactly `--tokens` tokens (EOS ignored), at
temperature 1. A pair is two calls, one with the keyword and one without any; which comes first
alternates, and no prompt comes twice. One untimed pair of each keyword comes before all others.
Grammars have a benchmark of their own, `grammar.py`.

How to read a line. tok/s: the median over the pairs. Ratio: to the call without the keyword,
the median of the pairs' ratios, with their quartiles.
"""

from __future__ import annotations

import statistics
import time
from typing import Annotated, Any

import typer
from common import Assignments, JsonFile, machine, quartiles, ratios, save

from _inf.config.load import parse_assignments

WORDS = ["the", "New York", "once upon a time"]
KEYWORDS: dict[str, Any] = {
    "top_p": 0.9,
    "top_k": 50,
    "min_p": 0.05,
    "min_tokens": 48,
    "stop": ["zzz", "\n\n\n\n"],
    "stop_token_ids": [5],
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1.0, "77": -1.0},
    "allowed_token_ids": list(range(100, 20_000)),
    "bad_words": WORDS,
    "logprob_token_ids": list(range(100, 108)),
    "thinking_token_budget": 16,
    "repetition_detection": {"max_pattern_size": 16, "min_count": 8},
    "seed": 7,
    "logprobs": 5,
    "include_stop_str_in_output": True,
}


def main(
    rows: Annotated[int, typer.Option(help="Rows of a call.")] = 16,
    pairs: Annotated[int, typer.Option(help="Timed pairs of each keyword.")] = 7,
    tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 48,
    only: Annotated[str, typer.Option(help="Some of the keywords.")] = ",".join(KEYWORDS),
    assignments: Assignments = None,
    json_file: JsonFile = None,
) -> None:
    from inf import InferenceEngine

    marks = {"start": "<think>", "end": "</think>", "unopened": True}  # so a budget is used up
    config = {**parse_assignments(assignments or []), "reasoning_parser": marks}
    with InferenceEngine(**config) as engine:
        figures = {}
        for name in only.split(","):
            figures[name] = measure(engine, {name: KEYWORDS[name]}, rows, pairs, tokens)
            save(json_file, {"rows": rows, "tokens": tokens, "tokens per second": figures})
            show(name, figures[name])
    print(rows, "rows,", machine())


def measure(
    engine: Any, keyword: dict[str, Any], rows: int, pairs: int, tokens: int
) -> list[tuple[float, float]]:
    """Return each pair's tokens per second, without the keyword and with it."""

    def speed(pair: int, **asked: Any) -> float:
        number = 100 + 2 * pair + bool(asked)
        asks = [f"Tell the {number} stories of {10 + row} {list(keyword)}." for row in range(rows)]
        how = {"max_tokens": tokens, "temperature": 1.0, "ignore_eos": True, "progress": False}
        start = time.perf_counter()
        output = engine.generate(asks, **how, **asked)
        return sum(map(len, output.token_ids)) / (time.perf_counter() - start)

    measured = []
    for pair in range(pairs + 1):
        if pair % 2:
            plain = speed(pair)
            measured.append((plain, speed(pair, **keyword)))
        else:
            asked = speed(pair, **keyword)
            measured.append((speed(pair), asked))
    return measured[1:]


def show(name: str, pairs: list[tuple[float, float]]) -> None:
    plain, asked = zip(*pairs, strict=True)
    ratio = quartiles(ratios(asked, plain))
    print(f"{name:26} {statistics.median(asked):6.1f} tok/s, ratio {ratio}", flush=True)


if __name__ == "__main__":
    typer.run(main)
