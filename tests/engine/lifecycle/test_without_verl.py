"""The backend `hf` where verl and SGLang cannot be imported, as all tests in `.venv-hf` have it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from _inf.runtime.extras import NEEDS_VERL
from tests.support.scripts import START_SECONDS, environment
from tests.support.tool_calling import TOOL_MODEL

pytestmark = [pytest.mark.verl, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys

sys.modules["verl"] = sys.modules["sglang"] = None
import inf

if __name__ == "__main__":
    turns = {"enable": True, "tool_config_path": sys.argv[2]}
    rollout = {"name": "hf", "prompt_length": 512, "response_length": 64, "multi_turn": turns}
    with inf.InferenceEngine(model_path=sys.argv[1], rollout=rollout) as engine:
        greedy = {"temperature": 0, "max_tokens": 4, "tools": []}
        [row] = engine.generate("Hi", **greedy)
        chunks = list(engine.stream("Hi", **greedy))
        print("".join(chunk.text for chunk in chunks) == row.completion)
        print(len(engine.score("Hi", " there")[0].logprobs) > 0, engine.get_logits("a", "b").ndim)
        drawn = engine.generate("a", n=2, max_tokens=3, temperature=1.0, regex="[ab]+", tools=[])
        print(all(set(row.completion) <= set("ab") for row in drawn))
        asked = "What is 12 * 7?"
        [row] = engine.generate(asked, temperature=0)
        print([call["result"] for call in row.to_dict()["executed_tool_calls"]], row.completion)
        report = inf.check(engine, max_tokens=4, batch=4)
        print(report.passed, [n for n in report.metrics if n.startswith(("training/", "rollout_"))])
        print(report.notes[-1])
        data = [{"prompt": asked}]
        report = inf.evaluate(engine, data, reward=lambda **row: 1.0, temperature=1, n=2, tools=[])
        print(report.metrics["val-core/unknown/reward/mean@2"], report.left_out)
        for call in (
            lambda: engine.rollout_batch([asked]),
            lambda: engine.trainer_batch([]),
            lambda: inf.evaluate(engine, data),
            lambda: engine.generate(asked, agent_loop="tool_agent"),
        ):
            try:
                call()
            except inf.ConfigError as refusal:
                print(refusal)
"""


def test_answers_tools_checks_and_evaluations_need_neither_and_what_is_verls_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(TOOL_MODEL), str(ROOT / "tools.yaml")],
        env=environment(), capture_output=True, text=True, timeout=START_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    streamed, scored, constrained, called, checked, note, evaluated, *refused = (
        done.stdout.splitlines()
    )
    assert (streamed, scored, constrained) == ("True", "True 3", "True")
    assert called == "['84'] The answer is 84."
    assert checked == "True []"
    said = ", and verl is not installed in "
    assert note.startswith(f"not computed: {NEEDS_VERL['check']}{said}")
    assert evaluated.startswith(f"1.0 {NEEDS_VERL['metrics']}{said}")
    names = ["rollout_batch()", "trainer_batch()", "reward", "agent_loop"]
    for name, line in zip(names, refused, strict=True):
        assert line.startswith(f"{name}: {NEEDS_VERL[name]}{said}")
