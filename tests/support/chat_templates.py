"""Chat templates in the ways of the model families that verl's users train, for `inf check turns`.

They are our own and shorter: what each writes about tools in the system message is not its
family's text. Each was compared with its family's own template (2026-11-23): the built-in
conversation differs at the same places, from the same causes. SmolLM2's is the embedded model's
own. The ids are those of the embedded model's tokenizer, to which the family's special tokens were
added.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections import Counter
from typing import Any

from _inf.apps.check.turns_differences import CAUSES
from _inf.apps.check.turns_report import PathReport, TurnsReport, compare_paths
from _inf.backends.model_info import limits_of
from _inf.config import Config
from _inf.models.resolve import resolve_model
from _inf.types import ModelInfo


@dataclasses.dataclass(frozen=True)
class Family:
    """template: None is that of the embedded model. tokens: its special ones; eos: those that end
    an answer. bos: written by the template."""

    template: str | None
    tokens: tuple[str, ...] = ()
    eos: tuple[str, ...] = ("<|im_end|>",)
    bos: str | None = None


def model_of(tokenizer: Any, family: Family) -> ModelInfo:
    """A copy of the tokenizer with the family's template and special tokens."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": list(family.tokens)})
    tokenizer.eos_token = family.eos[0]
    if family.bos:
        tokenizer.bos_token = family.bos
    if family.template:
        tokenizer.chat_template = family.template
    eos = frozenset(map(tokenizer.convert_tokens_to_ids, family.eos))
    return ModelInfo(tokenizer, eos, limits_of(Config(), len(tokenizer)))


def report_on(tokenizer: Any, family: Family) -> TurnsReport:
    """Check the built-in conversation."""
    return compare_paths(model_of(tokenizer, family), Config(), None)


def embedded_tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve_model(None))


QWEN2_5 = """\
<|im_start|>system
{% if messages[0].role == "system" %}{{ messages[0].content }}{% else %}You are Qwen.{% endif %}
{% for tool in tools or [] %}

{{ tool | tojson }}{% endfor %}<|im_end|>
{% for message in messages if message.role != "system" %}
<|im_start|>{{ "user" if message.role == "tool" else message.role }}
{% if message.role == "tool" %}
<tool_response>
{{ message.content }}
</tool_response>
{%- else %}
{{ message.content }}
{%- for call in message.tool_calls or [] %}

<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

QWEN3 = """\
{% set ns = namespace(question=0) %}
{% for message in messages if message.role == "user" %}
{% set ns.question = messages.index(message) %}
{% endfor %}
<|im_start|>system
{% if messages[0].role == "system" %}{{ messages[0].content }}{% endif %}
{% for tool in tools or [] %}

{{ tool | tojson }}{% endfor %}<|im_end|>
{% for message in messages %}{% if message.role == "tool" %}
<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role == "assistant" %}
{% set thought, _, text = message.content.rpartition("</think>") %}
<|im_start|>assistant
{% if loop.index0 > ns.question and (thought or loop.last) %}
<think>
{{ thought.replace("<think>", "").strip() }}
</think>

{% endif %}
{{ text.lstrip() }}
{%- for call in message.tool_calls or [] %}

