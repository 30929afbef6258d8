"""Continues rows as SGLang continues rows that it took out of a full cache: they begin with the
tokens of their answers."""

from __future__ import annotations

from collections.abc import Callable

from sglang.srt.managers.schedule_batch import Req

from _inf.backends.verl.patch_table import Process, Wrap
from _inf.backends.verl.sglang_format import KNOWN_TOKENS, custom_of


def begin_with_tokens(init: Callable[..., None], scheduler: object, req: Req) -> None:
    """Make the last ids of a prompt the first of its answer. Places of seeds, penalties and stop
    strings then count from there."""
    if count := custom_of(req).get(KNOWN_TOKENS, 0):
        ids = list(req.origin_input_ids)
        req.origin_input_ids, req.output_ids = ids[:-count], ids[-count:]
        req.origin_input_ids_unpadded = req.origin_input_ids
        req.sampling_params.max_new_tokens += count
        req.sampling_params.min_new_tokens += count
        req.send_token_offset = count
        # As if the prompt's had been returned: SGLang counts them by the prompt alone.
        for name in ("token_logprobs", "top_logprobs", "token_ids_logprobs"):
            vars(req)[f"input_{name}_val"] = vars(req)[f"input_{name}_idx"] = []
    init(scheduler, req)


def patches(process: Process) -> list[Wrap]:
    # fmt: off
    return [
        Wrap("sglang.srt.managers.scheduler:Scheduler.init_req_max_new_tokens", begin_with_tokens,
             "managers/scheduler.py, `handle_generate_request`: a request begins with no token of "
             "its answer, and whatever depends on their number or their ids begins anew"),
    ]
    # fmt: on
