"""The Python of the README and of pages of docs/, run as it stands; `test_backends.py` runs that of
generate.md on a server."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
from omegaconf import OmegaConf

import inf
from _inf.apps.check.records.measure import check_records
from _inf.apps.check.records.reading import read_records
from _inf.request.keywords import KEYWORDS
from _inf.runtime.extras import has_verl
from inf import InferenceEngine
from tests.support.environments import Sums
from tests.support.pages import ROOT, blocks, printing
from tests.support.scripts import (
    GONE_SECONDS,
    INF,
    START_SECONDS,
    alive,
    command_line,
    script,
    until,
)
from tests.support.upstream import upstream
from tests.support.vision import picture, vision_model


def runs_here(block: str) -> bool:
    """Whether a program needs no verl, and nothing else that is not installed, where verl is not:
    with it all programs run."""
    modules = re.findall(r"^ *(?:from|import) (\w+)", block, re.M)
    needs_verl = re.search(r"_batch\(|_config_path|verl", block) is not None
    return has_verl() or (not needs_verl and all(map(importlib.util.find_spec, modules)))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """`run(engine, *programs)` runs programs in a new folder, whose engine is this one; returns
    their names."""
    monkeypatch.chdir(tmp_path)

    def run(engine: object, *programs: str) -> dict[str, Any]:
        monkeypatch.setattr(inf, "InferenceEngine", lambda **_: engine)
        names: dict[str, Any] = {"__name__": "page"}
        for program in programs:
            exec(compile(program, "page", "exec"), names)
        return names

    return run


def test_python_of_the_page_on_serving_runs(tiny, run, capsys):
    programs = blocks("docs/serving.md", "python")
    if not has_verl():
        programs = [each.partition("    batch = engine.trainer_batch(")[0] for each in programs]
    names = run(contextlib.nullcontext(tiny), *filter(runs_here, programs))
    assert len(names["trace"].finish_reasons) == 2 and capsys.readouterr().out
    if has_verl():
        assert len(names["batch"]) == 4
        of_rows = names["of_rows"][:, 0].tolist()
        assert of_rows == pytest.approx([2**-0.5] * 2 + [-(2**-0.5)] * 2, abs=1e-4)


@pytest.mark.verl
def test_program_of_the_page_on_agents_makes_a_batch(tiny, run):
    """Each rollout has the two answers of a process of its own. One agent asks nothing at first,
    and one does not end."""
    program, agent = blocks("docs/train_any_agent.md", "python")
    first = "import os, pathlib, sys, time\nurl = os.environ['OPENAI_BASE_URL']\n"
    first += "if 'france-0-0' in url: sys.exit()\n"
    last = "\nif 'sky-1-' in url: time.sleep(600)\n"
    Path("agent.py").write_text(first + agent + last)
    names = run(contextlib.nullcontext(tiny), program.replace("SECONDS = 600", "SECONDS = 12"))
    columns = names["batch"].non_tensor_batch
    assert [*columns["uid"]] == ["france", "france", "sky", "sky"]
    assert len({*columns["rollout"]}) == 4 and [*columns["__num_turns__"]] == [2] * 4
    assert len(inf.load_traces("traces.jsonl")) == 4


@pytest.mark.verl
def test_python_of_the_page_on_rollouts_runs_and_its_batch_comes_back(tiny, run):
    names = run(contextlib.nullcontext(tiny), *blocks("docs/rollouts.md", "python"))
    before, after = names["batch"].batch, names["again"].batch
    assert all(before[name].equal(after[name]) for name in before.keys())
    assert len(names["one"]) == 1 and len(names["rollouts"]) == 4


def test_python_of_the_page_on_records_makes_a_fault_that_the_check_finds(tiny, run):
    run(contextlib.nullcontext(tiny), *blocks("docs/records.md", "python"))
    report = check_records(read_records(Path("records.jsonl"), None), engine=tiny)
    [finding] = report.findings
    assert "logprobs is at 0.70 times old_log_probs's temperature" in finding.meaning
    assert "logprobs is at 0.70 times the model's temperature" in report.by_model["logprobs"]
    assert report.by_model["old_log_probs"].startswith("of all tokens at temperature 1, as the")


def test_python_of_the_page_on_images_runs(run, capsys):
    picture(1, 60, 90).save("photo.jpg")
    settings = {"name": "hf", "prompt_length": 800, "response_length": 64}
    with InferenceEngine(model_path=str(vision_model("llava")), rollout=settings) as engine:
        names = run(contextlib.nullcontext(engine), *blocks("docs/images.md", "python"))
    assert str(names["row"].images) in capsys.readouterr().out


def test_python_of_the_page_on_evaluation_runs(tiny, run, monkeypatch, capsys):
    own_reward, program, tracked, _ = blocks("docs/evaluation.md", "python")
    row = {"prompt": "Hello", "data_source": "own", "reward_model": {"ground_truth": "e"}}
    pandas.DataFrame([row]).to_parquet("test.parquet")
    reward = run(None, own_reward)["compute_score"]
    monkeypatch.setattr(inf, "evaluate", functools.partial(inf.evaluate, reward=reward))
    names = run(contextlib.nullcontext(tiny), *filter(runs_here, (program, tracked)))
    assert "val-aux/own/length/mean@4" in names["report"].metrics
    assert capsys.readouterr().out.startswith("{")


def engine_of(block: str) -> InferenceEngine:
    """The engine that a block makes."""
    [call] = re.findall(r"InferenceEngine\(.*?\)", block, re.S)
    engine = eval(call, {"InferenceEngine": InferenceEngine})
    assert isinstance(engine, InferenceEngine)
    return engine


def write_files(page: str) -> list[str]:
    """Write the blocks that begin with a file's name into that file."""
    found = []
    for block in blocks(page, "(?:python|yaml)"):
        if file := re.match(r"# (\w+\.(?:py|yaml))\n", block):
            Path(file[1]).write_text(block)
            found.append(block)
    return found