<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == "user" %}
<|im_start|>user
{{ message.content }}<|im_end|>
{% endif %}{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

MISTRAL_NEMO = """\
{% set ns = namespace(question=0, system="") %}
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == "user" %}{% set ns.question = loop.index0 %}{% endif %}
{%- if message.role == "system" %}{% set ns.system = message.content + "\n\n" %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == "user" %}
{%- if tools and loop.index0 == ns.question -%}
[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]
{%- endif -%}
[INST]{{ ns.system if loop.last else "" }}{{ message.content }}[/INST]
{%- elif message.role == "tool" -%}
{% if message.tool_call_id | length != 9 %}{{ raise_exception("nine characters") }}{% endif %}
[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]
{%- elif message.role == "assistant" and message.tool_calls -%}
[TOOL_CALLS]{% for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}</s>
{%- elif message.role == "assistant" -%}
{{ message.content }}</s>
{%- endif %}{%- endfor %}"""

GLM4_5 = """\
{% set ns = namespace(question=0) %}
{% for message in messages if message.role == "user" %}
{% set ns.question = messages.index(message) %}
{% endfor %}
[gMASK]<sop>
{%- for tool in tools or [] %}
<|system|>
{{ tool | tojson }}{% endfor %}
{%- for message in messages %}
{%- if message.role == "assistant" %}
{%- set thought, _, text = message.content.rpartition("</think>") -%}
<|assistant|>
<think>
{%- if loop.index0 > ns.question %}{{ thought.replace("<think>", "").strip() }}{% endif -%}
</think>
{{ text.strip() }}
{%- for call in message.tool_calls or [] %}

<tool_call>{{ call.function.name }}
{%- for name, value in call.function.arguments.items() %}

<arg_key>{{ name }}</arg_key>
<arg_value>{{ value | tojson }}</arg_value>
{%- endfor %}

</tool_call>
{%- endfor %}
{%- elif message.role == "tool" -%}
<|observation|>
<tool_response>
{{ message.content }}
</tool_response>
{%- else -%}
<|{{ message.role }}|>
{{ message.content }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt -%}<|assistant|>{% endif %}"""

DEEPSEEK_R1 = """\
{{- bos_token }}
{%- for message in messages if message.role == "system" %}{{ message.content }}{% endfor %}
{%- for message in messages %}
{%- if message.role == "user" -%}
<｜User｜>{{ message.content }}
{%- elif message.role == "assistant" -%}
<｜Assistant｜>{{ message.content.split("</think>")[-1] }}
{%- for call in message.tool_calls or [] -%}
{{ "\n```json\n" + call.function.arguments + "\n```" }}
{%- endfor -%}
<｜end▁of▁sentence｜>
{%- endif %}{%- endfor %}
{%- if add_generation_prompt -%}<｜Assistant｜><think>{{ "\n" }}{% endif %}"""

PHI3_5 = """\
{% for message in messages %}
{% if message.role in ["system", "user", "assistant"] %}
<|{{ message.role }}|>
{{ message.content }}<|end|>
{% endif %}{% endfor %}
{% if add_generation_prompt %}<|assistant|>
{% else %}<|endoftext|>{% endif %}"""


FAMILIES = {
    "SmolLM2": Family(None),
    "Qwen2.5": Family(QWEN2_5),
    "Qwen3": Family(QWEN3),
    "Mistral Nemo": Family(
        MISTRAL_NEMO,
        tuple("<s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS]".split())
        + ("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ("</s>",),
        "<s>",
    ),
    "GLM-4.5": Family(
        GLM4_5,
        ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        ("<|endoftext|>", "<|user|>", "<|observation|>"),
    ),
    "DeepSeek-R1": Family(
        DEEPSEEK_R1,
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
        ("<｜end▁of▁sentence｜>",),
        "<｜begin▁of▁sentence｜>",
    ),
    "Phi-3.5": Family(
        PHI3_5, ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>"), ("<|endoftext|>", "<|end|>")
    ),
}


def family_table() -> str:
    """A row for each family: the differences of both paths from the template whole, by cause."""
    tokenizer, lines = embedded_tokenizer(), []
    for name, family in FAMILIES.items():
        report = report_on(tokenizer, family)
        if not lines:
            paths = " | ".join(path.name for path in report.paths)
            lines = [f"| chat template | conversation | {paths} |", "|---|---|---|---|"]
        lacks = re.findall(r"without ([\w ]+):", report.left_out)
        cells = [name, f"without {lacks[0]}" if lacks else "whole", *map(_cell, report.paths)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(path: PathReport) -> str:
    if path.failure:
        return path.failure
    counts = Counter(each.cause for each in path.differences)
    return ", ".join(f"{cause} ({count})" for cause, count in counts.items()) or "equal"


def example() -> str:
    """The report on one family, as the command prints it."""
    text = report_on(embedded_tokenizer(), FAMILIES["Qwen3"]).text()
    return f"```text\n$ inf check turns --template qwen3.jinja\n{text}\n```"


def cause_table() -> str:
    lines = ["| cause | it means |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {text} |" for name, text in CAUSES.items())])
