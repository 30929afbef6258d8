"""Measures what LoRA adapters cost `generate` on a CPU, against an engine without them.

    python benchmarks/adapters.py
    python benchmarks/adapters.py --pairs 7 --backend hf

Two engines run in one process, one working at a time: `plain` with its defaults, and `with LoRA`,
which has two adapters of rank 8 on all linear layers. A load is a number of rows with new random
prompts in one call; the order of the engines alternates. The rows of `with LoRA` have no adapter,
one adapter, or alternate between two adapters and none.

How to read the table. Ratio: tokens per second of `with LoRA` divided by those of `plain`, the
median over the pairs, with the lowest and the highest.
"""

from __future__ import annotations

import contextlib
import random
import time
from itertools import cycle, islice
from typing import Annotated, Any

import typer
from common import footer, machine, spread
from rich.console import Console
from rich.table import Table

PROMPT_TOKENS, NEW_TOKENS, VOCABULARY = 64, 32, 40_000
LOADS = (1, 16)
USES: dict[str, list[str | None]] = {
    "no adapter": [None],
    "one adapter": ["first"],
    "two and none": ["first", "second", None],
}


def main(
    pairs: Annotated[int, typer.Option(help="Calls of each load, on each engine.")] = 5,
    backend: Annotated[str, typer.Option(help="sglang or hf.")] = "sglang",
) -> None:
    from inf import InferenceEngine

    lora = {"engine_kwargs": {"sglang": {"enable_lora": True}}} if backend == "sglang" else {}
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(InferenceEngine(rollout={"name": backend}))
        engine = stack.enter_context(InferenceEngine(rollout={"name": backend, **lora}))
        for seed, name in enumerate(("first", "second")):
            weights, config = random_adapter(engine.model_config.local_path, seed)
            engine.load_adapter(name, weights, peft_config=config)
        ratios = {
            (rows, use): measure(plain, engine, rows, adapters, pairs)
            for rows in LOADS
            for use, adapters in USES.items()
            if rows > 1 or len(adapters) == 1
        }
    show(backend, ratios)


def random_adapter(folder: str, seed: int) -> tuple[Any, Any]:
    import torch
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    config = LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config)
    return get_peft_model_state_dict(model), config


def measure(
    plain: Any, engine: Any, rows: int, adapters: list[str | None], pairs: int
) -> list[float]:
    """Return the ratio of each pair; the first pair is not counted."""
    ratios = []
    names = list(islice(cycle(adapters), rows))
    for pair in range(pairs + 1):
        generator = random.Random(f"{rows} {adapters} {pair}")
        prompts = [
            {"prompt_token_ids": [generator.randrange(3, VOCABULARY) for _ in range(PROMPT_TOKENS)]}
            for _ in range(rows)
        ]
        calls = [(plain, {}), (engine, {"adapter": names})]
        seconds = {}
        for each, keywords in calls if pair % 2 else reversed(calls):
            start = time.perf_counter()
            each.generate(
                prompts, temperature=1.0, max_tokens=NEW_TOKENS, ignore_eos=True, **keywords
            )
            seconds[each] = time.perf_counter() - start
        ratios.append(seconds[plain] / seconds[engine])
    return ratios[1:]


def show(backend: str, ratios: dict[tuple[int, str], list[float]]) -> None:
    about, console = machine(), Console(width=120)
    table = Table(title=f"{backend} with LoRA over plain, tokens per second, {about['cpu']}")
    for heading in ("rows", "they have", "ratio"):
        table.add_column(heading, justify="right")
    for (rows, use), values in ratios.items():
        table.add_row(str(rows), use, spread(values))
    console.print(table)
    console.print(footer(about))


if __name__ == "__main__":
    typer.run(main)