@pytest.mark.parametrize(
    ("page", "lines", "without_verl"),
    [
        ("tools", 5, 2),
        ("environments", 7, 6),
        pytest.param("agent_loops", 3, 0, marks=pytest.mark.verl),
    ],
)
def test_page_prints_what_its_comments_say(
    page, lines, without_verl, caller, run, tmp_path, monkeypatch, capsys
):
    """One engine, the last, runs all blocks that are no file."""
    monkeypatch.syspath_prepend(tmp_path)
    files = write_files(f"docs/{page}.md")
    programs = [*filter(runs_here, blocks(f"docs/{page}.md", "python"))]
    programs = [block for block in programs if block not in files]
    Path("tests").symlink_to(ROOT / "tests")
    *_, last = (block for block in programs if "InferenceEngine(" in block)
    # That of environments is the session's, but for its backend.
    with contextlib.nullcontext(caller) if page == "environments" else engine_of(last) as engine:
        assert sys.path.count(str(tmp_path)) == 1  # the tests', and none of the engine's
        run(engine, *programs)
    sys.modules.pop("homework", None)
    said = capsys.readouterr().out.splitlines()
    expected = re.findall(r"^print\(.*\)  # (.*)$", "".join(programs), re.M)
    assert len(expected) == (lines if has_verl() else without_verl)
    assert said[: len(expected)] == expected
    if page == "tools":  # and a conversation
        turns = ["user", "assistant"] * 2 if has_verl() else []
        assert [line.split(" | ")[0] for line in said[len(expected) :]] == turns


@pytest.mark.parametrize("page", ["README.md", "docs/first_hour.md", "docs/generate.md"])
def test_programs_print_what_the_page_shows(page, engine, caller, tmp_path, monkeypatch, capsys):
    engines = {"": engine, "tests/tool_model": caller}
    monkeypatch.setattr(inf, "InferenceEngine", lambda model_path="": engines[model_path])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for program, lines in printing(page):
        exec(compile(program, page, "exec"), names)
        assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == lines


