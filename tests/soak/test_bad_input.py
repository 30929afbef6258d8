"""Whatever comes in ends in a right answer, or in an exception of ours that says where.

What needs no engine is fuzzed in a process for each target (`fuzz_targets.py`), so that a case that
kills or hangs is counted, and shown; then the same shapes go through a live engine.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import inf
from inf import EngineDeadError, InferenceEngine, InferenceError
from tests.support.figures import Figures
from tests.support.fuzz_cases import GRAMMARS, KEYWORDS, PROMPTS
from tests.support.fuzz_cases import RIGHT as RIGHT_VALUES
from tests.support.fuzz_targets import TARGETS
from tests.support.fuzz_values import one_of

pytestmark = pytest.mark.soak

TARGET_SECONDS = 240.0
CALL_SECONDS = 60.0
WITHOUT_ENGINE, THROUGH_ENGINE = 20_000, 1_000
KNOWN: dict[str, Any] = {"prompts": "What is the capital of France?", "temperature": 0}
KNOWN |= {"max_tokens": 8}

tried: Counter[str] = Counter()


def run(target: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = str(Path(inf.__file__).parent)
    cache = {"XDG_CACHE_HOME": str(folder)} if target == ".gguf files" else {}
    return subprocess.run(
        [sys.executable, "-m", "tests.support.fuzz_targets", target, str(folder)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **cache},
        capture_output=True,
        text=True,
        timeout=TARGET_SECONDS,
        cwd=folder,
    )


@pytest.mark.parametrize("target", TARGETS)
def test_no_case_kills_or_hangs_or_escapes(target: str, tmp_path: Path, figures: Figures) -> None:
    done = run(target, tmp_path)
    hung = int("Timeout (" in done.stderr and "most recent call first" in done.stderr)
    killed = int(done.returncode < 0)
    if done.returncode:
        last = (tmp_path / "last").read_text() if (tmp_path / "last").exists() else "none"
        how = "it hung" if hung else f"exit code {done.returncode}"
        pytest.fail(
            f"{target}: {how} in the case {last[:2000]}\n{done.stderr[-6000:]}", pytrace=False
        )
    tally = json.loads(done.stdout.splitlines()[-1])
    said = ", ".join(f"{count:,} {name}" for name, count in tally.items())
    figures("bad input", target, f"{said}, {killed} killed, {hung} hung")
    tried.update(tally)
    assert tally["tried"] >= TARGETS[target].count


def test_targets_without_an_engine_tried_enough_cases(figures: Figures) -> None:
    if tried["tried"] == 0:
        pytest.skip("the targets did not run")
    figures("bad input", "without an engine", f"{tried['tried']:,} tried")
    assert tried["tried"] >= WITHOUT_ENGINE


# ─── Through a live engine ───


class Line:
    """The calls of one session, counted; each within `CALL_SECONDS`, the engine asked between."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine = engine
        self.known = engine.generate(**KNOWN).token_ids
        self.tally = Counter(tried=0, refused=0, answered=0, asked=0, killed=0, hung=0)
        self._threads = concurrent.futures.ThreadPoolExecutor(1)

    def call(self, cases: int, work: Callable[[], Any], names: Iterable[str]) -> None:
        """`names`: what a refusal may begin with, beside a prompt or a response."""
        before = self.tally["tried"] // 100
        self.tally["tried"] += cases
        try:
            self._threads.submit(work).result(CALL_SECONDS)
            self.tally["answered"] += cases
        except EngineDeadError:
            self.tally["killed"] += 1
            raise
        except InferenceError as refused:
            self.tally["refused"] += cases
            places = [
                r"(prompt|Row) \d+[ :,]",
                r"response",
                *(rf"{re.escape(n)}[:\[.]" for n in names),
            ]
            assert re.match("|".join(places), str(refused)), f"it does not say where: {refused}"
        except concurrent.futures.TimeoutError:
            self.tally["hung"] += 1
            raise
        if self.tally["tried"] // 100 > before:
            assert self.engine.generate(**KNOWN).token_ids == self.known
            self.tally["asked"] += 1

    def generate(self, cases: int, prompts: Any, params: Mapping[str, Any]) -> None:
        few = live(params)
        self.call(cases, lambda: self.engine.generate(prompts, **few), few)

    def stream(self, prompt: Any, params: Mapping[str, Any]) -> None:
        few = live(params)
        self.call(1, lambda: list(self.engine.stream(prompt, **few)), few)

    def score(self, prompt: Any, response: Any) -> None:
        self.call(1, lambda: self.engine.get_logprobs(prompt, response), ())


def live(params: Mapping[str, Any]) -> dict[str, Any]:
    """With few tokens and samples: what they cost is nothing of this test's."""
    few = {name: value for name, value in params.items() if name not in ("timeout", "progress")}
    for name, most in (("n", 3), ("max_tokens", 4)):
        if isinstance(few.get(name), int) and most < few[name] < 2**31:
            few[name] = most
    return {"max_tokens": 4, **few} if few.get("max_tokens") is None else few


RIGHT = one_of(["Hello", {"prompt_token_ids": [5, 6]}, [{"role": "user", "content": "a"}]])
RIGHT_PARAMS = st.lists(st.sampled_from(sorted(RIGHT_VALUES)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: one_of(RIGHT_VALUES[name]) for name in names})
)
EXPLORE = settings(
    max_examples=200,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_engine_outlives_every_case(tiny: InferenceEngine, figures: Figures) -> None:
    line = Line(tiny)

    @EXPLORE
    @given(PROMPTS, KEYWORDS)
    def alone(prompt: Any, params: dict[str, Any]) -> None:
        line.generate(1, prompt, params)

    @EXPLORE
    @given(st.lists(RIGHT | PROMPTS, min_size=2, max_size=4), RIGHT_PARAMS | KEYWORDS)
    def together(batch: list[Any], params: dict[str, Any]) -> None:
        line.generate(len(batch), batch, params)

    @EXPLORE
    @given(RIGHT, RIGHT_PARAMS)
    def right(prompt: Any, params: dict[str, Any]) -> None:
        line.generate(1, prompt, params)

    @EXPLORE
    @given(GRAMMARS)
    def constrained(grammar: tuple[str, Any]) -> None:
        line.generate(1, "Hello", dict([grammar]))

    @EXPLORE
    @given(RIGHT | PROMPTS, one_of(["Paris", [5, 6]]) | PROMPTS)
    def scored(prompt: Any, response: Any) -> None:
        line.score(prompt, response)

    @EXPLORE
    @given(RIGHT | PROMPTS, RIGHT_PARAMS | KEYWORDS)
    def streamed(prompt: Any, params: dict[str, Any]) -> None:
        line.stream(prompt, params)

    for explore in (alone, together, right, constrained, scored, streamed):
        explore()
    host = tiny.rollout.host
    assert host.death is None and all(child.is_alive() for child in host.children)
    said = ", ".join(f"{count:,} {name}" for name, count in line.tally.items())
    figures("bad input", "through a live engine", said)
    assert line.tally["tried"] >= THROUGH_ENGINE
