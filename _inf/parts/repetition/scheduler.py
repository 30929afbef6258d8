"""Ends answers that repeat themselves in SGLang's scheduler."""

from __future__ import annotations

from collections.abc import Callable

from sglang.srt.managers.schedule_batch import BaseFinishReason, Req

from _inf.backends.verl.child.scheduler import CheckedReq
from _inf.backends.verl.patch_table import Process, Wrap
from _inf.backends.verl.sglang_format import custom_of
from _inf.parts.repetition import REPETITION, repeats
from _inf.parts.repetition.sglang import KEY


class FinishRepetition(BaseFinishReason):
    def to_json(self) -> dict[str, object]:
        return {"type": REPETITION}


def end_a_repetition(check: Callable[..., None], req: Req, *args: object) -> None:
    check(req, *args)
    detection = custom_of(req).get(KEY)
    if detection and not (req.early or req.finished()) and repeats(req.output_ids, detection):
        req.finished_reason = FinishRepetition()


def patches(process: Process) -> list[Wrap]:
    # fmt: off
    return [
        Wrap(f"{CheckedReq.__module__}:CheckedReq.check_all", end_a_repetition,
             "SGLang does not look for repetitions"),
    ]
    # fmt: on
