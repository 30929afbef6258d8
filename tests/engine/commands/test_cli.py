"""The command `inf`, in this process: what goes to stdout and stderr, and its exit codes.

Most of it runs on the session's tiny engine, which the command is handed in place of a new one.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import inf
from inf import GenerationOutput, InferenceEngine
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

Ran = tuple[int, str, str]
Command = Callable[..., Ran]


def one_line(text: str) -> str:
    """A message for people: a single line that names the program."""
    assert text.startswith("inf: ")
    assert text.count("\n") == 1 and text.endswith("\n")
    return text


# ─── Answers ───


@pytest.mark.parametrize("option", ["--max-tokens", "--max_tokens"])
def test_parameters_have_their_python_name_and_the_shells(
    option: str, on_tiny: Command, tiny: InferenceEngine
) -> None:
    code, out, err = on_tiny(option, "5", "--temperature", "0", "Hello")
    wanted = tiny.generate("Hello", max_tokens=5, temperature=0)
    assert (code, out, err) == (0, f"{wanted.completions[0]}\n", "")


def test_every_parameter_reaches_generate(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []

    class Recorder:
        def generate(self, prompt: str, **params: Any) -> GenerationOutput:
            calls.append({"prompt": prompt, **params})
            return GenerationOutput()

    monkeypatch.setattr(
        inf, "InferenceEngine", lambda *args, **kwargs: contextlib.nullcontext(Recorder())
    )
    given: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.1,
        "max_tokens": 5,
        "n": 3,
        "do_sample": True,
        "min_tokens": 2,
        "stop": ["x", "y"],
        "stop_token_ids": [7, 8],
        "seed": 9,
        "repetition_penalty": 1.5,
        "json_schema": '{"type": "null"}',
        "presence_penalty": -1.5,
        "frequency_penalty": 0.25,
        "logit_bias": {"5": 1.5},
        "num_beams": 1,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "chat_template_kwargs": {"enable_thinking": False},
        "truncate_prompt": "left",
        "timeout": 2.5,
    }
    numbers = [f"--{name}={value}" for name, value in given.items() if type(value) in (int, float)]
    others = ["--do_sample", "--ignore_eos", "--no_skip_special_tokens"]
    others += ["--stop_token_ids=7", "--stop_token_ids=8"]
    others += ["--stop=x", "--stop=y", '--json_schema={"type": "null"}']
    others += ['--chat_template_kwargs={"enable_thinking": false}', "--truncate_prompt=left"]
    others += ['--logit_bias={"5": 1.5}']
    assert command(*numbers, *others, "Hello")[0] == 0
    assert calls == [{"prompt": "Hello", **given}]
    assert command("--regex=a+", "Hello")[0] == 0
    assert calls[1] == {"prompt": "Hello", "regex": "a+"}


def test_rows_are_printed_in_order_one_json_object_each(
    on_tiny: Command, tiny: InferenceEngine
) -> None:
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


def test_prompt_that_looks_like_an_option_comes_after_two_dashes(
    on_tiny: Command, tiny: InferenceEngine
) -> None:
    code, out, _ = on_tiny("--temperature", "0", "--max-tokens", "5", "--", "--n")
    wanted = tiny.generate("--n", max_tokens=5, temperature=0)
    assert (code, out) == (0, f"{wanted.completions[0]}\n")


def test_version_is_the_packages(command: Command) -> None:
    assert command("--version") == (0, f"inf {inf.__version__}\n", "")


# ─── Calls that are wrong: exit code 2 ───


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-c", "no/such.yaml", "Hello"], ["no/such.yaml", "no such config file"]),
        (["--set", "model_path=/no/such/model", "Hello"], ["model_path", "/no/such/model"]),
        (["Hello", "--model", "/no/such/model"], ["model_path", "/no/such/model"]),
        (["Hello", "-m", "/no: such"], ["model_path", "/no: such"]),
        ([""], ["prompt 0", "empty"]),
    ],
)
def test_config_model_or_prompt_that_cannot_be_used_is_one_line(
    arguments: list[str], words: list[str], command: Command, request: pytest.FixtureRequest
) -> None:
    if not {"-c", "--set", "--model", "-m"} & {*arguments}:  # before any engine
        request.getfixturevalue("on_tiny")
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert all(word in one_line(err) for word in words)


# ─── Work that fails ───


def test_timeout_exits_1_with_one_line(on_tiny: Command) -> None:
    code, out, err = on_tiny("--timeout", "0.01", "--max-tokens", "120", "--ignore-eos", "Hello")
    assert (code, out) == (1, "")
    assert "timeout" in one_line(err)


@pytest.mark.verl
def test_ctrl_c_while_the_engine_starts_exits_130_and_leaves_no_child(tmp_path: Path) -> None:
    arguments = ["--set", f"model_path={tiny_model()}", "Hello"]
    with script(INF, tmp_path, arguments=arguments) as run:

        def starts() -> bool:
            return any("spawn_main" in command_line(p) for p in alive(run.meet()))

        assert until(starts, START_SECONDS)
        run.send_group(signal.SIGINT)
        assert run.exit_code() == 130
        assert until(lambda: not alive(run.family), GONE_SECONDS)
        assert (run.out, run.err) == ("", "")
