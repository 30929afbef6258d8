"""Compares the engine's tokens and log probs with Transformers', in float32 and in bfloat16.

    python benchmarks/exactness.py
    python benchmarks/exactness.py -c config.yaml --set model_path=/models/x --json out.json

For each dtype, a first engine answers 32 prompts greedily, scores its answers again with
`get_logprobs`, and stops. Then a second engine, with rollout.name hf, loads the same folder in the
same dtype, answers each prompt greedily, and scores the first engine's answers.

How to read the table. Equal: answers that equal Transformers', token for token. Same start: the
share of all tokens that come before the first difference in their row. Log probs: the largest and
the mean absolute difference from Transformers', for `generate` and (scored) for `get_logprobs`. In
float32 on a CPU all answers are equal and no log prob is off by more than 1e-3. In bfloat16, and on
a GPU where kernels use TF32, near ties may differ, so look at the means. Memory: what the engine
took on the GPU, when ready and after the answers, without `sleep`; 0 on a CPU.
The exit code is 1 if a mean is above its dtype's limit.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from common import Assignments, ConfigFile, JsonFile, save
from rich.console import Console
from rich.table import Table

BARS = {"float32": 0.01, "bfloat16": 0.1}  # mean absolute difference of log probs
TOPICS = "rain,bread,bridges,chess,ants,glass,tea,maps,salt,bells,owls,ice,silk,clocks,moss,drums"
FORMS = ("Tell me about {}.", "Write a line of Python about {}, then explain it.")
TEXTS = [form.format(topic) for topic in TOPICS.split(",") for form in FORMS]


def main(
    tokens: Annotated[int, typer.Option(help="Length of an answer, at most.")] = 64,
    dtypes: Annotated[str, typer.Option(help="Which, with commas.")] = "float32,bfloat16",
    config: ConfigFile = None,
    assignments: Assignments = None,
    json_file: JsonFile = None,
) -> None:
    results = {
        dtype: compare(dtype, config, assignments or [], tokens) for dtype in dtypes.split(",")
    }
    save(json_file, {"results": results})
    table = Table(title="against Transformers")
    for name in (
        "dtype",
        "equal",
        "same start",
        "generate max",
        "mean",
        "scored max",
        "mean",
        "GB",
    ):
        table.add_column(name, justify="right")
    for dtype, result in results.items():
        spreads = [f"{result[key]:.1e}" for key in ("max", "mean", "scored_max", "scored_mean")]
        ready, later = (result[key] / 1e9 for key in ("gpu_bytes_ready", "gpu_bytes_after"))
        table.add_row(
            dtype,
            f"{result['equal']} of {result['rows']}",
            f"{result['same_start']:.1%}",
            *spreads,
            f"{ready:.2f}, {later:.2f}",
        )
    Console(width=120).print(table)
    if any(result["mean"] > BARS.get(dtype, 0.1) for dtype, result in results.items()):
        raise typer.Exit(1)


def compare(dtype: str, config: str | None, assignments: list[str], tokens: int) -> dict[str, Any]:
    from _inf.config import parse_assignments
    from inf import InferenceEngine

    Console(stderr=True).print(f"{dtype} ...")
    overrides = parse_assignments([*assignments, f"rollout.dtype={dtype}"])
    free = free_gpu_bytes()
    with InferenceEngine(config, **overrides) as engine:
        ready = free - free_gpu_bytes()
        answered = answers_of(engine, tokens)
        after = free - free_gpu_bytes()
    memory = {"gpu_bytes_ready": ready, "gpu_bytes_after": after}
    return beside_transformers(engine, answered, tokens) | memory


def answers_of(engine: Any, tokens: int) -> tuple[Any, list[list[float]]]:
    """The greedy answers of an engine, and their scores."""
    output = engine.generate(TEXTS, temperature=0, max_tokens=tokens, progress=False)
    return output, engine.get_logprobs(TEXTS, output.token_ids)


def beside_transformers(
    engine: Any, answered: tuple[Any, list[list[float]]], tokens: int
) -> dict[str, Any]:
    """Compare an engine's `answers_of` with those of Transformers on its model, in its dtype."""
    from inf import InferenceEngine

    output, scored = answered
    own = engine.config.rollout
    lengths = {"prompt_length": own.prompt_length, "response_length": own.response_length}
    with InferenceEngine(
        model_path=str(engine.model_folder),
        trust_remote_code=engine.config.trust_remote_code,
        device="cpu" if engine.on_cpu else "cuda",
        rollout={"name": "hf", "dtype": own.dtype, **lengths},
    ) as reference:
        answers: Any = reference.generate(TEXTS, temperature=0, max_tokens=tokens, progress=False)
        truth = reference.get_logprobs(TEXTS, output.token_ids)
    off, scored_off = distances(output.logprobs, truth), distances(scored, truth)
    starts = [same(*each) for each in zip(output.token_ids, answers.token_ids, strict=True)]
    return {
        "rows": len(TEXTS),
        "equal": sum(a == b for a, b in zip(output.token_ids, answers.token_ids, strict=True)),
        "same_start": sum(starts) / sum(map(len, output.token_ids)),
        "max": max(off),
        "mean": sum(off) / len(off),
        "scored_max": max(scored_off),
        "scored_mean": sum(scored_off) / len(scored_off),
    }


def free_gpu_bytes() -> int:
    """Memory used on the whole device, by any process; 0 without a GPU."""
    import torch

    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else 0


def distances(ours: list[list[float]], theirs: list[list[float]]) -> list[float]:
    pairs = zip(ours, theirs, strict=True)
    return [abs(a - b) for row, true in pairs for a, b in zip(row, true, strict=True)]


def same(ours: list[int], theirs: list[int]) -> int:
    """Count the tokens before the first difference."""
    equal = [a == b for a, b in zip(ours, theirs, strict=False)]
    return [*equal, False].index(False)


if __name__ == "__main__":
    typer.run(main)
