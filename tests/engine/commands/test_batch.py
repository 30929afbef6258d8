"""`inf batch` on a real engine: answers as `generate`'s, and after every death the same file.

Order, resume at each byte and flat memory are shown with a stub, in `apps/test_batch_run.py`.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import inf
from _inf.apps.cli import main
from inf import InferenceEngine
from tests.support.scripts import START_SECONDS, Script, alive, descendants, script, until

Ran = tuple[int, str, str]
ROWS = 192
PROGRAM = """
import sys
from _inf.apps.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def batch(
    tiny: InferenceEngine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """`inf batch` on the session's engine: exit code, stdout, stderr."""
    monkeypatch.setattr(
        inf, "InferenceEngine", lambda *args, **kwargs: contextlib.nullcontext(tiny)
    )

    def run(*arguments: Any) -> Ran:
        capfd.readouterr()
        return (main(["batch", *map(str, arguments)]), *capfd.readouterr())

    return run


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text(
        "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    )
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_three_forms_are_answered_as_generate_answers_and_bad_lines_are_named(
    batch: Callable[..., Ran], tiny: InferenceEngine, tmp_path: Path
) -> None:
    talk = [{"role": "user", "content": "What is the capital?"}]
    lines = [
        {"prompt": "Hello", "id": 1},
        {"messages": talk},
        {"custom_id": "a", "body": {"messages": talk, "max_tokens": 3, "temperature": 0}},
        "not JSON",
        {"prompt": "word " * 600},
        {"custom_id": "b", "body": {"messages": talk, "temperature": -1}},
    ]
    source, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    code, printed, err = batch(source, out, "--temperature", 0, "--max-tokens", 9)
    assert (code, printed) == (1, "")
    first, second, third, *errors = read(out)
    nine = tiny.generate(["Hello", talk], temperature=0, max_tokens=9)
    three = tiny.generate(talk, temperature=0, max_tokens=3)
    assert (first["id"], first["completion"]) == (1, nine.completions[0])
    assert second["messages"] == [*talk, {"role": "assistant", "content": nine.completions[1]}]
    choice = third["response"]["body"]["choices"][0]
    assert choice["message"]["content"] == three.completions[0]
    assert choice["finish_reason"] == three.metadata[0]["finish_reason"]
    assert third["response"]["body"]["usage"]["completion_tokens"] == len(three.token_ids[0])
    assert [row["line"] for row in errors] == [4, 5, 6]
    for row, word in zip(errors, ("JSON", "512", "temperature"), strict=True):
        reason = row["error"]["message"]
        assert word in reason and f"line {row['line']}: {reason}" in err
    assert errors[2]["custom_id"] == "b"
    assert '3 lines have an "error" in' in err


def test_tool_choice_makes_any_model_call_in_every_form_of_line(
    batch: Callable[..., Ran], tmp_path: Path
) -> None:
    talk = [{"role": "user", "content": "What is the capital?"}]
    parameters = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters}} for name in "fg"
    ]
    one = {"tools": tools, "tool_choice": {"type": "function", "function": {"name": "g"}}}
    any_: dict[str, Any] = {"tools": tools, "tool_choice": "required"}
    missing = {"type": "function", "function": {"name": "h"}}
    lines = [
        {"prompt": "Hello", **one},
        {"messages": talk, **any_},
        {"custom_id": "a", "body": {"messages": talk, "n": 2, "seed": 5, "temperature": 1, **any_}},
        {"custom_id": "b", "body": {"messages": talk, **any_, "max_tokens": 3}},
        {"prompt": "Hello", "tool_choice": "required"},
        {"prompt": "Hello", "tools": tools, "tool_choice": missing},
        {"prompt": "Hello", **one, "regex": "a"},
    ]
    source, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert batch(source, out, "--max-tokens", 60)[0] == 1
    first, second, third, fourth, *errors = read(out)
    whole = third["response"]["body"]["choices"]
    called = [[first], second["messages"][-1:], [choice["message"] for choice in whole]]
    for message in [message for messages in called for message in messages]:
        [call] = message["tool_calls"]
        assert json.loads(call["function"]["arguments"])["x"] in (1, 2)
    assert first["tool_calls"][0]["function"]["name"] == "g"
    assert (first["completion"], first["finish_reason"]) == ("", "tool_calls")
    assert [choice["finish_reason"] for choice in whole] == ["tool_calls"] * 2
    [cut] = fourth["response"]["body"]["choices"]
    assert cut["finish_reason"] == "length" and "tool_calls" not in cut["message"]
    said = [row["error"]["message"] for row in errors]
    assert [text.split(":")[0] for text in said] == ["tool_choice"] * 3
    assert "needs tools" in said[0] and "no tool 'h'" in said[1] and "one grammar" in said[2]


