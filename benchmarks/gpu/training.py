"""What an asynchronous trainer does with an engine between and during its rows: sleep, new weights,
pauses; on one engine in bfloat16."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from functions import CACHED, GRAPHS, SAMPLED
from functions import started as started_anew
from results import Skip
from setting import GREEDY, PROMPTS, Setting, answer, answers, free_gpu_bytes

UPDATES, KEPT_GB = 10, 0.25
SLEEPS = "rollout.free_cache_engine=true"
LORA = (
    "rollout.engine_kwargs.sglang.enable_lora=true",
    "rollout.engine_kwargs.sglang.max_lora_rank=8",
    "rollout.engine_kwargs.sglang.max_loras_per_batch=3",
)
ATTEMPTS = 5  # of a call that may end before it is paused
MEAN = 0.1  # of the differences of log probs in bfloat16, at most


def engine_starts_able_to_sleep_and_with_adapters(setting: Setting) -> Any:
    if not importlib.util.find_spec("torch_memory_saver"):
        raise Skip("the kit has no memory saver")
    return started_anew(setting, GRAPHS, CACHED, SLEEPS, *LORA)


def engine_starts_able_to_sleep(setting: Setting) -> Any:
    if not importlib.util.find_spec("torch_memory_saver"):
        raise Skip("the kit has no memory saver")
    return started_anew(setting, GRAPHS, CACHED, SLEEPS)


def engine_starts_with_graphs_alone(setting: Setting) -> Any:
    return started_anew(setting, GRAPHS, CACHED)


# Sleep and new weights


def answers_are_equal_after_sleep_which_frees_memory(setting: Setting) -> Any:
    engine = setting.engine()
    if not engine.config.rollout.free_cache_engine:
        raise Skip("no engine runs that can sleep")
    before, times = answers(engine), [time.monotonic()]
    slept = engine.sleep()
    times.append(time.monotonic())
    engine.wake_up()
    times.append(time.monotonic())
    assert answers(engine) == before, "other answers after waking up"
    assert slept.freed_bytes > 0 or not setting.on_gpu, slept
    took = [round(end - begin, 2) for begin, end in zip(times, times[1:], strict=False)]
    return {"freed_gb": slept.freed_bytes / 1e9, "sleep_seconds": took[0], "wake_seconds": took[1]}


def memory_stays_after_ten_updates_and_five_sleeps(setting: Setting) -> Any:
    """Between calls of many rows. Compared with the first turn, after which CUDA keeps what it
    needs for them."""
    from safetensors.torch import load_file

    engine, free = setting.engine(), []
    if not engine.config.rollout.free_cache_engine:
        raise Skip("no engine runs that can sleep")
    before = answer(engine)
    weights = load_file(setting.model / "model.safetensors", device=setting.device)
    for turn in range(UPDATES):
        engine.generate(prompts(wide(setting)), **SAMPLED)
        engine.update_weights(weights)
        if turn % 2 == 0:
            engine.sleep()
            engine.wake_up()
        free.append(free_gpu_bytes())
    assert answer(engine) == before, "another answer from the same weights"
    lost = (free[0] - free[-1]) / 1e9
    assert lost <= KEPT_GB, f"{lost} GB less memory is free: {free}"
    return {"gb_lost": round(lost, 3), "updates": UPDATES, "sleeps": UPDATES // 2}


def update_from_cpu_tensors_is_served_and_undone(setting: Setting) -> Any:
    return updated(setting, "cpu")


def update_from_cuda_tensors_is_served_and_undone(setting: Setting) -> Any:
    setting.needs_gpu()
    return updated(setting, "cuda")


def updated(setting: Setting, device: str) -> Any:
    """With the head's sign turned the likeliest token becomes the least likely one."""
    from safetensors.torch import load_file

    engine = setting.engine()
    weights = load_file(setting.model / "model.safetensors", device=device)
    before, version = answers(engine), engine.weight_version
    start = time.monotonic()
    engine.update_weights({**weights, "lm_head.weight": -weights["lm_head.weight"]})
    seconds = time.monotonic() - start
    turned = answers(engine)
    assert all(a[0] != b[0] for a, b in zip(turned, before, strict=True)), "the old weights answer"
    engine.update_weights(weights)
    assert answers(engine) == before, "other answers from the weights of before"
    assert engine.weight_version == version + 2
    size = sum(each.nbytes for each in weights.values())
    return {"seconds": round(seconds, 2), "gb_per_second": round(size / 1e9 / seconds, 2)}


# Running rows


def rows_stand_still_while_paused_and_go_on(setting: Setting) -> Any:
    """One row, whose steps are the same each time; and a batch, which goes on to its end."""
    engine = setting.engine()

    def act(call: Future[Any]) -> None:
        engine.pause("keep")
        try:
            time.sleep(0.3)
            assert engine.paused and not call.done(), "a row went on while it was paused"
        finally:
            engine.resume()

    expected, [row] = interrupted(setting, 1, act)
    assert row.token_ids == expected.token_ids[0], "another answer after a pause"
    expected, output = interrupted(setting, wide(setting), act)
    same = statistics.mean(map(list.__eq__, output.token_ids, expected.token_ids))
    return {"rows": len(output), "rows_of_a_batch_that_are_equal": same}


