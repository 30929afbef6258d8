"""An engine whose model says what a test says, in token ids: thoughts and calls that the real
models of the tests never give. It is a client of a scripted server, so that nothing starts."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _inf.apps.rollouts.traces import Trace
from inf import InferenceEngine
from tests.support.scripted_server import Reply, scripted
from tests.support.scripted_tokens import IM_END, Vllm, connected
from tests.support.tiny import tiny_model

# Opens a thought with `thinking`, and shows those of the messages.
TEMPLATE = """{%- for tool in tools or [] -%}{{ tool | tojson }}
{% endfor -%}
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message['content'] }}
{%- for call in message.tool_calls or [] %}

<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if thinking %}<think>
{% endif %}{% endif -%}"""


SAID = "<think>\nThe capital?\n</think>\n\nIt is Paris."
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
BAD_CALL = '<tool_call>\n{"name": "look", "arguments": [1]}\n</tool_call>'
THOUGHT_CALL = f"<think>Look.</think>So:\n{CALL}"
LENGTHS = {"prompt_length": 3000, "response_length": 500, "max_model_len": 4000}


def sampled(trace: Trace) -> list[int]:
    pairs = zip(trace.token_ids, trace.response_mask, strict=True)
    return [token for token, bit in pairs if bit]


class Speaker(Vllm):
    """`says` what the next answers are, one text each; the last one is said again. prompts: what it
    was asked, as text. ends: the finish reason of answers within their limit."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.prompts: list[str] = []
        self._next: list[str] = []
        self.ends = "stop"

    def says(self, *texts: str, ends: str = "stop") -> None:
        self._next, self.prompts, self.ends = [*texts], [], ends

    def _completion(self, body: Any) -> Reply:
        if not self._next:  # at the start, which tries what the server has
            return super()._completion(body)
        self.prompts.append(self.tokenizer.decode(body["prompt"]))
        text = self._next.pop(0) if len(self._next) > 1 else self._next[0]
        self.answer = [*self.tokenizer(text)["input_ids"], IM_END]
        self.finish = self.ends if len(self.answer) <= body["max_tokens"] else "length"
        return super()._completion({**body, "structured_outputs": None})


@contextlib.contextmanager
def speaking(
    *, lengths: dict[str, int] = LENGTHS, **config: Any
) -> Iterator[tuple[Speaker, InferenceEngine]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    tokenizer.chat_template = TEMPLATE
    speaker = Speaker(tokenizer)
    with tempfile.TemporaryDirectory() as folder, scripted(speaker) as server:
        tokenizer.save_pretrained(folder)
        given = {"reasoning_parser": "qwen3", "tokenizer_path": str(Path(folder))} | config
        with connected(server, rollout=lengths, **given) as engine:
            yield speaker, engine
