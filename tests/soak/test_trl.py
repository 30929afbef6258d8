"""TRL's own `GRPOTrainer`, in an environment of its own, on the classes that run here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.installed import installed, ran
from tests.support.pages import ROOT, blocks
from tests.support.tool_calling import TOOL_MODEL

pytestmark = pytest.mark.soak


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def said(messages: list[dict[str, Any]]) -> list[Any]:
    """What the messages are, whatever form their calls have."""
    return [(m["role"], m["content"], [*map(called, m.get("tool_calls", []))]) for m in messages]


def called(call: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    return name, json.loads(arguments) if isinstance(arguments, str) else arguments


def ordered(states: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(state, sort_keys=True) for state in states)


PAGE = blocks("docs/environments.md", "python")[0]
SUPPORT = (ROOT / "tests" / "support" / "environments.py").read_text()
SHOWN = [
    {"prompt": asked("What is"), "shows": f" {what}?"} for what in ("12 * 7", "12 * 7 and 3 + 4")
]
TASKS = [{"prompt": asked("What is"), "task": task} for task in ("12 * 7", "3 + 4")]
NAMES = ["Sums", "AwaitedSums"]
CHOSEN = [{**row, "environment": name} for row, name in zip(SHOWN, NAMES, strict=True)]


@pytest.mark.parametrize(
    ("source", "names", "rows", "rewards"),
    [
        (PAGE, ["Homework"], TASKS, [1.0, 1.0]),
        (SUPPORT, NAMES, CHOSEN, [1.0, 2.0]),
    ],
    ids=["page", "several"],
)
def test_trl_gives_the_same_calls_messages_and_rewards(
    source, names, rows, rewards, caller, tmp_path
):
    file, out = tmp_path / "kinds.py", tmp_path / "out.json"
    file.write_text(source)
    python, train = installed("trl") / "bin" / "python", ROOT / "tests" / "trl" / "train.py"
    command = [python, train, file, ",".join(names), json.dumps(rows), TOOL_MODEL, out]
    ran(*command, folder=tmp_path, HF_HUB_OFFLINE="1")
    theirs = json.loads(out.read_text())
    assert theirs["version"] == "1.10.0" and len(theirs["steps"]) == 2

    scope = {"__name__": "kinds"}
    exec(compile(source, file, "exec"), scope)
    made = []

    def factory(name: str) -> Any:
        return lambda: made.append(scope[name]()) or made[-1]

    factories = {name: factory(name) for name in names}
    output = caller.generate(
        [row["prompt"] for row in rows],
        environment_factory=factories if len(names) > 1 else factories[names[0]],
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
        pairs = zip(rewards, rows, strict=True)
        own = [reward for reward, row in pairs if row.get("environment", name) == name]
        means = [log[f"rewards/{name}/mean"] for log in theirs["logs"]]
        assert means == [sum(own) / len(own)] * 2
