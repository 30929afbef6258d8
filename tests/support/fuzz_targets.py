"""What is fuzzed without an engine, a process each: `python -m tests.support.fuzz_targets`.

A case is answered rightly (True), or refused by one of our exceptions that names the place (False);
whatever else comes out of it fails the target. A case that takes over `CASE_SECONDS` ends the
process, also inside C code. On stdout: the tally, as JSON. `FOLDER/last` has the last case begun.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import faulthandler
import functools
import json
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from _inf.config import load_config, parse_assignments
from _inf.config.load import FLAT
from _inf.errors import InferenceError
from _inf.types import Limits, ModelInfo
from tests.support import fuzz_cases as cases
from tests.support.fuzz_values import Cases
from tests.support.gguf_file import write_gguf
from tests.support.tiny import VOCABULARY, tiny_model

CASE_SECONDS = 20.0
LIMITS = Limits(prompt=512, total=640, vocabulary=VOCABULARY)
MODEL = ModelInfo(None, frozenset({0, 2}), LIMITS)
SCHEMA = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}


@dataclasses.dataclass(frozen=True)
class Target:
    """work: does the case and asserts that it was done rightly. places: what a refusal may begin
    with, or a text that has the key with which each of its lines begins."""

    cases: Cases | Callable[[], Cases]
    count: int
    places: Callable[[Any, Path], list[str] | str]
    work: Callable[[Any, Path], object]

    def attempt(self, case: Any, folder: Path) -> bool:
        """True where it is answered, False where it is refused."""
        try:
            self.work(case, folder)
        except InferenceError as failure:
            message, places = str(failure), self.places(case, folder)
            if isinstance(places, str):
                heads = [re.split(r"[:.\[,]", line)[0] for line in message.split("\n")]
                said = all(head in places or head.isdigit() for head in heads)
            else:
                said = message.startswith(tuple(places))
            assert said, f"it does not say where: {message[:500]!r}"
            return False
        return True


TARGETS: dict[str, Target] = {}


def target(name: str, cases: Any, count: int, places: Any) -> Callable[[Any], Any]:
    def register(work: Any) -> Any:
        TARGETS[name] = Target(cases, count, places, work)
        return work

    return register


def marked(names: Iterable[str]) -> list[str]:
    return [f"{name}{mark}" for name in names for mark in ":[.,"]


def tree(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for path, value in pairs:
        *above, last = path.split(".")
        node = whole
        for key in above:
            if not isinstance(node.get(key), dict):
                node[key] = {}
            node = node[key]
        node[last] = value
    return whole


KNOWN = "rollout config null a int"


def keys_of(case: Any, folder: Path) -> str:
    return " ".join([KNOWN, *(path for path, _ in [*case[0], *case[1]])])


@target("configs", cases.CONFIGS, 3500, keys_of)
def config_mapping(case: Any, folder: Path) -> None:
    said = load_config(*map(tree, case)).to_dict()
    pairs = [(FLAT.get(path, path), value) for path, value in [*case[0], *case[1]]]
    for path, value in pairs:
        near = [p for p, _ in pairs if f"{p}.".startswith(f"{path}.") or path.startswith(f"{p}.")]
        if path in cases.DEFAULTS and len(near) == 1 and isinstance(value, bool | int | float):
            found = functools.reduce(lambda node, key: node[key], path.split("."), said)
            assert found == value and isinstance(found, bool) == isinstance(value, bool), path


def text_of(case: bytes, folder: Path) -> str:
    return " ".join([KNOWN, str(folder / "c"), case.decode("utf-8", "replace")])


@target("config.yaml", cases.YAMLS, 2500, text_of)
def config_text(case: Any, folder: Path) -> None:
    (folder / "c.yaml").write_bytes(case)
    load_config(folder / "c.yaml", {})


def paths_of(case: list[str], folder: Path) -> list[str]:
    paths = [text.partition("=")[0].strip() for text in case]
    return [*case, *paths, *(FLAT[p] for p in paths if p in FLAT), "rollout."]


@target("--set", cases.ASSIGNMENTS, 1000, paths_of)
def assignment(case: Any, folder: Path) -> None:
    load_config(None, parse_assignments(case))


@functools.cache
def rollout() -> Any:
    return load_config({}, {}).rollout


@functools.cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model())


@target("parameters", cases.CALLS, 3500, lambda case, folder: marked(case[1]))
def parameters(case: Any, folder: Path) -> None:
    from _inf.request.sampling import resolve

    prompts, keywords = case
    for params in resolve(keywords, rollout(), prompts, MODEL).params:
        json.dumps(vars(params))


def index_of(case: Any, folder: Path) -> list[str]:
    return [f"prompt {case[0]}{mark}" for mark in " :,"] if case[0] else ["prompt "]


@target("prompts", cases.BATCHES, 3000, index_of)
def prompts(case: Any, folder: Path) -> None:
    from _inf.request.prompts import normalize
    from _inf.request.template import Template
    from _inf.request.tokenize import tokenize

    before, prompt = case
    batch = [*["hi"] * before, prompt] if before else prompt
    for each in tokenize(normalize(batch), Template(tokenizer()), LIMITS):
        assert 0 < len(each.token_ids) <= 512
        assert all(type(i) is int and 0 <= i < VOCABULARY for i in each.token_ids)


@target("responses", cases.BATCHES, 1000, lambda case, folder: ["response"])
def responses(case: Any, folder: Path) -> None:
    from _inf.request.tokenize import tokenize_responses

    before, response = case
    batch = [*["hi"] * before, response] if before else response
    answered = tokenize_responses(batch, before + 1, tokenizer(), LIMITS)
    assert all(0 <= i < VOCABULARY for ids in answered for i in ids)


PLACES_OF_TEMPLATES = ["prompt 3", "tools: the model's chat template"]


@target("chat templates", cases.TEMPLATE_CASES, 1500, lambda case, folder: PLACES_OF_TEMPLATES)
def templates(case: Any, folder: Path) -> None:
    from _inf.request.template import Template

    text, kwargs, tools, content = case
    own = copy.copy(tokenizer())
    own.chat_template = text
    schemas = [SCHEMA] if tools else []
    template = Template(own, kwargs, schemas=schemas, instructions="Call f.", eos_token_ids={2})
    if tools:
        template.check_turns()
    ids = template.prompt([{"role": "user", "content": content}], 3)
    assert ids and all(type(i) is int for i in ids)


@target("tools", cases.TOOL_LISTS, 1500, lambda case, folder: ["tools:", "tools["])
def tools_given(case: Any, folder: Path) -> None:
    from _inf.tools.definition import as_tools
    from _inf.tools.json_schemas import argument_fault

    for tool in as_tools(case):
        json.dumps(tool.schema, allow_nan=False)
        argument_fault(tool, {"a": 1})


@target("tools.yaml", cases.TOOL_FILES, 1500, lambda case, folder: [str(folder / "tools.yaml")])
def tool_file(case: Any, folder: Path) -> None:
    from _inf.tools.loading import load_tools

    (folder / "tools.yaml").write_bytes(case)
    tools = load_tools(folder / "tools.yaml")
    assert tools and all(json.dumps(tool.schema, allow_nan=False) for tool in tools)


@target("JSONL lines", cases.FILE_LINES, 2500, lambda case, folder: ["line 7"])
def batch_line(case: Any, folder: Path) -> None:
    from _inf.apps.batch.lines import BadLine, parse
    from _inf.apps.batch.output_file import _json_line
    from _inf.response.output import GenerationOutput
    from _inf.response.row import GenerationRow

    job = parse(case, 7, "m", tokenizer())
    assert job.line == 7
    if isinstance(job, BadLine):
        assert job.reason
        raise InferenceError("line 7")
    answer = GenerationRow("Blue.", [5], [0.0], finish_reason="stop")
    row = _json_line(job.row(GenerationOutput([answer])))
    assert b"\n" not in row[:-1]
    json.loads(row, parse_constant=lambda name: no_json(name))


def no_json(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@target("grammars", cases.GRAMMARS, 1500, lambda case, folder: [case[0]])
def grammar(case: Any, folder: Path) -> None:
    from _inf.request.grammar import json_schema_text, regex_text

    kind, value = case
    assert {"json_schema": json_schema_text, "regex": regex_text}[kind](value)


@target("answers with calls", cases.SAID, 2000, lambda case, folder: ())
def model_text(case: Any, folder: Path) -> None:
    from _inf.tools.definition import as_tools
    from _inf.tools.parsing import parse

    format, text = case
    last = 0
    for call in parse(text, format, as_tools([{"name": "search"}])).calls:
        assert text[call.start_pos : call.end_pos] == call.raw_text
        assert call.start_pos >= last or call.raw_text == text
        assert isinstance(call.arguments, dict) and (call.name or call.error)
        last = call.start_pos


def gguf_cases() -> Cases:
    return cases.ggufs(write_gguf(Path(sys.argv[2]) / "whole.gguf").read_bytes())


def gguf_file(case: Any, folder: Path) -> list[str]:
    return [f"model_path: {folder / 'model.gguf'} cannot be used: "]


@target(".gguf files", gguf_cases, 300, gguf_file)
def gguf(case: Any, folder: Path) -> None:
    from _inf.models.resolve import resolve_model

    (folder / "model.gguf").write_bytes(case)
    shutil.rmtree(resolve_model(str(folder / "model.gguf")))


def main(name: str, folder: Path) -> None:
    target = TARGETS[name]
    tally = {"tried": 0, "refused": 0, "answered": 0}

    @settings(
        max_examples=target.count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(target.cases() if callable(target.cases) else target.cases)
    def explore(case: Any) -> None:
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
        with contextlib.suppress(Exception):  # some cannot be printed
            (folder / "last").write_text(repr(case)[:20_000], errors="backslashreplace")
        answered = target.attempt(case, folder)
        faulthandler.cancel_dump_traceback_later()
        tally["tried"] += 1
        tally["answered" if answered else "refused"] += 1

    warnings.simplefilter("ignore")
    explore()
    print(json.dumps(tally))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
