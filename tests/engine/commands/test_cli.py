"""The command `inf`, in this process: what goes to stdout and stderr, and its exit codes.

Most of it runs on the session's tiny engine, which the command is handed in place of a new one.
"""

from __future__ import annotations

import contextlib
import json
import signal
from typing import Any

import pytest

import inf
from inf import GenerationOutput
from tests.support.scripts import (
    GONE_SECONDS,
    INF,
    START_SECONDS,
    alive,
    command_line,
    script,
    until,
)
from tests.support.tiny import tiny_model


def one_line(text: str) -> str:
    """A message for people: a single line that names the program."""
    assert text.startswith("inf: ")
    assert text.count("\n") == 1 and text.endswith("\n")
    return text


# ─── Answers ───


def test_every_parameter_reaches_generate(command, monkeypatch):
    calls: list[dict[str, Any]] = []

    class Recorder:
        def generate(self, prompt: str, **params: Any) -> GenerationOutput:
            calls.append({"prompt": prompt, **params})
            return GenerationOutput()

    engine = contextlib.nullcontext(Recorder())
    monkeypatch.setattr(inf, "InferenceEngine", lambda *args, **kwargs: engine)
    given: dict[str, Any] = {"temperature": 0.5, "top_k": -1, "n": 3, "seed": 9, "timeout": 2.5}
    given |= {"json_schema": '{"type": "null"}', "truncate_prompt": "left", "max_tokens": 5}
    words = [f"--{name}={value}" for name, value in given.items()]
    words += "--stop=x --stop=y --stop_token_ids=7 --do_sample --no_skip_special_tokens".split()
    words += ['--logit_bias={"5": 1.5}', '--chat_template_kwargs={"enable_thinking": false}']
    given |= {"stop": ["x", "y"], "stop_token_ids": [7], "do_sample": True}
    given |= {"skip_special_tokens": False, "logit_bias": {"5": 1.5}}
    given |= {"chat_template_kwargs": {"enable_thinking": False}}
    assert command(*words, "Hello")[0] == 0
    assert calls == [{"prompt": "Hello", **given}]


def test_rows_are_printed_in_order_one_json_object_each(on_tiny, tiny):
    code, out, err = on_tiny("--n", "2", "--temperature", "0", "--max-tokens", "5", "--json", "Hi")
    with pytest.warns(UserWarning, match="all the same"):
        wanted = tiny.generate("Hi", n=2, temperature=0, max_tokens=5)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert one_line(err).startswith("inf: n: the 2 samples of prompt 0 are all the same")
    assert [row["token_ids"] for row in rows] == wanted.token_ids
    assert [row["sample_index"] for row in rows] == [0, 1]
    assert [set(row) for row in rows] == [set(wanted[0].to_dict())] * 2
    assert len(out) < 4000 and tiny.tokenizer.pad_token_id not in rows[0]["token_ids"]


def test_versions_are_the_packages(command, monkeypatch):
    versions = {"torch": "2.9.1", "transformers": "5.1.0"}
    monkeypatch.setattr("_inf.apps.cli.installed", lambda package: versions.get(package, ""))
    stack = "verl (not installed), sglang (not installed), torch 2.9.1, transformers 5.1.0"
    assert command("--version") == (0, f"inf {inf.__version__} with {stack}\n", "")


# ─── Calls that are wrong: exit code 2 ───


def test_config_model_or_prompt_that_cannot_be_used_is_one_line(on_tiny, tiny, monkeypatch):
    code, out, err = on_tiny("")
    assert (code, out) == (2, "") and one_line(err).startswith("inf: prompt 0 is")
    monkeypatch.undo()
    for words, says in ((["-c", "no/such.yaml"], "no such config file"), (["-m", "/no: x"], "/no")):
        code, out, err = on_tiny(*words, "Hello")
        assert (code, out) == (2, "") and says in one_line(err)


# ─── Work that fails ───


@pytest.mark.verl
def test_ctrl_c_while_the_engine_starts_exits_130_and_leaves_no_child(tmp_path):
    arguments = ["--set", f"model_path={tiny_model()}", "Hello"]
    with script(INF, tmp_path, arguments=arguments) as run:

        def starts() -> bool:
            return any("spawn_main" in command_line(p) for p in alive(run.meet()))

        assert until(starts, START_SECONDS)
        run.send_group(signal.SIGINT)
        assert run.exit_code() == 130
        assert until(lambda: not alive(run.family), GONE_SECONDS)
        assert (run.out, run.err) == ("", "")
