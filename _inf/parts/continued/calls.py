"""Checks the keywords of a call with rows that are continued."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from _inf.errors import ConfigError, at_fault, shown
from _inf.parts.adapters import adapter_of
from _inf.parts.continued import with_first_part
from _inf.parts.continued.rows import RowPrompt
from _inf.request.keywords import refuse
from _inf.request.sampling import Sampling
from _inf.request.tokenize import known_ids
from _inf.types import Limits, SamplingParams


def continued(sampling: Sampling, forms: Sequence[object], limits: Limits) -> Sampling:
    """The keywords of a call with such rows among its prompts: these keep their seeds.

    Raises `ConfigError` for keywords with which a row cannot be continued.
    """
    refuse("continued row", sampling.asked)
    if sampling.n != 1:
        raise ConfigError.of("n", f"a row is continued as one row, not {sampling.n}; set n=1.")
    params = list(sampling.params)
    for place, form in enumerate(forms):
        if isinstance(form, RowPrompt):
            with at_fault(index=form.index):
                params[place] = _of_row(params[place], form, limits)
    return dataclasses.replace(sampling, params=params)


def _of_row(params: SamplingParams, row: RowPrompt, limits: Limits) -> SamplingParams:
    index, so_far = row.index, row.so_far
    tokens = len(so_far.token_ids)
    if adapter_of(params) != row.adapter:
        raise ConfigError.of(
            "adapter",
            f"prompt {index} is a row that began with {shown(row.adapter)}; give the same one.",
        )
    if tokens >= params.max_tokens:
        raise ConfigError.of(
            "max_tokens",
            f"{params.max_tokens} includes the {tokens} tokens that the row of prompt {index} "
            "already has; raise it.",
        )
    ids = so_far.token_ids if so_far.transcript is None else so_far.transcript.ids
    for each in (row.token_ids, ids):
        known_ids(each, limits, f"prompt {index}: the row's token")
    seed = params.seed if row.seed is None else row.seed
    return with_first_part(dataclasses.replace(params, seed=seed), so_far)
