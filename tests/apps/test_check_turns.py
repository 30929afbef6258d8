"""`inf check turns`: three paths of a conversation, their differences and causes. No engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from _inf.apps.check import turns_report
from _inf.apps.check.turns_conversation import Conversation, built_in, read_conversation
from _inf.apps.check.turns_differences import AFTER_EOS, BOS, BROKEN, THINKING, TOKENS
from _inf.apps.check.turns_paths import Paths
from _inf.apps.check.turns_report import TurnsReport, compare_paths
from _inf.config import Config
from _inf.conversation.episode import Episode
from _inf.conversation.recorder import Recorder
from _inf.conversation.rules import rules_for
from _inf.errors import InferenceError, PromptError
from _inf.tools.results import Executed
from _inf.turns import TurnOptions
from _inf.types import Prompt, Request, RequestOutput, SamplingParams, ToolCall
from tests.support.chat_templates import FAMILIES, Family, embedded_tokenizer, model_of
from tests.support.json_lines import write

WHOLE = built_in(lambda _: None)
SERVER = "--set rollout.name=openai --set base_url=http://x --set model_path=x"
TALK = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "Goodbye."},
]


@pytest.fixture(scope="module")
def embedded():
    return embedded_tokenizer()


def compared(embedded: Any, family: Any = "Qwen2.5", said: Any = None) -> TurnsReport:
    """Of these messages, or the built-in conversation."""
    model = model_of(embedded, FAMILIES[family] if isinstance(family, str) else family)
    return compare_paths(model, Config(), None if said is None else Conversation(said))


def causes(report: TurnsReport, path: int) -> list[str]:
    return [each.cause for each in report.paths[path].differences]


# ── The paths ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["Qwen2.5", "Qwen3", "Mistral Nemo", "GLM-4.5"])
def test_our_path_has_the_ids_of_a_row_of_the_conversation_loop(name, embedded):
    model = model_of(embedded, FAMILIES[name])
    paths = Paths(model, Config(), WHOLE)
    messages, answers = list(WHOLE.messages), list(paths.answers.values())
    rules = rules_for(WHOLE.tools, {}, Config(), model)
    assert rules.template is not None
    prompt = Prompt(rules.template.prompt(messages[:2], 0), messages=messages[:2])
    sampled = iter(answers)

    async def turn(request: Request) -> RequestOutput:
        ids = next(sampled)
        return RequestOutput(ids, [-1.0] * len(ids), "stop", ids[-1])

    recorder = Recorder(turn, 0)
    row = Episode(prompt, SamplingParams(max_tokens=999), TurnOptions(), rules, recorder)

    def answer() -> None:
        row.add_answer(asyncio.run(recorder.sample(row.next_request())))

    answer()
    # Whether a family's calls are found depends on its format; what is rendered does not.
    row.messages[2:] = [messages[2]]
    row.to_run = [ToolCall("multiply", {"a": 12, "b": 7}, "", 0, 0)]
    row.add_tool_results([Executed(text="84")])
    answer()
    row.add_user_message("And half of that?")
    answer()
    assert row.error is None
    assert row.prompt_ids + row.ids == [token for each in paths.ours() for token in each.ids]


@pytest.mark.verl
def test_template_that_keeps_all_it_wrote_is_equal_to_our_path(embedded):
    report = compared(embedded)
    ours, verl = report.paths
    assert ours.ids == report.whole and ours.equal and not verl.equal and not report.passed
    [lost] = [each for each in verl.differences if each.cause == AFTER_EOS]
    assert (lost.place, lost.expected, lost.got_ids) == ("after answer 4", "\n", [])
    assert lost.before.endswith("It is 84.<|im_end|>")
    assert verl.ids[lost.position - 1] == embedded.convert_tokens_to_ids("<|im_end|>")


def test_answer_of_thinking_alone_keeps_it(embedded):
    said = [TALK[0], {"role": "assistant", "content": "<think>\nHm.\n</think>"}, *TALK[2:]]
    report = compared(embedded, "DeepSeek-R1", said)
    tokenizer = model_of(embedded, FAMILIES["DeepSeek-R1"]).tokenizer
    assert tokenizer.decode(report.paths[0].ids).count("<think>\nHm.\n</think>") == 1
    assert causes(report, 0)[0] == THINKING


@pytest.mark.verl
def test_tokenizer_that_adds_a_bos_gives_verl_a_second_one(embedded):
    from tokenizers.processors import TemplateProcessing

    model = model_of(embedded, FAMILIES["Qwen2.5"])
    tokenizer, bos = model.tokenizer, embedded.convert_tokens_to_ids("<|im_start|>")
    adding = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", bos)])
    tokenizer.backend_tokenizer.post_processor = adding
    report = compare_paths(model, Config(), Conversation(TALK))
    assert causes(report, 0) == [] and causes(report, 1) == [BOS, AFTER_EOS]


def test_without_verl_its_line_says_so_and_ours_decides(embedded, monkeypatch):
    def missing() -> str:
        raise ImportError("No module named 'verl'")

    monkeypatch.setattr(turns_report, "builder_name", missing)
    report = compared(embedded)
    assert report.passed
    assert report.text().endswith("verl: not importable: No module named 'verl'")


def test_special_token_in_a_tools_text_is_broken_in_our_path_only(embedded):
    said = [*TALK[:2], {"role": "user", "content": "a <|im_end|> b"}, TALK[3]]
    report = compared(embedded, said=said)
    assert causes(report, 0) == [BROKEN] and BROKEN not in causes(report, 1)


def test_text_that_is_cut_into_other_tokens_as_a_whole_is_named_so(embedded):
    template = (
        "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<|im_end|>"
        "{% else %}{{ '\n\n' }}{% endif %}{% endfor %}"
    )
    assert causes(compared(embedded, Family(template), TALK[:2]), 0) == [TOKENS]


def test_built_in_conversation_shrinks_to_what_the_template_renders(embedded):
    report = compared(embedded, "DeepSeek-R1")
    assert report.roles == ["system", "user", "assistant", "user", "assistant"]
    assert 'can only concatenate str (not "dict") to str' in report.left_out
    with pytest.raises(PromptError, match="shorter ones; give a conversation"):
        compared(embedded, Family("{{ raise_exception('no') }}"))


# ── A file, and the command ──────────────────────────────────────────────────────────────────────


def test_wrong_file_is_refused_by_its_name():
    for content, message in (
        ("{", "is not JSON"),
        (TALK[:1], "no message is an assistant's"),
        ([{"role": "assistant"}, 3], "is neither a list of messages nor"),
        (TALK[1:], "message 0 is an assistant's; begin with"),
        ({"messages": TALK, "tools": [{"type": "x"}]}, "tool"),
    ):
        with pytest.raises(InferenceError, match="talk.json") as refused:
            read_conversation(write(Path("talk.json"), [content]))
        assert message in str(refused.value)
    with pytest.raises(PromptError, match="none.json cannot be read: No such file"):
        read_conversation(Path("none.json"))


@pytest.mark.verl
def test_command_reports_a_file_by_a_template_of_ones_own(command):
    asked = ("check", "turns", write(Path("talk.json"), [TALK]))
    text = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    Path("own").write_text(text + "{% if add_generation_prompt %}<|im_start|>{% endif %}")
    code, out, _ = command(*asked, "--template", "own")
    assert out.startswith("conversation: user, assistant, user, assistant\nthe template whole: ")
    assert code == 0 and out.count(" ids, equal") == 2
    code, out, _ = command(*asked, "--json")
    report = json.loads(out)
    [lost] = report["paths"][1]["differences"]
    assert (code, report["passed"], lost["cause"], lost["expected"]) == (1, False, AFTER_EOS, "\n")
    assert [path["ids"] == report["whole"] for path in report["paths"]] == [True, False]


def test_command_refuses_what_it_cannot_read(command, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # closed
    for words, said in (
        ("--template no.jinja", "--template: no.jinja cannot be read"),
        (SERVER, "tokenizer_path: the server has the tokenizer"),
        (f"{SERVER} --set tokenizer_path=.", "tokenizer_path: Transformers cannot"),
        (f"{SERVER} --set tokenizer_path=nobody/nothing", "tokenizer_path: there is no folder at"),
    ):
        code, _, err = command("check", "turns", *words.split())
        assert code == 2 and err.startswith(f"inf: {said}") and "Retrying" not in err
