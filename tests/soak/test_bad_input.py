"""Whatever comes in ends in a right answer, or in an exception of ours that says where."""

from __future__ import annotations

import concurrent.futures
import contextlib
import faulthandler
import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from _inf.apps.batch.lines import BadLine, parse
from _inf.apps.batch.output_file import _json_line
from _inf.config import load_config
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

pytestmark = pytest.mark.soak
CASE_SECONDS, CALL_SECONDS = 20.0, 60.0
KNOWN = {"prompts": "What is the capital of France?", "temperature": 0, "max_tokens": 8}


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

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explore()


@contextlib.contextmanager
def says_where(places: str) -> Iterator[None]:
    """Each line of a refusal begins with a word of these."""
    try:
        yield
    except InferenceError as failure:
        heads = [re.split(r"[\s:.\[,]", line)[0] for line in str(failure).split("\n")]
        said = all(head in places or head.isdigit() for head in heads)
        assert said, f"it does not say where: {str(failure)[:500]!r}"


def keys(tree: dict[Any, Any]) -> str:
    inner = [keys(each) for each in tree.values() if isinstance(each, dict)]
    return " ".join([*(key for key in tree if isinstance(key, str)), *inner])


def config(case: Any) -> None:
    with says_where(f"rollout config null a int {' '.join(map(keys, case))}"):
        load_config(*case)


def tools(case: Any) -> None:
    with says_where("tools"):
        for tool in as_tools(case):
            json.dumps(tool.schema, allow_nan=False)
            argument_fault(tool, {"a": 1})


def grammar(case: tuple[str, Any]) -> None:
    with says_where(case[0]):
        assert {"json_schema": json_schema_text, "regex": regex_text}[case[0]](case[1])


TARGETS = {
    config: (cases.CONFIGS, 3500),
    tools: (cases.TOOL_LISTS, 1500),
    grammar: (cases.GRAMMARS, 1500),
}


@pytest.mark.parametrize("work", TARGETS, ids=lambda work: work.__name__)
def test_no_case_kills_or_hangs_or_escapes(work):
    explored(TARGETS[work][0], work, TARGETS[work][1])


def test_no_file_kills_or_hangs_or_escapes(tmp_path, monkeypatch, tokenizer):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    whole, gguf = write_gguf(tmp_path / "whole.gguf").read_bytes(), tmp_path / "model.gguf"

    def batch_line(case: bytes) -> None:
        job = parse(case, 7, "m", tokenizer)
        if isinstance(job, BadLine):
            assert job.reason
            return
        answer = GenerationOutput([GenerationRow("Blue.", [5], [0.0], finish_reason="stop")])
        row = _json_line(job.row(answer))
        assert b"\n" not in row[:-1]
        json.dumps(json.loads(row), allow_nan=False)

    def yaml_file(case: bytes) -> None:
        (tmp_path / "c.yaml").write_bytes(case)
        with says_where(f"rollout config null a int {tmp_path}/c {case.decode(errors='replace')}"):
            load_config(tmp_path / "c.yaml", {})

    def gguf_file(case: bytes) -> None:
        gguf.write_bytes(case)
        with says_where("model_path"):
            shutil.rmtree(resolve_model(str(gguf)))

    explored(cases.FILE_LINES, batch_line, 2500)
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


def test_engine_outlives_every_case(tiny):
    known = tiny.generate(**KNOWN).token_ids
    threads = concurrent.futures.ThreadPoolExecutor(1)

    def call(work: Callable[..., Any], *prompts: Any, **params: Any) -> None:
        """In time; a refusal begins with a keyword, a prompt or a response."""
        with says_where(f"prompt Row response {[*params]}"):
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
