"""Ends answers that repeat themselves in SGLang's scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.managers.schedule_batch import BaseFinishReason

from _inf.backends.verl.child.scheduler import CheckedReq
from _inf.backends.verl.patch_table import Process, Wrap
from _inf.backends.verl.sglang_format import custom_of
from _inf.parts.repetition import REPETITION, repeats
from _inf.parts.repetition.sglang import KEY


class FinishRepetition(BaseFinishReason):
    def to_json(self) -> dict[str, Any]:
        return {"type": REPETITION}


def check_what_may_repeat(init: Callable[..., None], req: Any, *args: Any, **kwargs: Any) -> None:
    init(req, *args, **kwargs)
    if KEY in custom_of(req):
        req.__class__ = CheckedReq


def end_a_repetition(check: Callable[..., None], req: Any, *args: Any) -> None:
    check(req, *args)
    detection = custom_of(req).get(KEY)
    if detection and not (req.early or req.finished()) and repeats(req.output_ids, detection):
        req.finished_reason = FinishRepetition()


def patches(process: Process) -> list[Wrap]:
    reason = "it does not look for repetitions"
    return [
        Wrap("sglang.srt.managers.schedule_batch:Req.__init__", check_what_may_repeat, reason),
        Wrap(f"{CheckedReq.__module__}:CheckedReq.check_all", end_a_repetition, reason),
    ]