def test_openais_keys_are_answered_in_openais_form(
    batch: Callable[..., Ran], tiny: InferenceEngine, tmp_path: Path
) -> None:
    talk = [{"role": "user", "content": "What is the capital?"}]
    sampled: dict[str, Any] = {"n": 2, "seed": 5, "temperature": 1, "max_tokens": 6}
    biased: dict[str, Any] = {"logit_bias": {"77": 100}, "max_tokens": 4, "ignore_eos": True}
    bodies: list[dict[str, Any]] = [
        {**sampled, "logprobs": True, "top_logprobs": 2},
        {"response_format": {"type": "json_object"}, "max_tokens": 40, "temperature": 0},
        biased,
        {"tools": [], "tool_choice": "none", "n": None, "max_tokens": 3, "temperature": 0},
        {"temperature": 2.5},
    ]
    lines = [
        {"custom_id": f"c{i}", "body": {"messages": talk, **keys}} for i, keys in enumerate(bodies)
    ]
    source, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert batch(source, out)[0] == 1
    *answers, error = read(out)
    several, made, forced, plain = (row["response"]["body"]["choices"] for row in answers)
    wanted = tiny.generate(talk, **sampled)
    assert [choice["message"]["content"] for choice in several] == wanted.completions
    for choice, ids, logprobs in zip(several, wanted.token_ids, wanted.logprobs, strict=True):
        content = choice["logprobs"]["content"]
        assert [each["logprob"] for each in content] == pytest.approx(logprobs, abs=1e-3)
        assert [each["token"] for each in content] == [tiny.tokenizer.decode([i]) for i in ids]
        for each in content:
            (first, second) = [top["logprob"] for top in each["top_logprobs"]]
            assert first >= second and first >= each["logprob"]
    assert made[0]["message"]["content"].startswith("{")
    if made[0]["finish_reason"] == "stop":
        assert isinstance(json.loads(made[0]["message"]["content"]), dict)
    assert forced[0]["message"]["content"] == tiny.generate(talk, **biased).completions[0]
    assert plain[0]["message"]["content"] == tiny.generate(talk, max_tokens=3).completions[0]
    assert (error["line"], error["custom_id"]) == (5, "c4")
    assert "equal to 2" in error["error"]["message"]


def test_one_seed_answers_as_one_call_would_and_parameters_stand_in_any_form(
    batch: Callable[..., Ran], tiny: InferenceEngine, tmp_path: Path
) -> None:
    lines = [{"prompt": "Hello", "max_tokens": 6}] * 4
    source, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert batch(source, out, "--seed", 5, "--temperature", 1)[0] == 0
    answers = [row["completion"] for row in read(out)]
    wanted = tiny.generate(["Hello"] * 4, seed=5, temperature=1, max_tokens=6)
    assert answers == wanted.completions and len(set(answers)) == 4
    third = tiny.generate("Hello", seed=wanted.metadata[2]["seed"], temperature=1, max_tokens=6)
    assert third.completions[0] == answers[2]


