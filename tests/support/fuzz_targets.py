"""What is fuzzed without an engine, a process each: `python -m tests.support.fuzz_targets`.

A case is answered rightly (True), or refused by one of our exceptions that names the place (False);
whatever else comes out of it fails the target. A case that takes over `CASE_SECONDS` ends the
process, also inside C code. On stdout: the tally, as JSON. `FOLDER/last` has the last case begun.
"""

from __future__ import annotations

import contextlib
import copy
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
from _inf.errors import ConfigError, InferenceError, PromptError, ToolError
from _inf.types import Limits, ModelInfo
from tests.support import fuzz_cases as cases
from tests.support.fuzz_cases import DEFAULTS
from tests.support.fuzz_values import Cases
from tests.support.gguf_files import write_gguf
from tests.support.tiny import VOCABULARY, tiny_model

CASE_SECONDS = 20.0
ANSWER = {"completions": ["Blue."], "token_ids": [[5]], "logprobs": [[0.0]]}
USAGE = {"finish_reason": "stop", "prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}
LIMITS = Limits(prompt=512, total=640, vocabulary=VOCABULARY)
MODEL = ModelInfo(None, frozenset({0, 2}), LIMITS)
SCHEMA = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}

Attempt = Callable[[Any, Path], bool]


def told(failure: InferenceError, places: Iterable[str]) -> bool:
    """False, for a refusal; it must begin with one of `places`."""
    message = str(failure)
    assert message.startswith(tuple(places)), f"it does not say where: {message[:500]!r}"
    return False


def each_line_names(failure: ConfigError, words: Iterable[str]) -> bool:
    """False, for a refusal whose every line begins with one of the keys."""
    known = {"config", "rollout", "null", "a int", *words}
    for line in str(failure).split("\n"):
        head = re.split(r"[.:\[,]", line)[0]
        assert head in known or head.isdigit(), f"it does not say where: {line[:500]!r}"
    return False


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


def config_mapping(case: Any, folder: Path) -> bool:
    below, above = map(tree, case)
    try:
        said = load_config(below, above).to_dict()
    except ConfigError as failure:
        return each_line_names(failure, [*below, *above])
    pairs = [(FLAT.get(path, path), value) for path, value in [*case[0], *case[1]]]
    for path, value in pairs:
        near = [p for p, _ in pairs if f"{p}.".startswith(f"{path}.") or path.startswith(f"{p}.")]
        if path in DEFAULTS and len(near) == 1 and isinstance(value, bool | int | float):
            found = functools.reduce(lambda node, key: node[key], path.split("."), said)
            assert found == value and isinstance(found, bool) == isinstance(value, bool), path
    return True


def config_text(case: Any, folder: Path) -> bool:
    file = folder / "c.yaml"
    file.write_bytes(case)
    try:
        load_config(file, {})
    except ConfigError as failure:
        if not str(failure).startswith(str(file)):
            text = case.decode("utf-8", "replace") + " rollout config"
            for line in str(failure).split("\n"):
                assert line.split(":")[0].split(".")[0] in text, f"it does not say where: {line}"
        return False
    return True


def assignment(case: Any, folder: Path) -> bool:
    try:
        load_config(None, parse_assignments(case))
    except ConfigError as failure:
        paths = [text.partition("=")[0].strip() for text in case]
        return told(failure, [*case, *paths, *(FLAT[p] for p in paths if p in FLAT), "rollout."])
    return True


@functools.cache
def rollout() -> Any:
    return load_config({}, {}).rollout


@functools.cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model())


def parameters(case: Any, folder: Path) -> bool:
    from _inf.request.sampling import resolve

    prompts, keywords = case
    try:
        sampling = resolve(keywords, rollout(), prompts, MODEL)
    except (ConfigError, ToolError) as failure:
        return told(failure, [f"{name}{mark}" for name in keywords for mark in ":[."])
    for params in sampling.params:
        json.dumps(vars(params))
    return True


def prompts(case: Any, folder: Path) -> bool:
    from _inf.request.prompts import normalize
    from _inf.request.template import Template
    from _inf.request.tokenize import tokenize

    before, prompt = case
    batch = [*["hi"] * before, prompt] if before else prompt
    try:
        answered = tokenize(normalize(batch), Template(tokenizer()), LIMITS)
    except PromptError as failure:
        place = f"prompt {before}" if before else r"prompt \d+"
        assert re.match(rf"{place}[ :,]", str(failure)), f"it does not say where: {failure}"
        short = isinstance(prompt, str) and 0 < len(prompt) < 100
        assert not short or re.search("[\ud800-\udfff]", prompt), f"it is right: {failure}"
        return False
    for each in answered:
        assert 0 < len(each.token_ids) <= 512
        assert all(type(i) is int and 0 <= i < VOCABULARY for i in each.token_ids)
    return True


def responses(case: Any, folder: Path) -> bool:
    from _inf.request.tokenize import tokenize_responses

    before, response = case
    batch = [*["hi"] * before, response] if before else response
    try:
        answered = tokenize_responses(batch, before + 1, tokenizer(), LIMITS)
    except PromptError as failure:
        return told(failure, ["response"])
    assert all(0 <= i < VOCABULARY for ids in answered for i in ids)
    return True


