"""Computes equal prompts once: the first request with a prompt is computed, and the others wait
until the prefix cache has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sglang.srt.managers.schedule_policy import AddReqResult

from _inf.backends.verl.patch_table import Process, Wrap

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.schedule_policy import PrefillAdder


def wait_for_equal_prompt(
    add: Callable[..., AddReqResult],
    adder: PrefillAdder,
    request: Req,
    *args: object,
    **kwargs: object,
) -> AddReqResult:
    """Leave a request in the queue while another one with its prompt is computed.

    A pass leaves a request in the queue only if another one is computed, and a request waits for
    one other at most, so none waits for ever, whatever the prefix cache keeps.
    """
    if getattr(adder.tree_cache, "disable", True):  # as SGLang asks whether there is a cache
        return add(adder, request, *args, **kwargs)
    first = _first_with_its_prompt(adder, request)
    if first is not None and _shares(adder, request):
        request.waits_for = getattr(request, "waits_for", first.rid)
        if request.waits_for == first.rid:
            return AddReqResult.CONTINUE
    before = len(adder.can_run_list)
    result = add(adder, request, *args, **kwargs)
    if len(adder.can_run_list) > before:
        adder.computed.setdefault(_prompt(request), request)
    return result


def _first_with_its_prompt(adder: PrefillAdder, request: Req) -> Req | None:
    """The request with the same prompt that this pass, or one whose answer is still to come, does
    compute; None if there is none."""
    if not hasattr(adder, "computed"):
        running = adder.running_batch.reqs if adder.running_batch is not None else []
        unanswered = [each for each in running if not each.output_ids]
        adder.computed = {_prompt(each): each for each in (*unanswered, *adder.can_run_list)}
    return adder.computed.get(_prompt(request))


def _shares(adder: PrefillAdder, request: Req) -> bool:
    """Whether the cache would then have more of the request than it has. SGLang computes at least a
    prompt's last token, and what the log probs of its tokens are asked of."""
    most = min(len(request.origin_input_ids), len(request.fill_ids) - 1)
    if request.return_logprob and request.logprob_start_len >= 0:
        most = min(most, request.logprob_start_len)
    return bool(most // adder.page_size * adder.page_size > len(request.prefix_indices))


def _prompt(request: Req) -> tuple[str | None, tuple[int, ...]]:
    """Its ids, and SGLang's name of what they are cached under: an adapter, a salt."""
    return request.extra_key, tuple(request.origin_input_ids)


def patches(process: Process) -> list[Wrap]:
    adder = "sglang.srt.managers.schedule_policy:PrefillAdder"
    # fmt: off
    return [
        Wrap(f"{adder}.add_one_req", wait_for_equal_prompt,
             "rows with one prompt (n > 1) are computed in the same pass, each from its beginning; "
             "the policy lpm computes them apart only if they do not fit into one pass"),
    ]
    # fmt: on
