"""Loads verl's interactions from their file; verl is imported then."""

from __future__ import annotations

from typing import Any

import yaml

from _inf.errors import ConfigError, shown
from _inf.tools.user_module import import_beside

PATH_KEY = "rollout.multi_turn.interaction_config_path"


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
                raise ConfigError(
                    f"{PATH_KEY}: {path}: interaction[{index}].class_name: {shown(name)} is not "
                    "the dotted path of a class, such as "
                    "verl.interactions.gsm8k_interaction.Gsm8kInteraction."
                )
            import_beside(path, name.rpartition(".")[0])
        return dict(initialize_interactions_from_config(path))
    except ConfigError:
        raise
    except Exception as failure:
        raise ConfigError.of(
            PATH_KEY, f"{path} cannot be loaded: {type(failure).__name__}: {failure}"
        ) from failure
