"""Whatever comes in ends in a right answer, or in an exception of ours that says where."""

from __future__ import annotations

import concurrent.futures
import contextlib
import faulthandler
import functools
import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from _inf.apps.batch.lines import BadLine, parse
from _inf.apps.batch.output_file import _json_line
from _inf.config import load_config
from _inf.config.load import FLAT
from _inf.errors import InferenceError
from _inf.models.resolve import resolve_model
from _inf.parts.grammars.schemas import json_schema_text, regex_text
from _inf.response.output import GenerationOutput
from _inf.response.row import GenerationRow
from _inf.tools.definition import as_tools
from _inf.tools.json_schemas import argument_fault
from inf import EngineDeadError
from tests.support import fuzz_cases as cases
from tests.support.gguf_file import write_gguf
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.soak
CASE_SECONDS, CALL_SECONDS = 20.0, 60.0
KNOWN = {"prompts": "What is the capital of France?", "temperature": 0}
KNOWN |= {"max_tokens": 8}
CAN_SAY = "rollout config null a int"  # what a line of a config's refusal may begin with, too


def explored(case: cases.Cases, work: Callable[[Any], None], count: int) -> None:
    """Do so many cases. One that takes over `CASE_SECONDS` ends the process, also in C code."""

    @settings(
        max_examples=count,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case)
    def explore(one: Any) -> None:
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
        work(one)
        faulthandler.cancel_dump_traceback_later()

    tokenizer()  # its imports take as long as many cases
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explore()


@contextlib.contextmanager
def says_where(places: Iterable[str] | str) -> Iterator[None]:
    """A refusal begins with one of the places; or each of its lines with a word of the text."""
    try:
        yield
    except InferenceError as failure:
        heads = [re.split(r"[:.\[,]", line)[0] for line in str(failure).split("\n")]
        if isinstance(places, str):
            said = all(head in f"{CAN_SAY} {places}" or head.isdigit() for head in heads)
        else:
            said = str(failure).startswith(tuple(places))
        assert said, f"it does not say where: {str(failure)[:500]!r}"


def tree(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    whole = {}
    for path, value in pairs:
        *above, last = path.split(".")
        node = whole
        for key in above:
            if not isinstance(node.get(key), dict):
                node[key] = {}
            node = node[key]
        node[last] = value
    return whole


def config(case: Any) -> None:
    paths = " ".join(path for path, _ in [*case[0], *case[1]])
    with says_where(paths):
        said = load_config(*map(tree, case)).to_dict()
        pairs = [(FLAT.get(path, path), value) for path, value in [*case[0], *case[1]]]
        for path, value in pairs:
            near = [p for p, _ in pairs if f"{p}.".startswith(f"{path}.") or path.startswith(p)]
            if path in cases.DEFAULTS and len(near) == 1 and isinstance(value, bool | int | float):
                found = functools.reduce(lambda node, key: node[key], path.split("."), said)
                assert found == value and isinstance(found, bool) == isinstance(value, bool), path


def tools(case: Any) -> None:
    with says_where(["tools:", "tools["]):
        for tool in as_tools(case):
            json.dumps(tool.schema, allow_nan=False)
            argument_fault(tool, {"a": 1})


@functools.cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model())


def batch_line(case: bytes) -> None:
    job = parse(case, 7, "m", tokenizer())
    assert job.line == 7
    if isinstance(job, BadLine):
        assert job.reason
        return
    answer = GenerationOutput([GenerationRow("Blue.", [5], [0.0], finish_reason="stop")])
    row = _json_line(job.row(answer))
    assert b"\n" not in row[:-1]
    json.dumps(json.loads(row), allow_nan=False)


def grammar(case: tuple[str, Any]) -> None:
    with says_where([case[0]]):
        assert {"json_schema": json_schema_text, "regex": regex_text}[case[0]](case[1])


TARGETS = {
    config: (cases.CONFIGS, 3500),
    tools: (cases.TOOL_LISTS, 1500),
    batch_line: (cases.FILE_LINES, 2500),
    grammar: (cases.GRAMMARS, 1500),
}


@pytest.mark.parametrize("work", TARGETS, ids=lambda work: work.__name__)
def test_no_case_kills_or_hangs_or_escapes(work):
    explored(TARGETS[work][0], work, TARGETS[work][1])


def test_no_file_kills_or_hangs_or_escapes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()

    def yaml_file(case: bytes) -> None:
        (tmp_path / "c.yaml").write_bytes(case)
        with says_where(f"{tmp_path / 'c'} {case.decode('utf-8', 'replace')}"):
            load_config(tmp_path / "c.yaml", {})

    def gguf_file(case: bytes) -> None:
        (tmp_path / "model.gguf").write_bytes(case)
        with says_where([f"model_path: {tmp_path / 'model.gguf'} cannot be used: "]):
            shutil.rmtree(resolve_model(str(tmp_path / "model.gguf")))

    explored(cases.YAMLS | cases.damaged(cases.YAMLS), yaml_file, 2500)
    places = st.integers(0, 400) | st.integers(0, len(whole) - 1)
    explored(places.map(lambda end: whole[:end]) | cases.damaged(st.just(whole)), gguf_file, 300)


# ─── Through a live engine ───

RIGHT = cases.one_of(["Hello", {"prompt_token_ids": [5, 6]}, [{"role": "user", "content": "a"}]])
PROMPTS = RIGHT | cases.PROMPTS


def live(params: dict[str, Any]) -> dict[str, Any]:
    """With few tokens and samples: what they cost is nothing of this test's."""
    few = {name: value for name, value in params.items() if name not in ("timeout", "progress")}
    for name, most in (("n", 3), ("max_tokens", 4)):
        if isinstance(few.get(name), int) and most < few[name] < 2**31:
            few[name] = most
    return {"max_tokens": 4, **few} if few.get("max_tokens") is None else few


def test_engine_outlives_every_case(tiny, figures):
    known = tiny.generate(**KNOWN).token_ids
    threads = concurrent.futures.ThreadPoolExecutor(1)

    def call(work: Callable[..., Any], *prompts: Any, **params: Any) -> None:
        """In time; a refusal begins with a keyword, a prompt or a response."""
        places = ["prompt ", "Row ", "response", *(f"{n}{mark}" for n in params for mark in ":[.")]
        with says_where(places):
            try:
                threads.submit(lambda: list(work(*prompts, **params))).result(CALL_SECONDS)
            except EngineDeadError as died:
                raise AssertionError("the engine died") from died

    batches = PROMPTS | st.lists(PROMPTS, min_size=2, max_size=4)
    grammars = cases.GRAMMARS.map(lambda grammar: dict([grammar]))
    for work, drawn in (
        (tiny.generate, st.tuples(batches, cases.KEYWORDS)),
        (tiny.generate, st.tuples(RIGHT, grammars)),
        (tiny.stream, st.tuples(PROMPTS, cases.KEYWORDS)),
    ):
        explored(drawn, lambda case, work=work: call(work, case[0], **live(case[1])), 300)
        assert tiny.generate(**KNOWN).token_ids == known
    explored(st.tuples(PROMPTS, PROMPTS), lambda case: call(tiny.get_logprobs, *case), 300)
    assert tiny.generate(**KNOWN).token_ids == known
    host = tiny.rollout.host
    assert host.death is None and all(child.is_alive() for child in host.children)
    figures("calls of a live engine", "1,200")