@pytest.mark.slow
@pytest.mark.verl
def test_commands_of_the_first_hour_print_what_the_page_shows(
    engine, command, tmp_path, monkeypatch
):
    """But for speeds and dates, and what a chat shows on a terminal only."""
    start = inf.InferenceEngine
    monkeypatch.setattr(
        inf,
        "InferenceEngine",
        lambda config: start(config) if config.model_path else contextlib.nullcontext(engine),
    )
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "tests", "tools.yaml"):
        Path(name).symlink_to(ROOT / name)
    trainers = OmegaConf.load(upstream("verl/trainer/config/_generated_ppo_trainer.yaml"))
    trainers.actor_rollout_ref.model.path = "tests/tool_model"
    OmegaConf.save(trainers, "config.yaml")
    changing = re.compile(r"\d+ tok/s|\d{4}-\d\d-\d\d")
    ran = 0
    for typed, lines in printing("docs/first_hour.md", "bash"):
        if not lines:  # it needs a network
            continue
        said = [line.removeprefix("You: ") for line in lines if line.startswith("You: ")]
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(said)))
        code, out, err = command(*shlex.split(typed.replace("\\\n", ""))[1:])
        shown = [line for line in lines if not (said and re.match("You: |.* tok/s", line))]
        printed = [line for line in (out or err).splitlines() if line]
        assert code == 0
        assert [changing.sub("", line) for line in printed] == [
            changing.sub("", line) for line in shown
        ]
        ran += 1
    assert ran == 7


def weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"


@pytest.mark.filterwarnings("ignore:n. the 4 samples:UserWarning")
def test_page_on_generate_has_each_keyword_with_a_value_that_works(tiny):
    """What needs a config, a model or files of its own has a link, and may be refused by name."""
    page = (ROOT / "docs/generate.md").read_text()
    shown = re.findall(r"^\| `(\w+)=(.*?)` \| (.*) \|$", page, re.M)
    _, _, rest = page.partition("<!-- generated: other keywords -->")
    others = re.findall(r"^\| `(\w+)` ", rest.partition("<!-- end -->")[0], re.M)
    assert sorted([*others, *(name for name, _, _ in shown)]) == sorted(KEYWORDS)
    asked = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "It is"}]
    for name, value, said in shown:
        given = {"max_tokens": 64} | {name: eval(value, {"weather": weather, "Game": Sums})}
        prompts = asked if name == "continue_final_message" else "Hello"
        try:
            assert tiny.generate(prompts, **given).completions
        except inf.ConfigError as refusal:
            assert "](" in said and str(refusal).startswith(name), (name, refusal)


@pytest.mark.slow
def test_file_of_an_mcp_server_on_the_page_of_tools_runs_and_nothing_but_the_answer_is_printed(
    tmp_path, monkeypatch
):
    """A model of Transformers starts, answers and ends without a word: Transformers 5 has progress
    bars of weights, Triton 3.9 a report at an unusual exit. So does the server."""
    pytest.importorskip("mcp_types", reason="version 2 of the package mcp is not installed")
    monkeypatch.chdir(tmp_path)
    write_files("docs/tools.md")
    Path("tests").symlink_to(ROOT / "tests")
    Path(".venv").symlink_to(sys.prefix)
    [command] = blocks("docs/tools.md", "bash")
    words = ["--set", "rollout.name=hf", *shlex.split(command.replace("\\\n", ""))[1:]]
    with script(INF, tmp_path, arguments=words) as run:
        assert until(
            lambda: any("mcp_program.py" in command_line(each) for each in run.meet()),
            START_SECONDS,
        ), run.err
        assert run.exit_code(START_SECONDS) == 0
        assert (run.out, run.err) == ("The answer is 84.\n", "")
        assert until(lambda: not alive(run.family), GONE_SECONDS)
