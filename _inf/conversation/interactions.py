"""Loads verl's interactions from their file, and runs one of them for one row.

In verl 0.6.1 (`workers/rollout/sglang_rollout/sglang_rollout.py`) an exception in an interaction
cancels the whole batch, interactions are never finalized, and nothing has a timeout. Here a failure
ends only its row and sets the row's `error`. verl is imported when a file is loaded.
"""

from __future__ import annotations

from typing import Any

import yaml

from _inf.conversation.episode import Episode
from _inf.conversation.tool_lifecycle import noted
from _inf.errors import ConfigError, shown
from _inf.tools.execution import bounded
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
        raise ConfigError(
            f"{PATH_KEY}: {path} cannot be loaded: {type(failure).__name__}: {failure}"
        ) from failure


class RowInteraction:
    """Starts an interaction for one row, asks it for user messages, and finalizes it."""

    def __init__(self, name: str, interaction: Any, episode: Episode) -> None:
        self._name = name
        self._interaction = interaction
        self._episode = episode
        self._started = False

    async def start(self) -> None:
        """Start the interaction; a failure ends the row before its first turn."""
        episode, self._started = self._episode, True
        started = self._interaction.start_interaction(episode.name, **episode.interaction_kwargs)
        await bounded(started, episode.rules.tool_timeout)

    async def respond(self) -> tuple[bool, str, float | None]:
        """Return whether the conversation is over, the user's next message, and its reward."""
        episode = self._episode
        messages = [{"role": m["role"], "content": m["content"]} for m in episode.messages]
        response = await noted(
            episode,
            self._name,
            self._interaction.generate_response,
            episode.name,
            messages,
            **episode.interaction_kwargs,
        )
        done, content, reward, _ = response or (True, "", None, {})
        return done, content, reward

    async def finalize(self) -> None:
        """Finalize it if it was started and overrides verl's method, which takes no instance."""
        from verl.interactions.base import BaseInteraction

        method = type(self._interaction).finalize_interaction
        if self._started and method is not BaseInteraction.finalize_interaction:
            finalize = self._interaction.finalize_interaction
            await noted(self._episode, self._name, finalize, self._episode.name)
