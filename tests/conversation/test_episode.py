"""One row of a conversation, without an engine."""

from __future__ import annotations

import asyncio
import copy

from _inf.conversation.episode import Episode
from _inf.conversation.recorder import Recorder
from _inf.request.template import Template
from _inf.types import Prompt, Request, RequestOutput, SamplingParams, TurnOptions
from tests.support.conversation_rules import rules
from tests.support.tiny import IM_END, VOCABULARY, tiny_model

TEMPLATE = """{% for m in messages %}{% if loop.index0 %}{{ mark }}{% endif %}{{ m['role'] }}:
{{ m['content'] }}<|im_end|>{% endfor %}assistant:"""


def test_next_turn_with_a_token_that_the_model_has_no_row_for_ends_its_row_only() -> None:
    """The engine would die of such a token, which a tokenizer has if it was extended later."""
    from transformers import AutoTokenizer

    tokenizer = copy.deepcopy(AutoTokenizer.from_pretrained(tiny_model()))
    tokenizer.add_tokens(["<|new|>"])
    tokenizer.chat_template = TEMPLATE
    end = tokenizer.convert_tokens_to_ids(IM_END)
    answer = RequestOutput([70, end], [-1.0, -1.0], [], "stop", end, 1, 2, 0, [(0, 0)])

    async def turn(request: Request) -> RequestOutput:
        return answer

    for mark, error in (
        ("<new>", None),
        ("<|new|>", f"the next turn has token {VOCABULARY}, outside the model's vocabulary"),
    ):
        template = Template(tokenizer, {"mark": mark}, eos_token_ids=[end])
        asked = Prompt([5], messages=[{"role": "user", "content": "hi"}])
        turns = TurnOptions(interaction_kwargs={"name": "x"})
        own = rules(template, tokenizer, vocabulary=VOCABULARY, eos=end)
        recorder = Recorder(turn, 0)
        row = Episode(asked, SamplingParams(max_tokens=50), turns, own, recorder)
        row.add_answer(asyncio.run(recorder.sample(row.next_request())))
        row.add_user_message("Go on.")
        assert row.error == error and row.over is (error is not None)
        assert (len(row.ids) > 2) is (error is None) and row.ids[:2] == [70, end]
