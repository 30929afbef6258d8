"""The size of what everybody meets does not grow unseen: who raises a bound here says in the change
why it is worth it."""

import ast
import dataclasses
import re
from pathlib import Path

from _inf.response.row import GenerationRow
from _inf.types import RequestOutput, SamplingParams

SOURCE = [Path("inf.py"), *sorted(Path("_inf").rglob("*.py"))]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LONG = {"inf.py"}  # the public class, most of which is documentation


def test_records_of_the_core_have_what_every_row_has():
    fields = {kind: len(dataclasses.fields(kind)) for kind in (SamplingParams, RequestOutput)}
    assert max(fields.values()) <= 12, fields
    assert len(dataclasses.fields(GenerationRow)) <= 23


def test_values_are_typed_and_attributes_named():
    text = "\n".join(path.read_text() for path in SOURCE)
    assert len(re.findall(r"\bAny\b", text)) <= 575
    assert len(re.findall(r"getattr\([^\"']*?, (?![\"'])", text)) <= 15


def test_files_and_functions_are_short():
    long = {str(path) for path in SOURCE if len(path.read_text().splitlines()) > 300}
    assert long == LONG
    for path in SOURCE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, FUNCTIONS):
                said = len((ast.get_docstring(node) or "").splitlines())
                assert node.end_lineno - node.lineno + 1 - said <= 41, f"{path}:{node.name}"
