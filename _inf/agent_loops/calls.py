"""The agent loops of one engine, and the rows of its calls that they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from _inf.agent_loops.loading import AgentLoop, KnownLoops
from _inf.agent_loops.objects import LoopObjects
from _inf.agent_loops.row import AgentRow
from _inf.config import Config
from _inf.errors import ConfigError, InferenceError
from _inf.request.sampling import Sampling
from _inf.runtime.loop_thread import LoopThread
from _inf.types import ModelInfo, Prompt, Turn


class AgentLoops:
    """Knows the loops of names, and runs rows on a thread that an engine's calls share."""

    def __init__(self, config: Config) -> None:
        self.config, self._known = config, KnownLoops(config)
        self._objects: LoopObjects | None = None
        self.thread = LoopThread("inf-agent-loops")

    def of_call(self, sampling: Sampling) -> Sequence[AgentLoop]:
        """Return the loop of each prompt; none if the call asks for none."""
        asked = [turns.agent_loop for turns in sampling.turns]
        if not any(asked):
            if sampling.asks("agent_kwargs"):
                raise ConfigError.of("agent_kwargs", "no agent loop runs; set agent_loop.")
            return []
        if None in asked:
            raise ConfigError.of(
                "agent_loop",
                f"prompt {asked.index(None)} has none, and others have; in one call all prompts "
                "have one, or none has.",
            )
        if self.thread.is_current:
            raise InferenceError(
                "An agent loop runs on the thread of agent loops, where generate() cannot wait "
                "for another one: await agenerate() there."
            )
        found = {id(each): self._known.find(each) for each in asked}
        return [found[id(each)] for each in asked]

    def rows(
        self, loops: Sequence[AgentLoop], prompts: Sequence[Prompt], sampling: Sampling
    ) -> list[AgentRow]:
        """Return one row per sample; the `n` samples of a prompt are next to each other."""
        rollout, n = self.config.rollout, sampling.n
        widths = rollout.prompt_length, rollout.response_length
        return [
            AgentRow(
                loops[row // n],
                prompts[row // n],
                params,
                sampling.turns[row // n].agent_kwargs,
                sampling.chat_template_kwargs,
                widths,
            )
            for row, params in enumerate(sampling.rows())
        ]

    async def prepare(self, rows: Sequence[AgentRow], turn: Turn, model: ModelInfo) -> None:
        """Make the objects of all rows, before the first request. Raises `ConfigError`."""
        if self._objects is None:
            self._objects = LoopObjects(self.config, model)
        await asyncio.gather(*(row.prepare(self._objects, self.thread, turn) for row in rows))
