"""What `VerlBackend` can do besides generating: score, update weights, pause, sleep."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from _inf.backends import new_weights
from _inf.backends.base import Scoring, Sleeping, Updating
from _inf.backends.features import check_parts
from _inf.backends.pausing import PausingRows
from _inf.backends.verl import SGLANG_MODE, changes
from _inf.backends.verl.backend import VerlBackend
from _inf.backends.verl.calls import Call, current_call
from _inf.backends.verl.corrected_rollout import CorrectedRollout
from _inf.backends.verl.server_arguments import CAPTURE_EXPERTS
from _inf.backends.verl.sglang_format import output_row, translation
from _inf.errors import ConfigError, InferenceError
from _inf.parts.prompt_logprobs import PromptLogprobs
from _inf.parts.prompt_logprobs.sglang import score_params
from _inf.runtime.calls import IN_A_CALL, CancelToken
from _inf.runtime.host import Host
from _inf.runtime.side_by_side import run_rows
from _inf.types import ModelInfo, RequestOutput, SamplingParams, Scored, SleepResult


class WholeVerlBackend(PausingRows, Scoring, Updating, Sleeping, VerlBackend):
    """The backend of an engine without adapters."""

    def __init__(self, rollout: CorrectedRollout, host: Host, model: ModelInfo) -> None:
        captures = rollout.server_arguments.get(CAPTURE_EXPERTS)
        lacks = () if captures else {"routed_experts"}
        super().__init__(rollout, host, model, SGLANG_MODE.supports.difference(lacks))

    @property
    def weight_version(self) -> int:  # type: ignore[override]
        return self.rollout.weight_version

    def score(
        self,
        sequences: Sequence[Scored],
        cancel: CancelToken,
        likeliest: int = 1,
        adapter: str | None = None,
    ) -> list[RequestOutput]:
        engine, call = self.rollout.engine(), Call(self.host, cancel)
        asked = [SamplingParams(max_tokens=0, parts=each.parts) for each in sequences]
        check_parts(self, asked)

        async def scored(row: int, ids: list[int], start: int) -> RequestOutput:
            params = score_params(start, likeliest, adapter)
            for part in asked[row].parts:
                params |= translation(part).sent(asked[row])
            output = await engine.request(ids, params, call.rid(row), scored=True)
            return output_row(output, params, row, parts=[PromptLogprobs(likeliest)])

        async def all_scored() -> list[RequestOutput]:
            rows = (scored(row, each.ids, each.start) for row, each in enumerate(sequences))
            outputs = await run_rows(rows)
            await engine.empty_after_call()
            return outputs

        return self.host.run(all_scored(), cancel)

    async def freeze(self) -> None:
        await changes.freeze(self.rollout.engine())

    async def thaw(self) -> None:
        await changes.thaw(self.rollout.engine())

    def ending(self) -> contextlib.AbstractContextManager[None]:
        return changes.ending(self.rollout.engine())

    def pause(self, mode: str) -> None:
        self._check_one_rank("pause()")
        super().pause(mode)

    def _check_one_rank(self, what: str) -> None:
        if (size := self.rollout.ranks.size) > 1:
            raise ConfigError(
                f"{what} needs rollout.tensor_model_parallel_size 1, and it is {size}: the ranks "
                "of a group take no other call while one runs."
            )

    def reset_prefix_cache(self) -> None:
        self._check_one_rank("reset_prefix_cache()")
        self.change(self.rollout.engine().prefix_cache.empty(), keep=True)

    def update_weights(
        self, new: object, version: int | None, *, keep: bool = False, recompute: bool = False
    ) -> int:
        ranks, begun = self.rollout.ranks, threading.Lock()
        if keep:
            self._check_one_rank("update_weights(running='keep')")
        if ranks.size > 1 and current_call.get(None) is not None:
            raise InferenceError(IN_A_CALL)  # which has the ranks' turn
        with ranks.turn:
            tensors = ranks.agreed(lambda: self._checked(new))
            sending = changes.send_weights(
                self.rollout, tensors, version, begun, recompute=recompute
            )
            try:
                return self.change(sending, keep=keep)
            except BaseException as failure:
                if begun.acquire(blocking=False):  # the other ranks wait for it
                    ranks.agree(failure)
                raise

    def _checked(self, new: object) -> new_weights.NamedTensors:
        self.check_alive()
        return new_weights.checked(new, self.rollout.expected_weights)

    def sleep(self) -> SleepResult:
        alone, rollout = self.host.run_alone, self.rollout
        return rollout.ranks_of_call().shared("sleep", lambda: alone(changes.sleep(rollout)))

    def wake_up(self) -> None:
        alone, rollout = self.host.run_alone, self.rollout
        rollout.ranks_of_call().shared("wake_up", lambda: alone(changes.wake_up(rollout)))