def test_run_goes_on_only_with_the_same_parameters_and_input(
    batch: Callable[..., Ran], tmp_path: Path
) -> None:
    source = write(tmp_path / "in.jsonl", [{"prompt": "Hello"}, {"prompt": "What is"}])
    out = tmp_path / "out.jsonl"
    greedy = ["--temperature", 0, "--max-tokens", 5]
    assert batch(source, out, *greedy)[0] == 0
    before = out.read_bytes()
    out.write_bytes(before[: len(before) // 2])
    assert batch(source, out, *greedy)[0] == 0
    assert [row["completion"] for row in read(out)] == [
        json.loads(row)["completion"] for row in before.splitlines()
    ]
    code, _, err = batch(source, out, "--temperature", 0, "--max-tokens", 6)
    assert code == 2 and "begun with parameters=" in err and "--restart" in err
    write(source, [{"prompt": "Hello"}, {"prompt": "What was"}])
    code, _, err = batch(source, out, *greedy)
    assert code == 2 and "begun with input=" in err
    assert batch(source, out, *greedy, "--restart")[0] == 0
    assert [row["prompt"] for row in read(out)] == ["Hello", "What was"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["no.jsonl", "out.jsonl"], "no.jsonl"),
        (["in.jsonl", "in.jsonl"], "IN"),
        (["in.jsonl", "no/out.jsonl"], "no/out.jsonl"),
        (["in.jsonl", "out.jsonl", "--top-p", "0"], "top_p"),
    ],
)
def test_call_that_is_wrong_writes_no_row(
    arguments: list[str],
    word: str,
    batch: Callable[..., Ran],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.jsonl", [{"prompt": "Hello"}])
    code, _, err = batch(*arguments)
    assert code == 2 and word in err
    assert read(tmp_path / "in.jsonl") == [{"prompt": "Hello"}]
    assert not Path("out.jsonl").exists() or not Path("out.jsonl").read_bytes()


@pytest.mark.soak  # soak/test_batch_faults.py does it at random moments
def test_after_the_deaths_of_the_engine_and_of_the_process_nothing_is_lost_or_twice(
    batch: Callable[..., Ran], tiny: InferenceEngine, tmp_path: Path
) -> None:
    chance = random.Random(5)
    lengths = [chance.randint(10, 120) for _ in range(ROWS)]
    lines = [
        {
            "custom_id": f"row {index}",
            "body": {
                "messages": [{"role": "user", "content": f"Count from {index}."}],
                "max_tokens": length,
                "ignore_eos": True,
                "temperature": 0,
            },
        }
        for index, length in enumerate(lengths)
    ]
    source, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    config = tmp_path / "tiny.yaml"
    config.write_text(json.dumps(tiny.config.to_dict()))  # JSON is YAML
    arguments = ["batch", str(source), str(out), "-c", str(config)]

    def rows() -> int:
        return out.read_bytes().count(b"\n") if out.exists() else 0

    def until_rows(run: Script, least: int) -> None:
        assert until(lambda: rows() >= least or run._popen.poll() is not None, START_SECONDS)
        assert rows() >= least, run.err

    with script(PROGRAM, tmp_path / "first", arguments=arguments) as run:
        until_rows(run, 1)
        for child in descendants(run.process):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        assert run.exit_code() == 1
        assert "inf: " in run.err and "Traceback" not in run.err
    first = rows()
    assert 1 <= first < ROWS
    with script(PROGRAM, tmp_path / "second", arguments=arguments) as run:
        until_rows(run, first + 1)
        run.meet()
        run.send(signal.SIGKILL)
        run.exit_code()
        assert until(lambda: not alive(run.family), 10)
    second = rows()
    assert first < second < ROWS
    code, _, err = batch(source, out, "-c", config)
    assert code == 0, err
    assert f"{second} answered earlier" in err
    prompts = [line["body"]["messages"] for line in lines]
    wanted = tiny.generate(prompts, temperature=0, max_tokens=lengths, ignore_eos=True)
    answers = read(out)
    assert [row["custom_id"] for row in answers] == [line["custom_id"] for line in lines]
    texts = [row["response"]["body"]["choices"][0]["message"]["content"] for row in answers]
    # Of a random model's thousands of tokens one may be a near tie, decided by the batch around it.
    same = sum(text == other for text, other in zip(texts, wanted.completions, strict=True))
    assert same >= ROWS - 2
