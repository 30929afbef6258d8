"""What changes a running engine: new weights and adapters, pauses, and sleep."""

from __future__ import annotations

from _inf.backends.base import Backend
from _inf.backends.registry import (
    check_adapters,
    check_new_adapter,
    check_supported,
    checked_version,
)
from _inf.config import Config
from _inf.errors import ConfigError
from _inf.request import values
from _inf.types import SleepResult

PAUSES, RUNNING = ("wait", "abort", "keep"), ("wait", "keep")


class Changeable:
    """The part of `InferenceEngine` that changes it."""

    config: Config
    _backend: Backend

    def _offering(self, call: str) -> Backend:
        """The backend, which has what this call needs."""
        check_supported(self._backend, {call: True})
        return self._backend

    @property
    def weight_version(self) -> int:
        """The version of the weights in use; 0 until they are updated."""
        return self._backend.weight_version

    def pause(self, mode: str = "wait") -> None:
        """Hold back every later call until `resume`; they wait with their own timeouts.

        mode: what happens to running rows. `wait`: they end first. `abort`: they end with what they
            have (`finish_reason` `abort`). `keep`: they stand still between two tokens.

        Returns when no token is computed any more. `update_weights`, `load_adapter`, `sleep`,
        `wake_up`, `reset_prefix_cache` and `shutdown` work meanwhile. If it is interrupted, nothing
        is paused. Raises `InferenceError` in a tool.
        """
        self._offering("pause()").pause(values.one_of("mode", mode, PAUSES))

    def resume(self) -> None:
        """Let the rows and calls that `pause` holds go on; does nothing if nothing is paused."""
        self._offering("resume()").resume()

    @property
    def paused(self) -> bool:
        """Whether calls wait for `resume`."""
        return self._backend.paused

    def reset_prefix_cache(self) -> None:
        """Let no later row use keys and values that were computed before; running rows keep theirs.

        New weights do the same.
        """
        self._offering("reset_prefix_cache()").reset_prefix_cache()

    def update_weights(
        self,
        weights: object,
        *,
        version: int | None = None,
        running: str = "wait",
        recompute: bool = False,
    ) -> int:
        """Load new weights, and return their version, which is in every later row's metadata.

        weights: a Transformers module, its state dict, or pairs of (name, tensor), on any device,
            with all of the model's weights (for tied weights, one name is enough); an iterator is
            read to its end first. The caller's tensors are not changed.
        version: the number of these weights; by default one more than before.
        running: `wait`: running calls finish with the old weights and later calls wait, so no row
            mixes the two. `keep`: running rows go on with the new weights from their next token on
            (`weight_versions`), also under `pause("keep")`, whatever this says.
        recompute: whether rows that go on compute the keys and values of their tokens again with
            the new weights; otherwise they keep those of the old ones.

        The prefix cache is emptied. Raises `ConfigError` with the name and shape at fault before
        anything is sent; the old weights then stay in use.
        """
        backend, number = self._offering("update_weights()"), checked_version(version)
        keep = values.one_of("running", running, RUNNING) == "keep"
        if values.flag("recompute", recompute) or keep:
            self._offering("pause()")
        if recompute and not keep and not self.paused:
            raise ConfigError.of("recompute", "running rows end first here; set running='keep'.")
        return backend.update_weights(weights, number, keep=keep, recompute=recompute)

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
        """Load a LoRA adapter next to the model's weights, which do not change (docs/adapters.md).

        name: the name for `adapter=`; an adapter that has it is replaced.
        path_or_state_dict: a PEFT folder or a checkpoint of verl's LoRA actor, or the tensors that
            PEFT's `get_peft_model_state_dict` returns.
        peft_config: PEFT's `LoraConfig`, or a mapping, for a state dict; by default the replaced
            adapter's.
        version: the number of its weights; by default 0 at first, then one more than before.

        Returns the version. Running calls finish first and later calls wait. Raises `ConfigError`
        about `adapters.NAME` before anything changes.
        """
        backend = self._offering("load_adapter()")
        check_new_adapter(self.config, name)
        number = checked_version(version)
        return backend.load_adapter(name, path_or_state_dict, peft_config, number)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter after the running calls have ended; raises `ConfigError`."""
        backend = self._offering("unload_adapter()")
        check_adapters(backend, [name], "name")
        backend.unload_adapter(name)

    def sleep(self) -> SleepResult:
        """Free the accelerator's memory until `wake_up`; running calls finish first.

        Returns the freed bytes (on a CPU none, and `note` says so). Until `wake_up`, calls raise
        `InferenceError`. Raises `ConfigError` without `rollout.free_cache_engine: true`.
        """
        return self._offering("sleep()").sleep()

    def wake_up(self) -> None:
        """Take the memory again and serve the same weights; does nothing if already awake."""
        self._offering("wake_up()").wake_up()
