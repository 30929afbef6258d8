"""Which architectures of the installed Transformers the backend `hf` computes exactly: a table.

    .venv-hf/bin/python benchmarks/models.py > docs/models_hf.md

Each causal architecture becomes a tiny random model in float32, if its config can be shrunk
(tests/support/shrunk_configs.py), is saved, and is served by an `InferenceEngine`. Three prompts
of 5, 30 and 60 tokens get 4 tokens each, greedily and sampled with seeds. `exact`:

- greedy ids are the ones that the plain model finds likeliest; it is called on each row alone,
  without cache and padding, with the attention that `hf` chose;
- all log probs, greedy, sampled and of `get_logprobs`, are the plain model's within 1e-3;
- each row has the same ids alone, in the batch and as a stream, greedy and sampled;
- the first two hold again after `update_weights` with changed weights.
"""

from __future__ import annotations

import collections
import datetime
import itertools
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["TQDM_DISABLE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from inf import ConfigError, InferenceEngine
from tests.support.prompts import as_ids
from tests.support.shrunk_configs import CONTEXT, shrunk
from tests.support.tiny import VOCABULARY, save_tokenizer

WITHIN, LARGEST, TOKENS = 1e-3, 100e6, 4
LENGTHS = {"prompt_length": 64, "response_length": 16}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
SAMPLED: dict[str, Any] = {**GREEDY, "temperature": 1.0}
SEEDS = [1, 2, 3]


class Inexact(Exception):
    """What does not hold."""


def tiny(kind: str) -> Any:
    """A random model, or why there is none. Of several modalities, if a checkpoint of its text
    model alone is none that Transformers loads."""
    config, auto = shrunk(kind), AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
        if type(model.config) not in auto._model_mapping:
            auto = AutoModelForImageTextToText
            model = auto.from_config(config)
    size = sum(parameter.numel() for parameter in model.parameters())
    if size > LARGEST:
        raise ValueError(f"{size / 1e6:.0f} million weights are left")
    torch.manual_seed(0)
    return auto.from_config(config, dtype=torch.float32).eval()


def check_rows(model: Any, prompts: Sequence[list[int]], output: Any, what: str) -> None:
    for prompt, row in zip(prompts, output, strict=True):
        with torch.no_grad():
            ids = torch.tensor([prompt + row.token_ids])
            logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        table = logits.float().log_softmax(-1)
        plain = table[torch.arange(TOKENS), row.token_ids]
        if worst := _beyond(plain, torch.tensor(row.logprobs)):
            raise Inexact(f"{what} log probs by {worst:.2g}")
        if what != "sampled" and (worst := _beyond(table.max(-1).values, plain)):
            raise Inexact(f"a likelier token by {worst:.2g}")


def _beyond(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, if it is too large or no number."""
    worst = float((one - other).abs().max())
    return 0.0 if worst <= WITHIN else worst


def check(engine: InferenceEngine, model: Any) -> str:
    """What is lacking although all answers are exact; raises `Inexact`."""
    prompts = [torch.randint(4, VOCABULARY, (length,)).tolist() for length in (5, 30, 60)]
    greedy = engine.generate(as_ids(prompts), **GREEDY)
    sampled = engine.generate(as_ids(prompts), seed=SEEDS, **SAMPLED)
    check_rows(model, prompts, greedy, "greedy")
    check_rows(model, prompts, sampled, "sampled")
    for prompt, seed, row, drawn in zip(prompts, SEEDS, greedy, sampled, strict=True):
        [form] = as_ids([prompt])
        if engine.generate(form, **GREEDY)[0].token_ids != row.token_ids:
            raise Inexact("a greedy row alone")
        if engine.generate(form, seed=seed, **SAMPLED)[0].token_ids != drawn.token_ids:
            raise Inexact("a sampled row alone")
    streamed = [chunk.token_ids for chunk in engine.stream(form, **GREEDY)]
    if list(itertools.chain(*streamed)) != row.token_ids:
        raise Inexact("a stream")
    scores = engine.get_logprobs(as_ids(prompts), greedy.token_ids)
    for scored, row in zip(scores, greedy, strict=True):
        if worst := _beyond(torch.tensor(scored), torch.tensor(row.logprobs)):
            raise Inexact(f"get_logprobs by {worst:.2g}")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.03)
    try:
        engine.update_weights(model)
    except ConfigError as failure:
        return f"; update_weights is refused: {_reason(failure)}"
    check_rows(model, prompts, engine.generate(as_ids(prompts), **GREEDY), "updated")
    return ""


def verdict(kind: str) -> tuple[str, str]:
    try:
        model = tiny(kind)
    except Exception as failure:
        return "not measured", f"not shrunk: {_reason(failure)}"
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(Path(folder), CONTEXT)
        try:
            model.save_pretrained(folder)
            rollout = {"name": "hf", "dtype": "float32", **LENGTHS}
            with InferenceEngine(model_path=folder, device="cpu", rollout=rollout) as engine:
                backend: Any = engine._backend
                forward = backend.forward
                model.set_attn_implementation(forward.model.config._attn_implementation)
                lacking = check(engine, model)
                cached = forward.cached
        except ConfigError as failure:
            said = _reason(failure).removeprefix("model_path: ")
            return "refused", said.replace(f" in {folder}", "")
        except Inexact as failure:
            return "differs", _reason(failure)
        except Exception as failure:
            return "fails", f"{type(failure).__name__}: {_reason(failure)}"
    how = "cached, in batches" if cached else "alone, from the beginning"
    return "exact", how + lacking


def _reason(failure: Exception) -> str:
    text = " ".join(str(failure).split()) or type(failure).__name__
    return text[:160].replace("|", "/")


def main(kinds: Sequence[str]) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    rows, verdicts = [], collections.Counter[str]()
    for kind in kinds or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        said, how = verdict(kind)
        verdicts[said] += 1
        rows.append(f"| {kind} | {MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]} | {said} | {how} |")
        print(rows[-1], file=sys.stderr, flush=True)
    versions = f"Transformers {transformers.__version__}, torch {torch.__version__}"
    print("# Architectures on `hf`, measured\n")
    print(f"{versions}, CPU, float32, {datetime.date.today()}. Made by this command:")
    print("\n".join((__doc__ or "").splitlines()[1:]))
    counts = ", ".join(f"{count} {said}" for said, count in verdicts.most_common())
    print(f"\nOf {len(rows)} architectures: {counts}.\n")
    print("| model type | class | verdict | how rows are computed, or why |\n|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
