"""The backend `hf` where verl and SGLang cannot be imported."""

from __future__ import annotations

import subprocess
import sys

from tests.support.scripts import START_SECONDS, environment
from tests.support.tiny import tiny_model

PROGRAM = """
import sys

sys.modules["verl"] = sys.modules["sglang"] = None
import inf

def add(x: int) -> int:
    '''Adds.

    Args:
        x: a number.
    '''

with inf.InferenceEngine(model_path=sys.argv[1], rollout={"name": "hf"}) as engine:
    rows = [*engine.generate("Hi", max_tokens=4), *engine.generate("Hi", tools=[add], max_tokens=4)]
    chunks = list(engine.stream("Hi", max_tokens=4))
    print(len(rows), "".join(chunk.text for chunk in chunks) == rows[0].completion)
    print(len(engine.score("Hi", " there")[0].logprobs) > 0)
    engine.get_logits("a", "b")
    engine.generate("a", n=2, max_tokens=3, temperature=1.0, regex="[ab]+")
"""


def test_answers_streams_and_scores_need_neither() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tiny_model())],
        env=environment(), capture_output=True, text=True, timeout=START_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "True", "True"]
