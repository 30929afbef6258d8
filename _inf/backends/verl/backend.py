"""verl's rollout behind the `Backend` protocol.

In: `Request`s. Out: `RequestOutput`s. A batch goes through verl whole: a `DataProto` into
`SGLangRollout.generate_sequences`, a `DataProto` out.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from _inf.backends.verl import memory, weights
from _inf.backends.verl.batch import data_proto
from _inf.backends.verl.engine import Call, current_call
from _inf.backends.verl.rollout import Rollout
from _inf.backends.verl.sampling import sglang_params
from _inf.runtime.host import Host
from _inf.types import CancelToken, ModelInfo, Report, Request, RequestOutput, SleepResult, Tool


class VerlBackend:
    """verl's `SGLangRollout` on SGLang, in this process and its child."""

    name = "sglang"
    supports = frozenset(
        {
            *("stream", "turn", "score", "grammar", "seed", "logit_bias"),
            *("top_logprobs", "prompt_logprobs", "update_weights", "sleep"),
        }
    )

    def __init__(
        self,
        rollout: Rollout,
        host: Host,
        model: ModelInfo,
        tools: Sequence[Tool],
        interactions: Mapping[str, Any],
    ) -> None:
        self.rollout = rollout
        self.model = model
        self.tools = tools
        self.interactions = interactions
        self.check_process = host.check_process
        self.close = host.stop  # not a method of this object, which a finalizer would keep alive
        self._host = host

    @property
    def weight_version(self) -> int:
        return self.rollout.weight_version

    def generate(
        self, requests: Sequence[Request], cancel: CancelToken, report: Report | None
    ) -> list[RequestOutput]:
        batch = data_proto(requests, self.model)
        answered = self.rollout.generate_sequences(batch, cancel=cancel, report=report)
        return list(answered.non_tensor_batch["rows"])

    def stream(
        self, request: Request, put: Callable[[RequestOutput], None], cancel: CancelToken
    ) -> Future[None]:
        engine, params = self.rollout.engine(), sglang_params(request.params)
        return self._host.submit(engine.stream(request.token_ids, params, put), cancel)

    async def turn(self, request: Request) -> RequestOutput:
        return await self.rollout.engine().turn(request.token_ids, sglang_params(request.params))

    def converse(
        self, rows: Callable[[], Coroutine[Any, Any, list[RequestOutput]]], cancel: CancelToken
    ) -> list[RequestOutput]:
        """All ranks of a tensor-parallel group call it; the first one holds the conversations."""
        self.check_process()
        outputs: list[RequestOutput] = []
        if self.rollout._engine is not None:
            call = Call(self._host, cancel)
            token = current_call.set(call)
            try:
                outputs = self._host.run(self._conversed(rows), cancel)
            finally:
                current_call.reset(token)
        return self.rollout.from_first_rank(outputs)

    async def _conversed(
        self, rows: Callable[[], Coroutine[Any, Any, list[RequestOutput]]]
    ) -> list[RequestOutput]:
        outputs = await rows()
        await self.rollout.engine().flush_cache()  # where `free_cache_engine` asks for it
        return outputs

    def score(
        self, sequences: Sequence[tuple[list[int], int]], cancel: CancelToken
    ) -> list[RequestOutput]:
        engine, call = self.rollout.engine(), Call(self._host, cancel)

        async def all_of_them() -> list[RequestOutput]:
            scored = (
                engine.score(ids, start, call, row) for row, (ids, start) in enumerate(sequences)
            )
            return list(await asyncio.gather(*scored))

        return self._host.run(all_of_them(), cancel)

    @functools.cached_property
    def _expected_weights(self) -> weights.ExpectedWeights:
        about = self.rollout.model_config
        return weights.wanted(about.hf_config, trust_remote_code=about.trust_remote_code)

    def update_weights(self, given: Any, version: int | None) -> int:
        """Check `given`, then load it between two calls."""
        self.check_process()
        weights.check_version(version)
        tensors = weights.checked(given, self._expected_weights)
        return self._host.run_alone(weights.send(self.rollout, tensors, version))

    def sleep(self) -> SleepResult:
        return self._host.run_alone(memory.sleep(self.rollout))

    def wake_up(self) -> None:
        self._host.run_alone(memory.wake_up(self.rollout))
