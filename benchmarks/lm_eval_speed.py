"""Measures lm-evaluation-harness on this library against its own Transformers backend.

    python benchmarks/lm_eval_speed.py
    python benchmarks/lm_eval_speed.py --requests 32 --pairs 5 --batch-size 16

The same requests on the embedded model, in float32: `choice` scores four continuations of each
context, `generate` answers greedily with at most 64 tokens, `rolling` scores texts of some 300
tokens. It prints seconds (medians of `--pairs` runs in alternating order) and their ratio.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Annotated, Any

import torch
import typer
from common import machine
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI

from inf import InferenceEngine

TEXT = "Natalia sold clips to {} of her friends in April, and then she sold half as many in May. "
KINDS = {
    "choice": "loglikelihood",
    "generate": "generate_until",
    "rolling": "loglikelihood_rolling",
}


def instances(kind: str, count: int, run: int) -> list[Instance]:
    """Make new texts for each run, so that no cache has them."""
    texts = [TEXT.format(f"{run * 1000 + index} and many more") * 4 for index in range(count)]
    arguments: list[tuple[Any, ...]] = []
    for text in texts:
        if kind == "choice":
            arguments += [(text, f" She sold {number} in all.") for number in (12, 24, 48, 72)]
        elif kind == "generate":
            arguments.append((text, {"until": [], "max_gen_toks": 64, "do_sample": False}))
        else:
            arguments.append((text * 3,))
    return [Instance(KINDS[kind], {}, each, index) for index, each in enumerate(arguments)]


def main(
    requests: Annotated[int, typer.Option(help="Questions of a run.")] = 8,
    pairs: Annotated[int, typer.Option(help="Timed runs of each.")] = 3,
    batch_size: Annotated[int, typer.Option(help="Of the harness's backend.")] = 8,
) -> None:
    print(machine())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with InferenceEngine(rollout={"prompt_length": 1024}) as engine, engine.serve() as server:
        folder, total = str(engine.model_folder), engine.model.limits.total
        models = {
            "inf": LocalCompletionsAPI(
                f"{server.base_url}/completions",
                tokenizer_backend="huggingface",
                tokenizer=folder,
                model=engine.config.model_name,
                max_length=total,
                batch_size=min(512, 1_000_000 // total),
                max_retries=1,
                timeout=10**6,
            ),
            "hf": HFLM(pretrained=folder, device=device, dtype="float32", batch_size=batch_size),
        }
        compare(models, requests, pairs)


def compare(models: Mapping[str, Any], requests: int, pairs: int) -> None:
    for kind, method in KINDS.items():
        seconds: dict[str, list[float]] = {name: [] for name in models}
        for run in range(pairs + 1):  # the first is not counted
            for name in list(models)[:: -1 if run % 2 else 1]:
                asked = instances(kind, requests, run)
                start = time.perf_counter()
                getattr(models[name], method)(asked, disable_tqdm=True)
                if run:
                    seconds[name].append(time.perf_counter() - start)
        ours, theirs = (statistics.median(seconds[name]) for name in models)
        print(f"{kind:<10} inf {ours:7.2f} s   hf {theirs:7.2f} s   ratio {theirs / ours:.2f}")


if __name__ == "__main__":
    typer.run(main)
