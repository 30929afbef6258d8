"""A keyword that nobody has thought of comes by a folder: in `generate`, a command, `inf serve` and
`inf batch`, and a backend without it refuses it by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts import START_SECONDS, environment
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.engine

# SGLang's own parameter, under its name; Transformers' rows end by the same rule.
STOP_REGEX = '''
"""`stop_regex`: a pattern that ends the answer, as SGLang's."""

import dataclasses

from _inf.parts.part import Part
from _inf.request.keyword import Keyword
from _inf.request.values import text


@dataclasses.dataclass(frozen=True)
class StopRegex(Part):
    same_names = {"sglang"}
    keywords = {
        "stop_regex": Keyword(text, "A pattern that ends the answer.", str, "")
    }
    stop_regex: str = ""
'''
# A field of rows, which only Transformers' logits can give.
ENTROPY = '''
"""`return_entropy`: the entropy of each token's distribution."""

import dataclasses

from _inf.parts.part import NOTHING, Added, Field, Part, Record
from _inf.request.keyword import NOT_IN_TURNS, Keyword
from _inf.request.values import flag


@dataclasses.dataclass(frozen=True)
class Entropies(Record):
    entropies: list


@dataclasses.dataclass(frozen=True)
class ReturnEntropy(Part):
    keywords = {
        "return_entropy": Keyword(
            flag, "Also return entropies.", bool, "no", neutral=False,
            per_prompt=False, refused=NOT_IN_TURNS,
        )
    }
    row_fields = {"entropies": Field("list[float]", "one float per token.", in_choices=True)}
    return_entropy: bool = False

    def added(self, output, prompt):
        found = output.of(Entropies)
        return NOTHING if found is None else Added({"entropies": found.entropies})
'''
ENTROPY_HF = '''
"""Computed from the log probs after each token."""

from _inf.backends.hf import translation

from _inf.parts.return_entropy import Entropies


class Translation(translation.Translation):
    def __init__(self, part, request, model):
        super().__init__(part, request, model)
        self.values = []

    def chosen(self, token, logprob, logprobs):
        self.values.append(-(logprobs.exp() * logprobs).sum().item())

    def record(self, ids, *, whole):
        return Entropies(list(self.values))
'''
PROGRAM = """
import contextlib, io, json, sys

import _inf.parts

_inf.parts.__path__.append(sys.argv[1])  # as if the folders stood there

from _inf.apps.cli import main
from inf import ConfigError, InferenceEngine
from tests.support.serve_clients import CHAT, Http


def refused(**params):
    try:
        engine.generate("Two", **params)
    except ConfigError as error:
        return str(error)


def command(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main([*arguments, "--model", model, "--set", f"rollout.name={name}"])
    return code, out.getvalue()


if __name__ == "__main__":
    _, _, model, name, given, options = sys.argv
    params, chat = json.loads(given), [{"role": "user", "content": "Two"}]
    how = {"max_tokens": 8, "ignore_eos": True, **params}
    rollout = {"name": name, "dtype": "float32", "enforce_eager": True}
    with InferenceEngine(model_path=model, rollout=rollout) as engine:
        rows = engine.generate(["Two", "Three"], **how)
        said = {"row": rows[0].to_dict(), "refused": refused(**{next(iter(params)): [3]})}
        said["other"] = refused(return_entropy=True) or refused(stop_regex="a")
        with engine.serve() as server:
            said["served"] = Http(server).post(CHAT, messages=chat, **how)["choices"][0]
        # While an engine runs, others start fast.
        said["command"] = command("Two", *json.loads(options))
        line = {"custom_id": "a", "body": {"messages": chat, **how}}
        with open("in.jsonl", "w") as file:
            file.write(json.dumps(line))
        command("batch", "in.jsonl", f"{name}.jsonl")
    with open(f"{name}.jsonl") as file:
        said["batch"] = json.load(file)["response"]["body"]["choices"][0]
    print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two parts, as they would stand in `_inf/parts`."""
    folder = tmp_path_factory.mktemp("parts")
    for path, text in (
        ("stop_regex/__init__.py", STOP_REGEX),
        ("return_entropy/__init__.py", ENTROPY),
        ("return_entropy/hf.py", ENTROPY_HF),
    ):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    return folder


def said(folder: Path, name: str, params: dict[str, Any], *options: str) -> dict[str, Any]:
    (folder / "program.py").write_text(PROGRAM)
    arguments = [str(folder), str(tiny_model()), name, json.dumps(params), json.dumps(options)]
    done = subprocess.run(
        [sys.executable, "program.py", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=2 * START_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.verl
def test_keyword_of_the_engines_own_is_one_file(folder):
    found = said(folder, "sglang", {"stop_regex": "."}, "--stop-regex=.", "--max-tokens=8")
    assert found["row"]["finish_reason"] == found["served"]["finish_reason"] == "stop"
    assert found["row"]["completion_tokens"] < 8 and found["batch"]["finish_reason"] == "stop"
    assert found["command"][0] == 0
    assert found["refused"].startswith("stop_regex: ")
    assert found["other"].startswith("return_entropy: ") and "hf" in found["other"]


def test_keyword_with_a_field_of_rows_is_one_folder(folder):
    found = said(folder, "hf", {"return_entropy": True}, "--return-entropy", "--max-tokens=8")
    entropies = found["row"]["entropies"]
    assert len(entropies) == 8 and all(value > 0 for value in entropies)
    assert len(found["served"]["entropies"]) == len(found["batch"]["entropies"]) == 8
    assert found["command"][0] == 0
    assert found["refused"].startswith("return_entropy: ")
    assert found["other"].startswith("stop_regex: ") and "sglang" in found["other"]
