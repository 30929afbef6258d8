"""`inf.check`: measures a running engine, and reports."""

from __future__ import annotations

import contextlib
import datetime
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from _inf.apps.check import comparisons
from _inf.apps.check.comparisons import Measured
from _inf.apps.check.differences import Pairs, comparison
from _inf.apps.check.findings import bounds, findings
from _inf.apps.check.images import image_differences
from _inf.apps.check.report import CheckReport, WorstToken
from _inf.apps.check.token_rows import read_batch
from _inf.backends.registry import describe
from _inf.errors import ConfigError
from _inf.runtime.extras import STACK, installed, without_verl

if TYPE_CHECKING:
    from verl import DataProto

    from inf import InferenceEngine

PROMPTS = (
    "What is the capital of France?",
    "Count from one to ten, in German.",
    "def fibonacci(n):",
    "A baker sells 36 rolls in the morning and a third as many in the afternoon. How many in all?",
)
MAX_TOKENS, BATCH = 16, 16


def check(
    engine: InferenceEngine,
    *,
    prompts: str | Sequence[str] | None = None,
    against: InferenceEngine | DataProto | str | Path | None = None,
    max_tokens: int = MAX_TOKENS,
    batch: int = BATCH,
    threshold: float | None = None,
) -> CheckReport:
    """Compare the rollout's log probs with a reference's, and with its own.

    prompts: user messages; by default four built-in ones. `batch` rows of up to `max_tokens` tokens
        are sampled from them at temperature 1, in one call.
    against: None compares with Transformers' logits of whole sequences. They come from this engine
        if it has `rollout.name: hf`; otherwise `check` starts a second engine on the same model, so
        there must be memory for both. Or give a running engine with `rollout.name: hf`. Or give a
        trainer's `DataProto` with `old_log_probs`, or its file (.safetensors, or a file of
        `save_to_disk`, which is a pickle: open only your own). Then the batch's rows are compared:
        its `rollout_log_probs`, or the engine's own log probs if it has none.
    threshold: the largest allowed difference of a log prob, in nats, in place of the thresholds of
        docs/parity.md.

    An engine without updated weights loads its folder's weights once more, under the same version.
    Afterwards the prefix cache is empty. Raises `ConfigError` if nothing can be compared.
    """
    _check_call(engine, against, max_tokens, batch, threshold)
    texts = [prompts] if isinstance(prompts, str) else list(prompts or PROMPTS)
    measured = _measured(engine, against, texts, max_tokens, batch)
    pairs, metrics, dtype = measured.pairs, measured.metrics, engine.model.dtype
    allowed = bounds(dtype, threshold)
    found = findings(metrics, allowed, pairs, measured.whole, dtype)
    return CheckReport(
        passed=not found,
        findings=found,
        metrics=metrics,
        allowed=allowed,
        tokens=len(pairs),
        rows=len(set(pairs.row.tolist())),
        worst=_worst(engine, pairs),
        notes=measured.notes,
        model=str(engine.model_folder),
        reference=_name(against),
        device="cpu" if engine.on_cpu else "cuda",
        dtype=dtype,
        date=datetime.date.today().isoformat(),
        versions={"python": platform.python_version()}
        | {name: installed(name) for name in STACK if installed(name)},
        pairs=pairs,
    )


def _measured(
    engine: InferenceEngine, against: Any, texts: Sequence[str], max_tokens: int, batch: int
) -> Measured:
    trainers = None if against is None or _is_engine(against) else read_batch(against)
    tokens = min(max_tokens, engine.config.rollout.response_length)
    n = max(1, batch // len(texts))
    rows = comparisons.sample_rows(engine, texts, n, tokens)
    sequences = [*rows, *comparisons.two_tokens(engine)]
    again = comparisons.from_the_beginning(engine, sequences)
    of_itself = comparisons.invariances(engine, rows, again[: len(rows)])
    of_itself |= comparisons.alone(engine, rows[::n])
    if trainers is not None:
        measured = comparisons.against_batch(engine, trainers)
    else:
        with contextlib.ExitStack() as stack:
            if (other := against) is None:
                other = stack.enter_context(comparisons.on_transformers(engine))
            measured = comparisons.against_engine(engine, other, texts, sequences, again, tokens)
            of_images, notes = image_differences(engine, other, tokens)
            measured.metrics |= of_images
            measured.notes += notes
    updated, why = comparisons.update(engine, rows, again[: len(rows)])
    verls = without_verl("check")
    measured.notes += [f"update_weights: not compared: {why}"] if why else []
    measured.notes += [f"not computed: {verls}"] if verls else []
    measured.metrics = {**comparison(measured.pairs), **measured.metrics, **of_itself, **updated}
    return measured


def _check_call(
    engine: InferenceEngine, against: object, max_tokens: int, batch: int, threshold: float | None
) -> None:
    if threshold is not None and not threshold >= 0:
        raise ConfigError.of("threshold", f"expected a number from 0 on, got {threshold}")
    for name, value in (("max_tokens", max_tokens), ("batch", batch)):
        if value < 1:
            raise ConfigError.of(name, f"expected a number from 1 on, got {value}")
    if describe(engine.config).remote:
        raise ConfigError(
            f"check: rollout.name is {engine.config.rollout.name}, not verl's rollout or hf"
        )
    if against is None and engine.weight_version and "logits" not in engine.supports:
        raise ConfigError(
            "check: the engine serves updated weights, and Transformers would load the folder's; "
            "give against= an engine with rollout.name hf that has the same weights, check before "
            "the first update_weights(), or after restart()"
        )
    if _is_engine(against) and "logits" not in against.supports:
        raise ConfigError.of("against", "the engine must have rollout.name: hf, which gives logits")


def _worst(engine: InferenceEngine, pairs: Pairs) -> WorstToken:
    index = abs(pairs.difference).argmax()
    return WorstToken(
        row=int(pairs.row[index]),
        position=int(pairs.position[index]),
        token=str(engine.tokenizer.decode([int(pairs.token[index])])),
        rollout=float(pairs.rollout[index]),
        reference=float(pairs.reference[index]),
    )


def _name(against: object) -> str:
    if against is None:
        return "Transformers"
    if _is_engine(against):
        return f"Transformers, {against.config.rollout.dtype}, {against.model_folder}"
    return str(against) if isinstance(against, str | Path) else "a trainer's batch"


def _is_engine(against: object) -> TypeGuard[InferenceEngine]:
    """Whether it is an `InferenceEngine`, whose module imports this one."""
    return hasattr(against, "get_logprobs")
