"""The life of an engine in this process: started, given new weights, asleep, restarted, stopped.

In: what a config may be. Out: a `Backend` that answers, and what is known of it. Knows nothing of
prompts and answers.
"""

from __future__ import annotations

import concurrent.futures
import os
import weakref
from collections.abc import Mapping
from typing import Any, TypeVar

from _inf.backends.verl.environment import check_pins
from _inf.backends.verl.launch import launch
from _inf.config import Config, load_config
from _inf.errors import InferenceError
from _inf.response.stats import Stats
from _inf.types import SleepResult

check_pins()

# Calls of `agenerate` that may be under way at once; each holds a thread that only waits.
ASYNC_CALLS = 512

Self = TypeVar("Self", bound="RunningEngine")


class RunningEngine:
    """What `InferenceEngine` is beside its calls."""

    def __init__(
        self, config: str | os.PathLike[str] | Mapping[str, Any] | None = None, **overrides: Any
    ) -> None:
        self.config: Config = load_config(config, overrides)
        self._stats = Stats()
        self._threads = concurrent.futures.ThreadPoolExecutor(ASYNC_CALLS, "inf-call")
        self._launch()

    def _launch(self) -> None:
        self._backend = launch(self.config)
        self.rollout: Any = self._backend.rollout
        self.model_config: Any = self.rollout.model_config
        self.tokenizer: Any = self._backend.model.tokenizer
        self._finalizer = weakref.finalize(self, self._backend.close)

    def __reduce__(self) -> Any:
        raise InferenceError(
            "An engine cannot be copied or sent to another process; make an InferenceEngine there, "
            "or send the prompts to this one."
        )

    def update_weights(self, weights: Any, *, version: int | None = None) -> int:
        """Serve new weights, and return their version, which every row's metadata names.

        weights: a Transformers module, its state dict, or pairs of (name, tensor), on any device,
            with all of the model's weights (of tied ones either or both); an iterator is drained
            first. The caller's tensors stay as they are.
        version: what to call them; by default one more than before.

        Calls in flight finish on the old weights, later ones wait: no row sees some of each. The
        prefix cache is emptied. Raises `ConfigError` (which name, which shape) before anything is
        sent: the old weights serve on.
        """
        return self._backend.update_weights(weights, version)

    def sleep(self) -> SleepResult:
        """Give the accelerator's memory back, until `wake_up`; calls in flight finish first.

        Returns how many bytes came free (on a CPU none, and its `note` says so). Meanwhile calls
        raise `InferenceError`. Raises `ConfigError` without `rollout.free_cache_engine: true`.
        """
        return self._backend.sleep()

    def wake_up(self) -> None:
        """Take the memory again and serve the same weights; nothing where it is awake."""
        self._backend.wake_up()

    def stats(self) -> dict[str, float]:
        """Totals since the start: `calls`, `requests` (rows), `prompt_tokens`,
        `completion_tokens`, `cached_tokens`, `restarts`, `busy_seconds` and the
        `tokens_per_second` generated in them."""
        return self._stats.snapshot()

    def restart(self) -> None:
        """Start a new engine in this process, with `model_path`'s weights (version 0)."""
        self._finalizer()
        self._launch()
        self._stats.add_restart()

    def shutdown(self) -> None:
        """Stop the engine and its child processes; safe to call twice. In a fork: nothing."""
        self._finalizer()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
