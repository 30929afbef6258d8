"""The agent loops of one engine, and which of them answers the rows of a call."""

from __future__ import annotations

import threading

from _inf.config import Config
from _inf.conversation.agent_loops.loading import KnownLoops
from _inf.conversation.agent_loops.objects import LoopObjects
from _inf.conversation.agent_loops.row import AskedLoop
from _inf.errors import ConfigError, InferenceError
from _inf.request.sampling import Sampling
from _inf.runtime.loop_thread import LoopThread
from _inf.types import ModelInfo


class AgentLoops:
    """Finds loops by their names; they run on a thread that an engine's calls share."""

    def __init__(self, config: Config) -> None:
        self._known = KnownLoops(config)
        self._objects: LoopObjects | None = None
        self._lock = threading.Lock()
        self.thread = LoopThread("inf-agent-loops")

    def of_call(self, sampling: Sampling, config: Config, model: ModelInfo) -> list[AskedLoop]:
        """Return the loop of each prompt of a call that asks for some."""
        asked = [turns.agent_loop for turns in sampling.turns]
        if None in asked:
            raise ConfigError.of(
                "agent_loop",
                f"prompt {asked.index(None)} has none, and others have one; in one call, give one "
                "to all prompts or to none.",
            )
        if self.thread.is_current:
            raise InferenceError(
                "All agent loops share one thread, which generate() would block: await "
                "agenerate() there."
            )
        found = {id(loop): self._known.find(loop) for loop in asked}
        with self._lock:
            self._objects = self._objects or LoopObjects(config, model)
        template = sampling.chat_template_kwargs
        return [
            AskedLoop(found[id(loop)], turns.agent_kwargs, template, self._objects, self.thread)
            for loop, turns in zip(asked, sampling.turns, strict=True)
        ]
