"""Makes the tables of docs/parity.md: the reports of three models, and what top_p hides.

    python benchmarks/parity.py [--rows 64] [--json out.json]
    python benchmarks/parity.py --top-p

Without an option it runs `inf.check` on the embedded model and on a random Qwen3-MoE of 4 layers,
each in float32 and in bfloat16, with 64 rows of 16 tokens each.

With --top-p the embedded model samples with several `top_p`. The log probs of trainer and rollout
are over the whole vocabulary (p), but the tokens were drawn from q = p / Z, where Z is the
probability of the tokens that were left. A ratio of two whole-vocabulary log probs does not see Z;
the table shows how large it is.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from common import JsonFile, save
from rich.console import Console
from rich.table import Table

import inf
from _inf.apps.check.measure import PROMPTS
from inf import InferenceEngine

ROOT = Path(__file__).parents[1]
METRICS = (
    "logprobs_diff_mean", "logprobs_diff_max", "token_mult_prob_error", "ratio_outside_0.9_1.1",
    "training/rollout_probs_diff_mean", "rollout_corr/kl", "rollout_corr/k3_kl",
    "rollout_corr/rollout_ppl", "rollout_corr/training_ppl", "prefill_decode/logprobs_diff_mean",
    "prefix_reuse/logprobs_diff_mean", "alone_in_batch/logprobs_diff_mean",
    "alone_in_batch/same_tokens", "update_weights/logprobs_diff_mean",
    "multi_turn/logprobs_diff_mean",
)  # fmt: skip
TOP_PS = (1.0, 0.99, 0.95, 0.9, 0.8, 0.5)
TOKENS = 64


def main(
    rows: Annotated[int, typer.Option(help="Rows of a batch.")] = 64,
    top_p: Annotated[bool, typer.Option("--top-p", help="The table of top_p.")] = False,
    json_file: JsonFile = None,
) -> None:
    numbers = bias(rows) if top_p else reports(rows)
    save(json_file, {"numbers": numbers})


def reports(rows: int) -> dict[str, Any]:
    sys.path.insert(0, str(ROOT / "tests"))
    from tests.support.architectures import architecture

    short = {"prompt_length": 512, "response_length": 128}
    moe = {"model_path": str(architecture("qwen3-moe"))}
    configs: dict[str, dict[str, Any]] = {
        "embedded, float32": {},
        "embedded, bfloat16": {"rollout": {"dtype": "bfloat16"}},
        "MoE, float32": {**moe, "rollout": {"dtype": "float32", **short}},
        "MoE, bfloat16": {**moe, "rollout": {"dtype": "bfloat16", **short}},
    }
    found = {}
    for name, config in configs.items():
        with InferenceEngine(**config) as engine:
            found[name] = inf.check(engine, batch=rows)
        for finding in found[name].findings:
            print(f"{name}: {finding.metric} is {finding.value:.3g}: {finding.meaning}")
    table = Table("", *found)
    table.add_row("passed", *(str(report.passed) for report in found.values()))
    for metric in METRICS:
        values = (report.metrics.get(metric) for report in found.values())
        table.add_row(metric, *("" if value is None else f"{value:.2g}" for value in values))
    Console(width=140).print(table)
    return {name: json.loads(report.json()) for name, report in found.items()}


def bias(rows: int) -> dict[str, Any]:
    """Sample rows of `TOKENS` tokens at temperature 1."""
    found: dict[str, dict[str, float]] = {}
    names = "mean -log Z", "largest", "tokens with Z < 0.9", "product of Z over 64 tokens"
    table = Table("top_p", *names)
    with InferenceEngine(rollout={"name": "hf"}) as engine:
        for top_p in TOP_PS:
            values = hidden(engine, top_p, rows)
            flat = [value for row in values for value in row]
            mean = statistics.fmean(flat)
            few = sum(value > -math.log(0.9) for value in flat) / len(flat)
            numbers = mean, max(flat), few, math.exp(-mean * TOKENS)
            found[str(top_p)] = dict(zip(names, numbers, strict=True))
            table.add_row(str(top_p), *(f"{number:.3g}" for number in numbers))
    Console(width=120).print(table)
    return found


def hidden(engine: InferenceEngine, top_p: float, rows: int) -> list[list[float]]:
    """Return -log Z of each sampled token."""
    n = max(1, rows // len(PROMPTS))
    output = engine.generate(
        list(PROMPTS), n=n, temperature=1.0, top_p=top_p, seed=0, max_tokens=TOKENS,
        sampling_mask=top_p < 1,
    )  # fmt: skip
    if output.sampling_logprobs is None:
        return [[0.0] * len(row.token_ids or []) for row in output]
    return [
        [kept - whole for kept, whole in zip(kepts, wholes or [], strict=True)]
        for kepts, wholes in zip(output.sampling_logprobs, output.logprobs, strict=True)
    ]


if __name__ == "__main__":
    typer.run(main)
