"""Loads the tools and interactions that a config names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from _inf.config import MultiTurn
from _inf.errors import ConfigError, shown
from _inf.runtime import quiet
from _inf.tools.loading import close_tools, import_beside, load_tools
from _inf.types import Tool

PATH_KEY = "rollout.multi_turn.interaction_config_path"


@dataclasses.dataclass(frozen=True)
class ConfiguredTools:
    """The tools and interactions of a config's files, loaded once for an engine."""

    tools: Sequence[Tool]
    interactions: Mapping[str, Any]

    @classmethod
    def load(cls, turns: MultiTurn) -> ConfiguredTools:
        with quiet.third_party():
            tools = load_tools(turns.tool_config_path) if turns.tool_config_path else []
            try:
                return cls(tools, load_interactions(turns.interaction_config_path))
            except BaseException:
                close_tools(tools)
                raise

    def close(self) -> None:
        """End the MCP servers of its tools; a call that follows starts them again."""
        close_tools(self.tools)


def load_interactions(path: str | None) -> dict[str, Any]:
    """Load verl's `BaseInteraction`s by name. Their modules may be beside the file; verl itself
    uses only modules already imported (`interactions/utils/interaction_registry.py`)."""
    if path is None:
        return {}
    from verl.interactions.utils.interaction_registry import initialize_interactions_from_config

    try:
        with open(path, encoding="utf-8") as file:
            entries = yaml.safe_load(file)["interaction"]
        for index, entry in enumerate(entries):
            name = entry["class_name"]
            if "." not in name.strip("."):
                raise ConfigError.of(
                    PATH_KEY,
                    f"{path}: interaction[{index}].class_name: {shown(name)} is not "
                    "the dotted path of a class, such as "
                    "verl.interactions.gsm8k_interaction.Gsm8kInteraction.",
                )
            import_beside(path, name.rpartition(".")[0])
        return dict(initialize_interactions_from_config(path))
    except ConfigError:
        raise
    except Exception as failure:
        raise ConfigError.of(
            PATH_KEY, f"{path} cannot be loaded: {type(failure).__name__}: {failure}"
        ) from failure
