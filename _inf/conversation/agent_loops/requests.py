"""The requests of one row's agent loop, answered and recorded on the engine's thread."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from _inf.conversation.agent_loops.sampling import request_params
from _inf.conversation.recorder import Recorder
from _inf.errors import (
    ConfigError,
    EngineDeadError,
    EngineRefusal,
    PromptError,
    RequestFailure,
)
from _inf.request.prompts import id_list
from _inf.request.seeds import turn_seed
from _inf.types import ModelInfo, Request, RequestOutput, SamplingParams


class Requests:
    """The `server_manager` of one row's loop, in the place of verl's `AsyncLLMServerManager`
    (`agent_loop.py`, 0.6.1). Made on the engine's thread; a loop calls `generate` on its own."""

    def __init__(self, params: SamplingParams, model: ModelInfo, recorder: Recorder) -> None:
        self._params, self._model, self._recorder = params, model, recorder
        self._engine = asyncio.get_running_loop()
        # Set if no row can be answered. The loop gets the exception too, and may catch it.
        self.fatal: asyncio.Future[Exception] = self._engine.create_future()
        self._asked, self._ended = 0, False
        self._running: set[asyncio.Task[object]] = set()

    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: object,
        sampling_params: Mapping[str, object],
        image_data: object = None,
        video_data: object = None,
        **others: object,
    ) -> object:
        """Answer `prompt_ids`; returns verl's `TokenOutput`.

        sampling_params: those that `run` got, or others under the names of `InferenceEngine.
        generate`. Raises `PromptError` or `ConfigError` before anything is sent, and what the
        engine raises.
        """
        from verl.workers.rollout.replica import TokenOutput

        for name, value in {"image_data": image_data, "video_data": video_data, **others}.items():
            if value is not None and value != []:
                raise ConfigError.of(name, "agent loops take text only here; leave it out.")
        work = self._answer(self._request(prompt_ids, sampling_params))
        try:
            answering = asyncio.run_coroutine_threadsafe(work, self._engine)
        except RuntimeError:  # the engine's event loop is closed
            work.close()
            raise EngineDeadError("The engine was shut down.") from None
        answer = await asyncio.wrap_future(answering)
        return TokenOutput(token_ids=[*answer.token_ids], log_probs=[*answer.logprobs])

    def _request(self, prompt_ids: object, sampling_params: Mapping[str, object]) -> Request:
        """Build the next request; each has a seed of its own, the first one the row's."""
        ids, limits = id_list(prompt_ids, "prompt_ids"), self._model.limits
        if unknown := [token for token in ids if not 0 <= token < limits.vocabulary]:
            raise PromptError(f"prompt_ids has {unknown[0]}, outside the model's vocabulary.")
        if len(ids) >= limits.total:
            raise PromptError(
                f"prompt_ids has {len(ids)} tokens; within the limit of {limits.total} "
                "(rollout.max_model_len) that leaves no room for an answer."
            )
        params = request_params(sampling_params, self._params, self._model)
        most = min(params.max_tokens, limits.total - len(ids))
        seed = turn_seed(params.seed, self._asked)
        self._asked += 1
        least = min(params.min_tokens, most)
        return Request(
            ids, dataclasses.replace(params, max_tokens=most, min_tokens=least, seed=seed)
        )

    async def _answer(self, request: Request) -> RequestOutput:
        if self._ended:
            raise RequestFailure("The row has ended, and its agent loop's requests with it.")
        task: Any = asyncio.current_task()
        self._running.add(task)
        try:
            return await self._recorder.sample(request)
        except (ConfigError, EngineDeadError, EngineRefusal) as failure:
            if not self.fatal.done():
                self.fatal.set_result(failure)
            raise
        finally:
            self._running.discard(task)

    async def end(self) -> None:
        """Abort what still runs, and refuse what comes later: the loop may not have ended."""
        self._ended = True
        self.fatal.cancel()
        running = [*self._running]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@functools.cache
def server_manager_class() -> type[Requests]:
    """`Requests` as a subclass of verl's class, for loops that check what they get, as pydantic
    does in verl's own langgraph recipe. verl's constructor, which asks Ray, is not called."""
    from verl.experimental.agent_loop.agent_loop import AsyncLLMServerManager

    return type("Requests", (Requests, AsyncLLMServerManager), {})
