"""What commands and reports need to know about keywords before an engine starts."""

from __future__ import annotations

from collections.abc import Mapping

from _inf.config import RolloutConfig
from _inf.parts.part import values_of
from _inf.request.keywords import FILTERS, KEYWORDS, refuse_beside_loop
from _inf.request.sampling import ASK_TO_SAMPLE, resolve
from _inf.request.values import MAX_INT32
from _inf.types import Limits, ModelInfo

# Used where no model is known: any token id is accepted, and none ends an answer.
ANY_MODEL = ModelInfo(None, frozenset(), Limits(0, 0, MAX_INT32))
# What a report of a call shows at its neutral value too.
ALWAYS_SHOWN = (
    *("max_tokens", "temperature", *FILTERS, "min_tokens", "ignore_eos"),
    *("presence_penalty", "frequency_penalty"),
)


def greedy_unless_asked(params: dict[str, object]) -> None:
    """Make a measurement greedy unless its keywords ask for sampling."""
    if not {"do_sample", *ASK_TO_SAMPLE} & params.keys():
        params["temperature"] = 0.0


def check_params(params: Mapping[str, object], config: RolloutConfig) -> None:
    """Refuse keywords that are wrong for every engine, without starting one."""
    refuse_beside_loop(resolve(params, config, range(0), ANY_MODEL, config.agent.keywords).asked)


def effective_params(params: Mapping[str, object], rollout: RolloutConfig) -> dict[str, object]:
    """Return the value of each sampling keyword of `generate`: `params`, else the config's."""
    [resolved] = resolve(params, rollout, range(1), ANY_MODEL).params
    neutral = {name: KEYWORDS[name].neutral for name in ALWAYS_SHOWN}
    used = neutral | vars(resolved) | values_of(resolved.parts)
    return {
        name: used[name]
        for name, row in KEYWORDS.items()
        if name in used and (name in ALWAYS_SHOWN or row.asks(used[name]))
    }
