"""`Backend`: the methods that every engine has, and classes for abilities that only some have.

Everything else (prompts, conversations, tools, timeouts, totals, a trainer's tensors) is written
once, in the folders above. Token ids go in and out. Only for a server that has the tokenizer
(`model.tokenizer` is None) are there messages and text in their place.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from _inf.errors import InferenceError
from _inf.runtime import quiet
from _inf.runtime.calls import CancelToken
from _inf.types import ModelInfo, Put, Report, Request, RequestOutput, Rows, Scored, SleepResult

if TYPE_CHECKING:
    import torch

    from _inf.backends.loaded_adapters import LoadedAdapters
    from _inf.runtime.host import Host

T = TypeVar("T")

PAUSES = ("wait", "abort", "keep")  # the modes of `pause`


class Backend(abc.ABC):
    """A running engine. Every method, of its abilities too, may be called from any thread, and
    from several at once.

    supports: names of `features.FEATURES`: those of its abilities, and what else it was made with.
    on_cpu: whether it computes on the CPU. weight_version: of the weights in use now; 0 until they
    are updated.

    Raises `EngineDeadError` after its engine died or was closed, `GenerationTimeout` when the
    call's time is over, `InferenceError` in a fork of the process that started it.
    """

    name: str
    on_cpu: bool
    weight_version: int

    def __init__(self, host: Host, model: ModelInfo, others: Collection[str]) -> None:
        abilities = {name for name, ability in ABILITIES.items() if isinstance(self, ability)}
        self.supports = frozenset(set(others) - ABILITIES.keys() | abilities)
        self.host, self.model = host, model
        # Raises in a fork of the process that owns the engine; every call would hang there.
        self.check_process = host.check_process
        # Stops the engine and its processes; safe to call twice, and does nothing in a fork. A
        # method of this object would be kept alive by the finalizer.
        self.close = host.stop

    @property
    def dead(self) -> bool:
        """Whether it takes no more calls: it died or was closed."""
        return self.host.death is not None

    def check_alive(self) -> None:
        """Raise in a fork, and if the engine has ended."""
        self.check_process()
        if self.host.death is not None:
            raise self.host.death

    def in_call(self, cancel: CancelToken) -> contextlib.AbstractAsyncContextManager[None]:
        """The context of a call's requests, on the engine's thread."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def generate(
        self, requests: Sequence[Request], cancel: CancelToken, report: Report | None
    ) -> list[RequestOutput]:
        """Answer a batch, in order."""

    @abc.abstractmethod
    async def turn(self, request: Request, put: Put | None = None) -> RequestOutput:
        """Answer one request; awaited inside `await_rows`. put: called with the unfinished output
        whenever tokens have arrived."""

    def await_rows(self, rows: Rows, cancel: CancelToken) -> list[RequestOutput]:
        """Await `rows()` on the engine's thread, where `turn` may be awaited."""

        async def call() -> list[RequestOutput]:
            async with self.in_call(cancel):
                return await rows()

        return self.host.run(call(), cancel)

    def stream(self, request: Request, put: Put, cancel: CancelToken) -> Future[None]:
        """Answer one request; `put` is called with the output so far, and with the whole one, on
        the engine's thread."""

        async def answer() -> None:
            async with self.in_call(cancel):
                put(await self.turn(request, put))

        return self.host.submit(answer(), cancel)

    @property
    def adapters(self) -> list[str]:
        """The names of the adapters that are loaded."""
        return []

    @property
    def paused(self) -> bool:
        """Whether calls wait for `resume`."""
        return False

    def clear(self) -> None:  # noqa: B027
        """Forget the answers that `generation_cache` keeps: only a `CachedBackend` keeps any."""


class Scoring(abc.ABC):
    @abc.abstractmethod
    def score(
        self,
        sequences: Sequence[Scored],
        cancel: CancelToken,
        likeliest: int = 1,
        adapter: str | None = None,
    ) -> list[RequestOutput]:
        """Score each one: the `prompt_logprobs` and `top_prompt_logprobs` of its output,
        with so many `likeliest` ids, begin before its `start`."""


class Logits(abc.ABC):
    @abc.abstractmethod
    def logits(
        self, sequences: Sequence[Scored], cancel: CancelToken, adapter: str | None = None
    ) -> torch.Tensor:
        """The logits of the tokens of each one from its `start` on: float32, sequences
        x longest response x vocabulary, on the CPU, padded with NaN."""


class Updating(abc.ABC):
    @abc.abstractmethod
    def update_weights(
        self, weights: object, version: int | None, *, keep: bool = False, recompute: bool = False
    ) -> int:
        """Load new weights, all of them, after the running calls have ended; return the version.
        keep: between two tokens of the running rows instead, which keep their keys and values;
        recompute: or compute them again."""


class Pausing(abc.ABC):
    @abc.abstractmethod
    def pause(self, mode: str) -> None:
        """Hold back later calls; running rows end (`wait`), end with what they have (`abort`), or
        stand still between two tokens (`keep`)."""

    @abc.abstractmethod
    def resume(self) -> None:
        """Let all go on; does nothing if nothing is paused."""

    @abc.abstractmethod
    def reset_prefix_cache(self) -> None:
        """Let no later row use keys and values that were computed before."""


class Sleeping(abc.ABC):
    @abc.abstractmethod
    def sleep(self) -> SleepResult:
        """Free the accelerator's memory after the running calls have ended."""

    @abc.abstractmethod
    def wake_up(self) -> None:
        """Take the memory again and serve the same weights."""


class Adapting(Backend):
    """Has LoRA adapters."""

    loaded: LoadedAdapters

    @property
    def adapters(self) -> list[str]:
        return self.loaded.names

    def load_adapter(
        self, name: str, weights: object, peft_config: object, version: int | None
    ) -> int:
        """Load an adapter after the running calls have ended; return its version."""
        self.check_alive()
        with quiet.third_party():
            new = self.loaded.checked(name, weights, peft_config)
        load = self.loaded.load
        return self.host.run_alone(self._of_adapter(name, lambda: load(name, new, version)))

    def unload_adapter(self, name: str) -> None:
        """Forget a loaded adapter after the running calls have ended."""
        self.host.run_alone(self._of_adapter(name, lambda: self.loaded.unload(name)))

    async def _of_adapter(self, name: str, change: Callable[[], Awaitable[T]]) -> T:
        """Refuse to take an adapter away from frozen rows."""
        if self.host.lock.frozen and name in self.adapters:
            raise InferenceError(
                f"adapters.{name}: rows that pause('keep') holds may use it; resume() first, "
                "or end them with pause('abort')."
            )
        return await change()


# The features that calls need in addition to `generate`.
CALLS: Mapping[str, Sequence[str]] = {
    "stream": ["stream()"],
    "score": ["score()"],
    "token_ids": ["rollout_batch()", "serve()"],
    "update_weights": ["update_weights()"],
    "continued_rows": ["generate(row)"],
    "pause": ["pause()", "resume()", "reset_prefix_cache()"],
    "sleep": ["sleep()", "wake_up()"],
    "logits": ["get_logits()"],
    "adapters": ["load_adapter()", "unload_adapter()"],
}
# Those that are abilities.
ABILITIES: Mapping[str, type] = {
    "score": Scoring,
    "logits": Logits,
    "update_weights": Updating,
    "pause": Pausing,
    "sleep": Sleeping,
    "adapters": Adapting,
}