def aborted_rows_are_continued_from_their_ids(setting: Setting) -> Any:
    engine, asked = setting.engine(), long(setting)

    def act(call: Future[Any]) -> None:
        try:
            engine.pause("abort")
            assert {row.finish_reason for row in call.result()} == {"abort"}
        finally:
            engine.resume()

    expected, parts = interrupted(setting, wide(setting), act)
    later = engine.generate(list(parts), **asked)
    for part, whole in zip(parts, later, strict=True):
        assert whole.token_ids[: len(part.token_ids)] == part.token_ids
        assert len(whole.token_ids) == asked["max_tokens"] and whole.finish_reason == "length"
    scored = engine.get_logprobs(prompts(len(later)), later.token_ids)
    off = mean_difference(later.logprobs, scored)
    assert off <= MEAN, f"{off} away from their scores, on average"
    same = statistics.mean(map(list.__eq__, later.token_ids, expected.token_ids))
    lengths = sorted(map(len, parts.token_ids))
    return {"cut_at": [lengths[0], lengths[-1]], "equal": same, "mean_difference": off}


def running_rows_take_new_weights_and_keep_their_cache(setting: Setting) -> Any:
    return updated_while_running(setting, recompute=False)


def running_rows_take_new_weights_and_are_recomputed(setting: Setting) -> Any:
    return updated_while_running(setting, recompute=True)


def updated_while_running(setting: Setting, recompute: bool) -> Any:
    """Only the head changes, so that also rows that keep their cache have the log probs of the new
    weights from then on."""
    from safetensors.torch import load_file

    engine = setting.engine()
    weights = load_file(setting.model / "model.safetensors", device=setting.device)
    turned = {**weights, "lm_head.weight": -weights["lm_head.weight"]}
    took = []

    def act(call: Future[Any]) -> None:
        start = time.monotonic()
        engine.update_weights(turned, running="keep", recompute=recompute)
        took.append(round(time.monotonic() - start, 2))

    before, expected = engine.weight_version, answer(engine)
    try:
        _, output = interrupted(setting, wide(setting), act)
        scored = engine.get_logprobs(prompts(len(output)), output.token_ids)
        versions = [[version for version, _ in row.weight_versions] for row in output]
        changed = [row.weight_versions[-1][1] for row in output]
        assert all(each == [before, engine.weight_version] for each in versions), versions
        rows = list(zip(output.logprobs, scored, changed, strict=True))
        off = mean_difference([a[k:] for a, _, k in rows], [b[k:] for _, b, k in rows])
        assert off <= MEAN, f"{off} away from the new weights' log probs, on average"
    finally:
        engine.update_weights(weights)
    assert answer(engine) == expected, "another answer from the weights of before"
    return {"seconds": took[-1], "from_token": [min(changed), max(changed)], "mean_difference": off}


def interrupted(setting: Setting, rows: int, act: Callable[[Future[Any]], None]) -> tuple[Any, Any]:
    """What a call returns that nothing disturbs, and one during which `act` is called, both with
    the same weights at their start."""
    engine, asked = setting.engine(), long(setting)
    engine.generate(prompts(rows), **asked)  # kernels of this size may be compiled now
    start = time.monotonic()
    expected = engine.generate(prompts(rows), **asked)
    seconds = time.monotonic() - start
    with ThreadPoolExecutor(1) as pool:
        for attempt in range(1, ATTEMPTS + 1):
            call = pool.submit(engine.generate, prompts(rows), **asked)
            time.sleep(seconds / (2 + attempt))
            if not call.done():
                act(call)
                return expected, call.result()
    raise AssertionError(f"a call of {seconds} s ended before half of that, {ATTEMPTS} times")


def prompts(rows: int) -> list[str]:
    return [f"{PROMPTS[n % len(PROMPTS)]} {n}" for n in range(rows)]


def wide(setting: Setting) -> int:
    return 64 if setting.on_gpu else 4


def long(setting: Setting) -> dict[str, Any]:
    return {**GREEDY, "max_tokens": 400 if setting.on_gpu else 200}


def mean_difference(ours: list[list[float]], theirs: list[list[float]]) -> float:
    pairs = zip(ours, theirs, strict=True)
    return statistics.mean(abs(a - b) for row in pairs for a, b in zip(*row, strict=True))


CHECKS = (
    engine_starts_able_to_sleep_and_with_adapters,
    engine_starts_able_to_sleep,
    engine_starts_with_graphs_alone,
    rows_stand_still_while_paused_and_go_on,
    aborted_rows_are_continued_from_their_ids,
    running_rows_take_new_weights_and_keep_their_cache,
    running_rows_take_new_weights_and_are_recomputed,
    update_from_cpu_tensors_is_served_and_undone,
    update_from_cuda_tensors_is_served_and_undone,
    answers_are_equal_after_sleep_which_frees_memory,
    memory_stays_after_ten_updates_and_five_sleeps,
)
