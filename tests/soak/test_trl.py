"""TRL's own `GRPOTrainer`, in an environment of its own, on the classes that run here."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from inf import InferenceEngine
from tests.support.figures import Figures
from tests.support.installed import installed
from tests.support.pages import ROOT, blocks
from tests.support.tool_calling import TOOL_MODEL

pytestmark = pytest.mark.soak

TRL = ROOT / "tests" / "trl"
SUPPORT = ROOT / "tests" / "support" / "environments.py"
RUN_SECONDS = 600.0


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter with TRL; it is kept for the next run."""
    return installed("trl") / "bin" / "python"


def of_the_page(folder: Path) -> Path:
    """A file with the class of docs/environments.md."""
    (folder / "homework.py").write_text(blocks("docs/environments.md", "python")[0])
    return folder / "homework.py"


def of_the_example(folder: Path) -> Path:
    """A file with the class of examples/environment.py alone, which imports this library."""
    program = (ROOT / "examples" / "environment.py").read_text()
    [game] = [n for n in ast.parse(program).body if isinstance(n, ast.ClassDef)]
    source = f"from typing import Any\n\n\n{ast.get_source_segment(program, game)}\n"
    (folder / "guessing.py").write_text(source)
    return folder / "guessing.py"


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def said(messages: list[dict[str, Any]]) -> list[Any]:
    """What the messages are, whatever form their calls have."""
    return [
        (m["role"], m["content"], [called(c) for c in m.get("tool_calls", [])]) for m in messages
    ]


def ordered(states: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(state, sort_keys=True) for state in states)


def called(call: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    arguments = call["function"]["arguments"]
    return call["function"]["name"], json.loads(arguments) if isinstance(
        arguments, str
    ) else arguments


SHOWN = [
    {"prompt": asked("What is"), "shows": f" {what}?"} for what in ("12 * 7", "12 * 7 and 3 + 4")
]
TASKS = [{"prompt": asked("What is"), "task": task} for task in ("12 * 7", "3 + 4")]
NAMES = ["Sums", "AwaitedSums"]
CHOSEN = [{**row, "environment": name} for row, name in zip(SHOWN, NAMES, strict=True)]
GAMES = [{"prompt": asked("Hello."), "number": number} for number in (1, 3)]


@pytest.mark.parametrize(
    ("kinds", "names", "rows", "rewards"),
    [
        (of_the_page, ["Homework"], TASKS, [1.0, 1.0]),
        (of_the_example, ["Guessing"], GAMES, [0.0, 0.0]),  # this model knows no such game
        (lambda folder: SUPPORT, ["Sums"], SHOWN, [1.0, 2.0]),
        (lambda folder: SUPPORT, NAMES, CHOSEN, [1.0, 2.0]),
    ],
    ids=["page", "example", "one", "several"],
)
def test_trl_gives_the_same_calls_messages_and_rewards(
    kinds: Any,
    names: list[str],
    rows: list[dict[str, Any]],
    rewards: list[float],
    python: Path,
    caller: InferenceEngine,
    tmp_path: Path,
    figures: Figures,
) -> None:
    file, out = kinds(tmp_path), tmp_path / "out.json"
    command = [python, TRL / "train.py", file, ",".join(names), json.dumps(rows), TOOL_MODEL, out]
    done = subprocess.run(
        list(map(str, command)),
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = json.loads(out.read_text())
    assert theirs["version"] == "1.10.0" and len(theirs["steps"]) == 2

    scope: dict[str, Any] = {"__name__": "kinds"}
    exec(compile(file.read_text(), file, "exec"), scope)
    made: list[Any] = []

    def factory(name: str) -> Any:
        return lambda: made.append(scope[name]()) or made[-1]

    several = len(names) > 1
    output = caller.generate(
        [row["prompt"] for row in rows],
        environment_factory={n: factory(n) for n in names} if several else factory(names[0]),
        environment_kwargs=[{k: v for k, v in row.items() if k != "prompt"} for row in rows],
    )
    assert [row.metadata["reward_scores"]["environment"] for row in output] == rewards
    ours = [said(messages) for messages in output.messages or []]
    states = [vars(each) for each in made[-len(rows) :]]
    for step in theirs["steps"]:
        # TRL's samples of a row are next to each other, and greedy.
        assert [said(row["messages"]) for row in step] == [m for m in ours for _ in range(2)]
        # Ours are made on a thread each, in any order.
        assert ordered(row["state"] for row in step) == ordered([*states, *states])
    # It resets the objects of the first step for the second.
    first, second = ({row["object"] for row in step} for step in theirs["steps"])
    assert first == second and len(first) == 2 * len(rows)
    for name in names:
        of_name = [
            r for r, row in zip(rewards, rows, strict=True) if row.get("environment", name) == name
        ]
        means = [log[f"rewards/{name}/mean"] for log in theirs["logs"]]
        assert means == [sum(of_name) / len(of_name)] * 2
    figures("TRL 1.10.0", f"rows of {', '.join(names)} equal to those here", len(first) * 2)
