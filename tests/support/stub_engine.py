"""An engine for tests of commands: it answers at once, and nothing starts."""

from __future__ import annotations

from typing import Any, TypeVar

from _inf.config import load_config
from inf import GenerationOutput, GenerationRow

Self = TypeVar("Self", bound="StubEngine")


class StubEngine:
    """A test's own class says in `answer` what each prompt gets. Its counts are of the class."""

    config = load_config(None, {"rollout": {"max_num_seqs": 4}})  # so a batch line is a call
    tokenizer = None
    on_cpu = True
    starts = asked = 0
    finish_reason = "stop"

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def generate(self, prompts: list[Any], **params: Any) -> GenerationOutput:
        return GenerationOutput()

    async def agenerate(self, prompts: Any, **params: Any) -> GenerationOutput:
        one = not isinstance(prompts, list) or isinstance(prompts[0], dict)  # or a conversation
        listed = [prompts] if one else prompts
        return GenerationOutput([await self._row(prompt) for prompt in listed])

    async def _row(self, prompt: Any) -> GenerationRow:
        type(self).asked += 1
        text = await self.answer(prompt, self.asked)
        counts = {f"{name}_tokens": 1 for name in ("prompt", "completion", "cached")}
        # As of a server without ids.
        return GenerationRow(text, None, None, finish_reason=self.finish_reason, **counts)

    async def answer(self, prompt: Any, number: int) -> str:
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        type(self).starts += 1
        return self

    def __exit__(self, *exc_info: object) -> None: ...
