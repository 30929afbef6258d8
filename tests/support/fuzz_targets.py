"""What is fuzzed without an engine, a process each: `python -m tests.support.fuzz_targets`.

A case is answered rightly (True), or refused by one of our exceptions that names the place (False);
whatever else comes out of it fails the target. A case that takes over `CASE_SECONDS` ends the
process, also inside C code. On stdout: the tally, as JSON. `FOLDER/last` has the last case begun.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from _inf.errors import ConfigError, ToolError
from tests.support import attempt_outcomes, call_strategies, languages, strategies
from tests.support.attempt_outcomes import told
from tests.support.strategies import Cases

CASE_SECONDS = 20.0

Attempt = Callable[[Any, Path], bool]


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
    from _inf.response.row import GenerationRow

    job = parse(case, 7, "m", attempt_outcomes.tokenizer())
    assert job.line == 7
    if isinstance(job, BadLine):
        assert job.reason
        return False
    row = _json_line(
        job.row(GenerationOutput([GenerationRow("Blue.", [5], [0.0], finish_reason="stop")]))
    )
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


def whole_gguf() -> bytes:
    sys.path.append(str(Path(__file__).parents[1] / "models"))
    from test_models import write_gguf

    return write_gguf(Path(sys.argv[2]) / "whole.gguf").read_bytes()


TEMPLATE_CASES: Cases = st.tuples(
    languages.TEMPLATES,
    call_strategies.KWARGS,
    st.booleans(),
    st.sampled_from(["hi", "é" * 600, "\0"]),
)
TARGETS: dict[str, tuple[Attempt, Callable[[], Cases], int]] = {
    "configs": (attempt_outcomes.config_mapping, lambda: strategies.CONFIGS, 3500),
    "config.yaml": (attempt_outcomes.config_text, lambda: strategies.YAMLS, 2500),
    "--set": (attempt_outcomes.assignment, lambda: strategies.ASSIGNMENTS, 1000),
    "parameters": (attempt_outcomes.parameters, lambda: call_strategies.CALLS, 3500),
    "prompts": (attempt_outcomes.prompts, lambda: call_strategies.BATCHES, 3000),
    "responses": (attempt_outcomes.responses, lambda: call_strategies.BATCHES, 1000),
    "chat templates": (attempt_outcomes.templates, lambda: TEMPLATE_CASES, 1500),
    "tools": (tools_given, lambda: call_strategies.TOOL_LISTS, 1500),
    "tools.yaml": (tool_file, lambda: languages.TOOL_FILES, 1500),
    "JSONL lines": (batch_line, lambda: call_strategies.FILE_LINES, 2500),
    "grammars": (grammar, lambda: languages.GRAMMARS, 1500),
    "answers with calls": (model_text, lambda: languages.SAID, 2000),
    ".gguf files": (gguf, lambda: languages.ggufs(whole_gguf()), 300),
}


def main(target: str, folder: Path) -> None:
    attempt, cases, count = TARGETS[target]
    tally = {"tried": 0, "refused": 0, "answered": 0}

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
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