def templates(case: Any, folder: Path) -> bool:
    from _inf.request.template import Template

    text, kwargs, tools, content = case
    own = copy.copy(tokenizer())
    own.chat_template = text
    schemas = [SCHEMA] if tools else []
    try:
        template = Template(own, kwargs, schemas=schemas, instructions="Call f.", eos_token_ids={2})
        if tools:
            template.check_turns()
        ids = template.prompt([{"role": "user", "content": content}], 3)
    except (PromptError, ToolError) as failure:
        return told(failure, ["prompt 3", "tools: the model's chat template"])
    assert ids and all(type(i) is int for i in ids)
    return True


def tools_given(case: Any, folder: Path) -> bool:
    from _inf.tools.definition import argument_fault, as_tools

    try:
        tools = as_tools(case)
    except ToolError as failure:
        return told(failure, ["tools:", "tools["])
    for tool in tools:
        json.dumps(tool.schema, allow_nan=False)
        argument_fault(tool, {"a": 1})
    return True


def tool_file(case: Any, folder: Path) -> bool:
    from _inf.tools.loading import load_tools

    file = folder / "tools.yaml"
    file.write_bytes(case)
    try:
        tools = load_tools(file)
    except ToolError as failure:
        return told(failure, [str(file)])
    assert tools and all(json.dumps(tool.schema, allow_nan=False) for tool in tools)
    return True


def batch_line(case: Any, folder: Path) -> bool:
    from _inf.apps.batch.lines import BadLine, parse
    from _inf.apps.batch.output_file import _json_line
    from _inf.response.output import GenerationOutput

    job = parse(case, 7, "m", tokenizer())
    assert job.line == 7
    if isinstance(job, BadLine):
        assert job.reason
        return False
    row = _json_line(job.row(GenerationOutput(**ANSWER, metadata=[USAGE])))
    assert b"\n" not in row[:-1]
    json.loads(row, parse_constant=lambda name: no_json(name))
    return True


def no_json(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def grammar(case: Any, folder: Path) -> bool:
    from _inf.request.grammar import json_schema_text, regex_text

    kind, value = case
    try:
        assert {"json_schema": json_schema_text, "regex": regex_text}[kind](value)
    except ConfigError as failure:
        return told(failure, [kind])
    return True


def model_text(case: Any, folder: Path) -> bool:
    from _inf.tools.definition import as_tools
    from _inf.tools.parsing import parse

    format, text = case
    last = 0
    for call in parse(text, format, as_tools([{"name": "search"}])).calls:
        assert text[call.start_pos : call.end_pos] == call.raw_text
        assert call.start_pos >= last or call.raw_text == text
        assert isinstance(call.arguments, dict) and (call.name or call.error)
        last = call.start_pos
    return True


def gguf(case: Any, folder: Path) -> bool:
    from _inf.models.resolve import resolve_model

    file = folder / "model.gguf"
    file.write_bytes(case)
    try:
        shutil.rmtree(resolve_model(str(file)))
    except ConfigError as failure:
        return told(failure, [f"model_path: {file} cannot be used: "])
    return True


def gguf_cases() -> Cases:
    return cases.ggufs(write_gguf(Path(sys.argv[2]) / "whole.gguf").read_bytes())


# What is tried, its cases (or what makes them), how many.
TARGETS: dict[str, tuple[Attempt, Cases | Callable[[], Cases], int]] = {
    "configs": (config_mapping, cases.CONFIGS, 3500),
    "config.yaml": (config_text, cases.YAMLS, 2500),
    "--set": (assignment, cases.ASSIGNMENTS, 1000),
    "parameters": (parameters, cases.CALLS, 3500),
    "prompts": (prompts, cases.BATCHES, 3000),
    "responses": (responses, cases.BATCHES, 1000),
    "chat templates": (templates, cases.TEMPLATE_CASES, 1500),
    "tools": (tools_given, cases.TOOL_LISTS, 1500),
    "tools.yaml": (tool_file, cases.TOOL_FILES, 1500),
    "JSONL lines": (batch_line, cases.FILE_LINES, 2500),
    "grammars": (grammar, cases.GRAMMARS, 1500),
    "answers with calls": (model_text, cases.SAID, 2000),
    ".gguf files": (gguf, gguf_cases, 300),
}


def main(target: str, folder: Path) -> None:
    attempt, drawn, count = TARGETS[target]
    tally = {"tried": 0, "refused": 0, "answered": 0}

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn() if callable(drawn) else drawn)
    def explore(case: Any) -> None:
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
        with contextlib.suppress(Exception):  # some cannot be printed
            (folder / "last").write_text(repr(case)[:20_000], errors="backslashreplace")
        answered = attempt(case, folder)
        faulthandler.cancel_dump_traceback_later()
        tally["tried"] += 1
        tally["answered" if answered else "refused"] += 1

    warnings.simplefilter("ignore")
    explore()
    print(json.dumps(tally))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
