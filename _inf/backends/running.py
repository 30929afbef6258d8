"""Starts an engine in this process, updates its weights, restarts and stops it."""

from __future__ import annotations

import concurrent.futures
import os
import pkgutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from _inf.agent_loops.calls import AgentLoops
from _inf.backends.base import Backend
from _inf.backends.model_info import with_limits
from _inf.backends.registry import check_adapters, check_supported, describe, read_config
from _inf.config import Config
from _inf.conversation.interactions import ConfiguredTools
from _inf.errors import ConfigError, InferenceError, shown
from _inf.request.values import count, text
from _inf.response.stats import Stats
from _inf.runtime.interpreter import quick_imports
from _inf.types import ModelInfo, SleepResult

if TYPE_CHECKING:
    from _inf.backends.generation_cache import CachedBackend

# Calls of `agenerate` that may be under way at once; each holds a thread that only waits.
ASYNC_CALLS = 512

Self = TypeVar("Self", bound="RunningEngine")


class RunningEngine:
    """The part of `InferenceEngine` that does not depend on prompts."""

    def __init__(
        self,
        config: str | os.PathLike[str] | Mapping[str, Any] | Config | None = None,
        **overrides: Any,
    ) -> None:
        self.config: Config = read_config(config, overrides)
        self._described = describe(self.config)
        self._described.prepare(self.config)
        self._configured = ConfiguredTools.load(self.config.rollout.multi_turn)
        weakref.finalize(self, self._configured.close)
        try:
            self._agents = AgentLoops(self.config)
            weakref.finalize(self, self._agents.thread.stop)
            self._stats = Stats()
            self._threads = concurrent.futures.ThreadPoolExecutor(ASYNC_CALLS, "inf-call")
            self._launch()
        except BaseException:
            self._configured.close()
            raise

    def _launch(self) -> None:
        with quick_imports():
            launch = pkgutil.resolve_name(self._described.launch)
        self._backend: Backend = launch(self.config)
        self.config = self._agents.config = with_limits(self.config, self._backend.model.limits)
        self._cache: CachedBackend | None = None
        if size := self.config.generation_cache:
            from _inf.backends.generation_cache import CachedBackend

            self._cache = CachedBackend(self._backend, size, self._stats)
            self._backend = cast(Backend, self._cache)
        self.rollout: Any = getattr(self._backend, "rollout", None)
        self.model_config: Any = getattr(self.rollout, "model_config", None)
        self.tokenizer: Any = self._backend.model.tokenizer
        self._finalizer = weakref.finalize(self, self._backend.close)

    @property
    def supports(self) -> frozenset[str]:
        """The features of this engine's backend besides `generate` (docs/backends.md)."""
        return self._backend.supports

    @property
    def on_cpu(self) -> bool:
        """Whether the engine computes on the CPU."""
        return self._backend.on_cpu

    @property
    def dead(self) -> bool:
        """Whether the engine has died or was shut down."""
        return self._backend.dead

    @property
    def closed(self) -> bool:
        """Whether `shutdown` was called; a dead engine that was not can be restarted."""
        return not self._finalizer.alive

    @property
    def weight_version(self) -> int:
        """The version of the weights in use; 0 until they are updated."""
        return self._backend.weight_version

    @property
    def model(self) -> ModelInfo:
        """The served model: its tokenizer, EOS ids, limits and folder."""
        return self._backend.model

    @property
    def model_folder(self) -> Path:
        """The local folder of the model's files."""
        return self._backend.model.folder

    def __repr__(self) -> str:
        name = type(self).__name__
        if "_finalizer" not in vars(self):
            return f"<{name}: not started>"
        if self._described.remote:
            about = f"{self._described.name}, {self.config.base_url}"
        else:
            device = "cpu" if self.on_cpu else "cuda"
            about = f"{self._described.name}, {device}, weight version {self.weight_version}"
        state = ", shut down" if self.closed else ", dead: restart() starts it" if self.dead else ""
        return f"<{name}: {self.config.model_name} ({about}){state}>"

    def __reduce__(self) -> Any:
        raise InferenceError(
            "An engine cannot be copied or sent to another process; make an InferenceEngine there, "
            "or send the prompts to this one."
        )

    def update_weights(self, weights: object, *, version: int | None = None) -> int:
        """Load new weights, and return their version, which is in every later row's metadata.

        weights: a Transformers module, its state dict, or pairs of (name, tensor), on any device,
            with all of the model's weights (of tied weights, one name is enough); an iterator is
            read to its end first. The caller's tensors are not changed.
        version: the number of these weights; by default one more than before.

        Running calls finish with the old weights and later calls wait, so no row mixes the two.
        The prefix cache is emptied. Raises `ConfigError` with the name and shape at fault before
        anything is sent; the old weights then stay in use.
        """
        check_supported(self._backend, {"update_weights()": True})
        return self._backend.update_weights(weights, version)

    @property
    def adapters(self) -> list[str]:
        """The names of the LoRA adapters that `generate(adapter=...)` can take."""
        return self._backend.adapters

    def load_adapter(
        self,
        name: str,
        path_or_state_dict: object,
        *,
        peft_config: object = None,
        version: int | None = None,
    ) -> int:
        """Load a LoRA adapter beside the model's weights, which stay as they are.

        name: what rows ask for; an adapter of that name is replaced.
        path_or_state_dict: a PEFT folder or a checkpoint of verl's LoRA actor, or the tensors that
            PEFT's `get_peft_model_state_dict` returns.
        peft_config: PEFT's `LoraConfig`, or a mapping, of a state dict; by default that of the
            adapter that is replaced.
        version: of its weights, in the metadata of its rows; by default one more than before, 0 at
            first.

        Returns the version. Running calls finish first and later calls wait. Raises `ConfigError`
        about `adapters.NAME` before anything changes. docs/adapters.md has more.
        """
        check_supported(self._backend, {"load_adapter()": True})
        if text("name", name) == self.config.model_name:
            raise ConfigError.of("name", f"{shown(name)} is the model's; give the adapter another.")
        version = None if version is None else count("version", version, least=0)
        return self._backend.load_adapter(name, path_or_state_dict, peft_config, version)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter after the running calls have ended; raises `ConfigError`."""
        check_supported(self._backend, {"unload_adapter()": True})
        check_adapters(self._backend, [text("name", name)])
        self._backend.unload_adapter(name)

    def sleep(self) -> SleepResult:
        """Free the accelerator's memory until `wake_up`; running calls finish first.

        Returns how many bytes were freed (on a CPU none, and `note` says so). Until `wake_up`,
        calls raise `InferenceError`. Raises `ConfigError` without
        `rollout.free_cache_engine: true`.
        """
        check_supported(self._backend, {"sleep()": True})
        return self._backend.sleep()

    def wake_up(self) -> None:
        """Take the memory again and serve the same weights; does nothing if already awake."""
        check_supported(self._backend, {"wake_up()": True})
        self._backend.wake_up()

    def stats(self) -> dict[str, float]:
        """Totals since the start: `calls`, `requests` (rows), `prompt_tokens`,
        `completion_tokens`, `cached_tokens`, `generation_cache_hits` (rows and turns answered from
        memory), `restarts`, `busy_seconds`, and the `tokens_per_second` generated in those busy
        seconds."""
        return self._stats.snapshot()

    def clear_cache(self) -> None:
        """Forget the answers that `generation_cache` keeps; with 0 there are none.

        `update_weights`, `sleep` and `restart` do it too.
        """
        if self._cache is not None:
            self._cache.clear()

    def restart(self) -> None:
        """Start a new engine in this process, with `model_path`'s weights (version 0)."""
        with pkgutil.resolve_name(self._described.restarting)():
            self._finalizer()
            self._launch()
        self._stats.add_restart()

    def shutdown(self) -> None:
        """Stop the engine and its child processes; safe to call twice; does nothing in a fork."""
        self._finalizer()
        self._agents.thread.stop()
        self._configured.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
