"""`inf eval gsm8k` with a stub as the engine: what it writes, and when an engine starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import inf
from _inf.apps.cli import main
from _inf.config import load_config
from inf import GenerationOutput, GenerationRow, PromptError

PROBLEMS = Path(inf.__file__).parent / "examples" / "problems.jsonl"
# Without verl, which takes seconds to import.
REWARD = """
def contains(solution_str, ground_truth, **rest):
    return float(ground_truth in solution_str)
"""


class Stub:
    """Answers "#### 54", which is right for the first problem; the second is too long for it."""

    starts = 0
    tokenizer = None
    config = load_config(None, {})
    on_cpu = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.asked = 0

    def generate(self, prompts: list[Any], **params: Any) -> GenerationOutput:
        return GenerationOutput()

    async def agenerate(self, prompt: list[Any], **params: Any) -> GenerationOutput:
        self.asked += 1
        if self.asked == 2:
            raise PromptError("prompt 0 has 900 tokens", index=0)
        about: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": 3}
        row = GenerationRow("#### 54", None, None, finish_reason="stop", **about)
        return GenerationOutput([row])  # as a server without ids

    def __enter__(self) -> Stub:
        Stub.starts += 1
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass


def test_question_without_an_answer_is_counted_and_asked_again_and_then_no_engine_starts(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(inf, "InferenceEngine", Stub)
    monkeypatch.chdir(tmp_path)
    Path("reward.py").write_text(REWARD)
    command = ["eval", "gsm8k", "--data", str(PROBLEMS), "--limit", "3", "--json"]
    command += ["--reward", "reward.py:contains"]
    assert main(command) == 1
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert (found["answers"], found["unscored"]) == (3, 1)
    assert found["metrics"]["val-core/openai/gsm8k/reward/mean@1"] == 0.5  # of those it answered
    assert '1 answers have no reward: "error" in their rows' in err
    rows = [json.loads(line) for line in Path("gsm8k.jsonl").read_text().splitlines()]
    assert [(row["line"], row["number"], row["sample"]) for row in rows] == [
        (1, 0, 0),
        (2, 1, 0),
        (3, 2, 0),
    ]
    assert rows[1]["prompt"][0]["role"] == "user" and rows[1]["reward"] is None
    assert rows[1]["row_id"] == "1.0"
    assert rows[1]["error"]["message"] == "the prompt has 900 tokens"

    assert main(command) == 0 and Stub.starts == 2
    assert json.loads(capfd.readouterr().out)["unscored"] == 0
    assert main(command) == 0 and main([*command, "--limit", "2"]) == 0
    assert Stub.starts == 2


@pytest.mark.parametrize("option", [["--shots", "2"], ["--tool"], ["--data", "a.jsonl"]])
def test_option_of_a_benchmark_is_refused_for_a_file(
    option: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "rows.jsonl", *option]) == 2
    assert f"{option[0]}: it is an option of" in capfd.readouterr().err


def test_help_of_the_command_has_its_options_and_its_benchmarks(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["eval", "--help"]) == 0
    said = capfd.readouterr().out
    assert all(word in said for word in ("--reward-workers", "--rescore", "gsm8k", "compare"))
