"""verl's interactions: loaded from the file that a config names, and one of them as the user of a
row's conversation."""

from __future__ import annotations

import yaml

from _inf.conversation.episode import Episode
from _inf.conversation.hooks import Hook, Reply
from _inf.conversation.rules import DEFAULT_INTERACTION
from _inf.errors import ConfigError, ToolError, shown
from _inf.tools.loading import import_beside
from _inf.tools.results import copied

PATH_KEY = "rollout.multi_turn.interaction_config_path"


def load_interactions(path: str) -> dict[str, object]:
    """Load verl's `BaseInteraction`s by name. Their modules may be in the file's folder; verl
    itself uses only modules already imported (`interactions/utils/interaction_registry.py`)."""
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


class Interaction(Hook):
    """The interaction of one row, which answers the model as a user would."""

    replies = True

    def __init__(self, episode: Episode) -> None:
        super().__init__(episode)
        self._kwargs = episode.turns.interaction_kwargs
        self._name = self._kwargs.get("name", DEFAULT_INTERACTION)
        self._part = episode.rules.interactions[self._name]
        self._started = False

    async def start(self) -> None:
        self._kwargs = copied(dict(self._kwargs))
        self._started = True
        await self.call_method(self._part, "start_interaction", **self._kwargs)

    async def reply(self) -> Reply:
        messages = [{"role": m["role"], "content": m["content"]} for m in self.episode.messages]
        work = self.call_method(self._part, "generate_response", messages, **self._kwargs)
        response = await self.attempt(self._name, work)
        if response is None:  # it failed
            return Reply(True, "", None)
        try:
            done, content, reward, _ = response
            if not (done or isinstance(content, str)):
                raise TypeError
        except (TypeError, ValueError):
            returned = f"{self._name}: generate_response() returned {shown(response)}"
            wanted = "(whether it ends, the user's next message, reward, metrics)"
            raise ToolError(f"{returned}; it must be {wanted}.") from None
        return Reply(bool(done), content, reward)

    async def end(self) -> None:
        """Finalize the interaction if it was started and overrides verl's method, which takes no
        instance."""
        method = getattr(type(self._part), "finalize_interaction", None)
        if not self._started or method is None:
            return
        from verl.interactions.base import BaseInteraction

        if method is not BaseInteraction.finalize_interaction:
            work = self.call_method(self._part, "finalize_interaction")
            await self.attempt(self._name, work)
