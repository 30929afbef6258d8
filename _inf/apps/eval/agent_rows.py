"""Which agent loop answers which row of an evaluation, and with which columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from _inf.apps.code_version import CodeVersion
from _inf.apps.configured_code import loop_versions
from _inf.apps.eval.dataset import AGENT_NAME, Example
from _inf.config import Config
from _inf.conversation.agent_loops.loading import DEFAULT_KEY, KEYWORD
from _inf.errors import ConfigError
from _inf.request.effective import check_params

KWARGS = "agent_kwargs"


@dataclasses.dataclass(frozen=True)
class AgentRows:
    """The agent loops of an evaluation.

    default: that of rows without an `agent_name`, as it was asked for; None: none. default_name:
    its name. kwargs: what all loops get in addition to their row's columns. versions: of all
    loops, by their names.
    """

    default: object
    default_name: str | None
    kwargs: Mapping[str, object]
    versions: Mapping[str, CodeVersion]

    @classmethod
    def of(
        cls, examples: Sequence[Example], config: Config, params: Mapping[str, Any]
    ) -> AgentRows:
        """Find the loops of `generate`'s keywords, of a config and of the rows.

        Raises `ConfigError` with the keyword, the config key or the row.
        """
        for name, instead in ((KEYWORD, f"the column {AGENT_NAME}"), (KWARGS, "columns")):
            if isinstance(params.get(name), list | tuple):
                raise ConfigError.of(
                    name, f"it is the same for all rows; to choose it for each row, give {instead}."
                )
        key, default, kwargs = KEYWORD, params.get(KEYWORD), params.get(KWARGS)
        if default is None and params.get("tools") is None:  # as `resolve` does
            key, default = DEFAULT_KEY, config.rollout.agent.default
        asked = {} if default is None else {key: default}
        for example in examples:
            loop = example.agent_name
            if loop is not None and loop not in asked.values():
                asked[f"row {example.number}: {AGENT_NAME}"] = loop
        if kwargs is not None and not asked:
            raise ConfigError.of(
                KWARGS, f"no agent loop runs; set {KEYWORD}, or give the rows {AGENT_NAME}."
            )
        if asked:
            place, loop = next(iter(asked.items()))
            try:
                check_params({**params, KEYWORD: loop}, config.rollout)
            except ConfigError as failure:
                if place == key:  # which the message names
                    raise
                raise ConfigError(f"{place}: {failure}", key=failure.key) from None
        names, versions = loop_versions(config, asked)
        found = cls(default, names.get(key), kwargs or {}, versions)
        found._check_columns(examples)
        return found

    def _check_columns(self, examples: Sequence[Example]) -> None:
        for example in examples if self.kwargs else ():
            both = self.kwargs.keys() & example.agent_kwargs
            if both and self.of_row(example) is not None:
                name = sorted(both)[0]
                raise ConfigError.of(
                    f"{KWARGS}.{name}",
                    f"row {example.number} has a column of that name; give it another name, or "
                    "leave one of the two out.",
                )

    def of_row(self, example: Example) -> object:
        """Return the loop of a row, as it was asked for; None: none."""
        return self.default if example.agent_name is None else example.agent_name

    def params(self, example: Example) -> dict[str, object]:
        """The keywords of `generate` for a row that a loop answers."""
        return {KEYWORD: self.of_row(example), KWARGS: {**self.kwargs, **example.agent_kwargs}}

    @property
    def about(self) -> dict[str, Any]:
        """The keywords by which a report and a file name them."""
        named = {} if self.default_name is None else {KEYWORD: self.default_name}
        return {**named, KWARGS: dict(self.kwargs)} if self.kwargs else named
