"""An agent loop of verl's that plays a guessing game; it runs unchanged on verl 0.6.1 to 0.9.1.

It uses what all these versions have: `generate` of the server manager with three arguments, the
tokenizer and the config. No id is rendered again: each prompt is the ids so far, and what the chat
template puts between an answer and the next one.
"""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register

DOUBT = "Are you sure?"
MAX_GUESSES = 2
MARK = "ANSWER"  # stands for an answer where the template is asked what follows it


@register("guessing_agent")
class GuessingLoop(AgentLoopBase):
    """Asks `DOUBT` after a wrong guess, at most `MAX_GUESSES` times in all.

    A row has `raw_prompt`, messages that ask for a number, and `number`, the right one. The reward
    is 1.0 if the last guess is it, else 0.0.
    """

    def __init__(self, *args: Any, doubt: str = DOUBT, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.doubt = doubt

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        messages = [dict(message) for message in kwargs["raw_prompt"]]
        longest = self.config.actor_rollout_ref.rollout.response_length
        request_id = uuid4().hex
        prompt_ids = self._ids(self._text(messages))
        ids: list[int] = []  # all that follows the prompt
        mask: list[int] = []
        logprobs: list[float] = []
        guesses: list[str] = []

        while len(ids) < longest:
            output = await self.server_manager.generate(
                request_id=request_id,
                prompt_ids=prompt_ids + ids,
                sampling_params=dict(sampling_params),
            )
            sampled = list(output.token_ids)
            ids += sampled
            mask += [1] * len(sampled)
            logprobs += output.log_probs or []
            numbers = re.findall(r"\d+", self.tokenizer.decode(sampled, skip_special_tokens=True))
            guesses.append(numbers[-1] if numbers else "")
            if guesses[-1] == str(kwargs["number"]) or len(guesses) == MAX_GUESSES:
                break
            between = self._after(messages, ended=sampled[-1:] == [self.tokenizer.eos_token_id])
            ids += between
            mask += [0] * len(between)
            logprobs += [0.0] * len(between) if output.log_probs else []

        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=ids[:longest],
            response_mask=mask[:longest],
            response_logprobs=logprobs[:longest] if logprobs else None,
            reward_score=float(guesses[-1] == str(kwargs["number"])),
            num_turns=len(messages) + 2 * len(guesses) - 1,
            metrics={},
            extra_fields={"request_id": request_id, "guesses": guesses},
        )

    def _after(self, messages: list[dict[str, Any]], *, ended: bool) -> list[int]:
        """Return the template's ids between an answer and the next one. ended: with its EOS."""
        answered = [*messages, {"role": "assistant", "content": MARK}]
        text = self._text([*answered, {"role": "user", "content": self.doubt}])
        after = text.rpartition(MARK)[2]
        return self._ids(after.removeprefix(self.tokenizer.eos_token) if ended else after)

    def _text(self, messages: list[dict[str, Any]]) -> str:
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]
