"""The part that compares overlapped with serial steps, id by id: 64 rows at once, in float32, where
the order in which a kernel adds changes no token."""

from __future__ import annotations

import time
from typing import Any

from functions import CACHED, GRAPHS, REGEX, SCHEMA
from results import Skip
from setting import PROMPTS, Setting, absent

ROWS, ON_A_CPU = 64, 16
TEXTS = [f"{prompt} {number}" for number in range(ROWS // len(PROMPTS)) for prompt in PROMPTS]
SERIAL = "rollout.engine_kwargs.sglang.disable_overlap_schedule"
WITHIN = 1e-3  # of log probs
SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 32, "progress": False}
PENALTIES = {"presence_penalty": 0.2, "frequency_penalty": 0.4, "repetition_penalty": 1.3}


def rows_alternate(*values: Any) -> list[Any]:
    """One value for each row, in turns."""
    return [values[place % len(values)] for place in range(ROWS)]


KINDS: dict[str, dict[str, Any]] = {
    "penalties": {**PENALTIES, "min_tokens": 20},
    "seeds": {"top_p": 0.9, "top_k": 40, "min_p": 0.02, "seed": [*range(ROWS)]},
    "grammars": {
        "regex": rows_alternate(REGEX, None, None, "[a-f]{3}"),
        "json_schema": rows_alternate(None, SCHEMA, None, None),
        "max_tokens": 60,
    },
    "stops": {"max_tokens": rows_alternate(1, 5, 17, 32)},  # and what `stops` adds
    "masks": {"sampling_mask": True, "top_p": 0.9},
    "together": {
        "repetition_penalty": rows_alternate(1.0, 1.3),
        "regex": rows_alternate(None, None, REGEX),
        "top_k": rows_alternate(-1, 40, 5, 200),
        "seed": [*range(ROWS)],
        "min_tokens": rows_alternate(0, 0, 0, 0, 12),
    },
}


def engine_with_serial_steps_answers(setting: Setting) -> Any:
    """Its rows of each kind are kept; then it ends, and its memory is free."""
    engine = begun(setting, "true")
    setting.report["stops"] = stops(engine)
    setting.report["serial"] = {kind: answered(setting, kind) for kind in KINDS if not unable(kind)}
    engine.shutdown()
    setting.running = None
    return {kind: rows["seconds"] for kind, rows in setting.report["serial"].items()}


def engine_with_overlapped_steps_starts(setting: Setting) -> Any:
    if not setting.report:
        raise Skip("there are no rows of serial steps")
    overlapped = not begun(setting, "false").rollout._engine.server_args.disable_overlap_schedule
    assert overlapped, "its steps do not overlap"


def rows_with_penalties_are_those_of_serial_steps(setting: Setting) -> Any:
    return equal(setting, "penalties")


def rows_with_seeds_are_those_of_serial_steps(setting: Setting) -> Any:
    return equal(setting, "seeds")


def rows_with_grammars_are_those_of_serial_steps(setting: Setting) -> Any:
    return equal(setting, "grammars")


def rows_with_stops_are_those_of_serial_steps(setting: Setting) -> Any:
    return equal(setting, "stops")


def rows_with_masks_are_those_of_serial_steps(setting: Setting) -> Any:
    return equal(setting, "masks")


def rows_with_different_keywords_are_those_of_serial_steps(setting: Setting) -> Any:
    return equal(setting, "together")


def begun(setting: Setting, serial: str) -> Any:
    size = ["rollout.gpu_memory_utilization=0.4"] if setting.on_gpu else []
    return setting.start(GRAPHS, CACHED, "rollout.dtype=float32", f"{SERIAL}={serial}", *size)


def unable(kind: str) -> bool:
    return "regex" in KINDS[kind] and absent("llguidance")


def stops(engine: Any) -> dict[str, list[list[Any]]]:
    """Of each second row a token that it draws, of the others a text that it has."""
    free = engine.generate(TEXTS, **SEEDED)
    places = range(ROWS)
    return {
        "stop_token_ids": [[free.token_ids[n][-10:][0]] if n % 2 else [] for n in places],
        "stop": [[] if n % 2 else [free.completions[n][-40:][:6]] for n in places],
    }


def answered(setting: Setting, kind: str) -> dict[str, Any]:
    """All of a call's rows that must be equal, its log probs, and its seconds."""
    asked = {**SEEDED, **KINDS[kind], **(setting.report["stops"] if kind == "stops" else {})}
    texts = TEXTS[: ROWS if setting.on_gpu else ON_A_CPU]
    own = {name: v[: len(texts)] if isinstance(v, list) else v for name, v in asked.items()}
    start = time.monotonic()
    output = setting.engine().generate(texts, **own)
    ends = [(each["finish_reason"], each["matched_stop"]) for each in output.metadata]
    rows = list(zip(output.token_ids, ends, output.sampling_mask or ends, strict=True))
    seconds = round(time.monotonic() - start, 2)
    return {"rows": rows, "logprobs": output.logprobs, "seconds": seconds}


def equal(setting: Setting, kind: str) -> Any:
    if unable(kind):
        raise Skip("the kit has no llguidance, which computes what a grammar allows")
    setting.engine()
    expected, found = setting.report["serial"][kind], answered(setting, kind)
    pairs = list(zip(expected["rows"], found["rows"], strict=True))
    others = [place for place, (a, b) in enumerate(pairs) if a != b]
    if others:
        a, b = pairs[others[0]]
        raise AssertionError(f"rows {others} are others; the first is {b}, with serial steps {a}")
    off = max(
        abs(a - b)
        for rows in zip(expected["logprobs"], found["logprobs"], strict=True)
        for a, b in zip(*rows, strict=True)
    )
    assert off <= WITHIN, f"a log prob differs by {off}"
    reasons = [reason for _, (reason, _), _ in found["rows"]]
    ends = {reason: reasons.count(reason) for reason in set(reasons)}
    seconds = [expected["seconds"], found["seconds"]]
    return {"ends": ends, "largest_difference": off, "serial_and_overlapped_seconds": seconds}


CHECKS = (
    engine_with_serial_steps_answers,
    engine_with_overlapped_steps_starts,
    rows_with_penalties_are_those_of_serial_steps,
    rows_with_seeds_are_those_of_serial_steps,
    rows_with_grammars_are_those_of_serial_steps,
    rows_with_stops_are_those_of_serial_steps,
    rows_with_masks_are_those_of_serial_steps,
    rows_with_different_keywords_are_those_of_serial_steps,
)
