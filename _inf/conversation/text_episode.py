"""A row's conversation on a server that takes and gives text."""

from __future__ import annotations

import dataclasses

from _inf.conversation.episode import Episode
from _inf.types import Request, RequestOutput


class TextEpisode(Episode):
    """One row while it runs on a server that takes and gives text: its transcript has no ids, the
    lengths of tensors do not apply, and `mask` only counts: a 1 per sampled token."""

    def next_request(self) -> Request:
        schemas = [tool.schema for tool in self.rules.tools.values()]
        request = super().next_request()
        return dataclasses.replace(request, messages=list(self.messages), tools=schemas)

    def _tensor_tokens_left(self) -> dict[str, int]:
        return {}

    def _keep_sampled(self, answer: RequestOutput) -> None:
        self.mask += [1] * answer.completion_tokens

    def _append_template_tokens(self, index: int) -> None:
        """Nothing: the server renders."""

    def render_prompt(self) -> None:
        """Nothing: the server renders."""

    def output(self, weight_version: int) -> RequestOutput:
        sampled, self.mask = len(self.mask), []
        return dataclasses.replace(
            super().output(weight_version),
            text=self.outputs[-1].text if self.outputs else "",
            prompt_tokens=self.outputs[0].prompt_tokens if self.outputs else 0,
            completion_tokens=sampled,
        )
