"""The model "inf" of lm-evaluation-harness, beside the harness's own Transformers backend."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import yaml
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.tasks import TaskManager

import inf
from _inf.apps.cli import main
from _inf.apps.lm_eval import InfLM
from _inf.config import Config, load_config
from _inf.models.resolve import resolve_model
from inf import ConfigError, InferenceEngine

QUESTIONS: list[dict[str, Any]] = [
    {"question": "What is the capital of France?", "choices": ["Paris", "Rome", "a big city"]},
    {"question": "How many legs has a dog?", "choices": ["two", "four", "six"]},
]
TEXT = "Natalia sold clips to 48 of her friends in April, and then she sold half as many in May. "
CHOICE: dict[str, Any] = {
    "output_type": "multiple_choice",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": 0,
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}
ANSWER: dict[str, Any] = {
    "output_type": "generate_until",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_target": "{{choices[0]}}",
    "generation_kwargs": {"until": ["\n\n", "."], "max_gen_toks": 12, "do_sample": False},
    "metric_list": [{"metric": "exact_match"}],
}
ROLLING: dict[str, Any] = {
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{text}}",
    "metric_list": [{"metric": "word_perplexity"}],
}
TASKS = {"own_choice": CHOICE, "own_answer": ANSWER, "own_rolling": ROLLING}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks and their rows."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = [{**row, "text": TEXT * (index + 1)} for index, row in enumerate(QUESTIONS)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name, task in TASKS.items():
        files = {"data_files": {"test": str(folder / "rows.jsonl")}, "cache_dir": str(folder)}
        about = {"task": name, "dataset_path": "json", "dataset_kwargs": files}
        (folder / f"{name}.yaml").write_text(
            yaml.safe_dump({**about, "test_split": "test", **task})
        )
    return folder


@pytest.fixture(scope="module")
def tasks(folder: Path) -> TaskManager:
    """The three tasks alone."""
    return TaskManager(include_path=str(folder), include_defaults=False)


@pytest.fixture(scope="module")
def theirs() -> Any:
    """The harness's own backend on the same folder."""
    from lm_eval.models.huggingface import HFLM  # seconds of imports

    return HFLM(pretrained=str(resolve_model(None)), device="cpu", dtype="float32", batch_size=2)


def answers(model: Any, tasks: TaskManager, names: list[str], **how: Any) -> dict[str, list[Any]]:
    """The answers to each task's requests, and the figures of the task."""
    found = lm_eval.simple_evaluate(
        model=model, tasks=names, task_manager=tasks, bootstrap_iters=0, **how
    )
    return {
        name: [each["resps"] for each in found["samples"][name]] + [found["results"][name]]
        for name in names
    }


def assert_equal(ours: dict[str, list[Any]], theirs: dict[str, list[Any]]) -> None:
    for name, expected in theirs.items():
        *found, figures = ours[name]
        for mine, other in zip(found, expected[:-1], strict=True):
            if name == "own_answer":
                assert mine == other
            elif name == "own_rolling":
                assert mine == [[pytest.approx(other[0][0], abs=1e-3)]]
            else:
                for [(mine_sum, mine_greedy)], [(sum_, greedy)] in zip(mine, other, strict=True):
                    assert mine_sum == pytest.approx(sum_, abs=1e-3)
                    assert mine_greedy == greedy
        for metric, value in expected[-1].items():
            if isinstance(value, float):
                assert figures[metric] == pytest.approx(value, rel=1e-3), metric


@pytest.mark.slow
def test_log_likelihoods_and_texts_are_those_of_the_harnesss_own_backend(
    engine: InferenceEngine, theirs: Any, tasks: TaskManager
) -> None:
    ours = InfLM(engine=engine)
    assert_equal(answers(ours, tasks, [*TASKS]), answers(theirs, tasks, [*TASKS]))
    chat, names = {"apply_chat_template": True}, ["own_answer"]
    assert_equal(answers(ours, tasks, names, **chat), answers(theirs, tasks, names, **chat))
    assert ours.tokenizer_name and ours.chat_template(True) == theirs.chat_template(True)


@pytest.mark.slow
def test_text_that_is_too_long_is_scored_in_the_same_windows(
    engine: InferenceEngine, theirs: Any, tasks: TaskManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = InfLM(engine=engine)
    monkeypatch.setattr(ours, "_total", 17)
    monkeypatch.setattr(theirs, "_max_length", 16)
    assert_equal(
        answers(ours, tasks, ["own_rolling"]),
        answers(theirs, tasks, ["own_rolling"]),
    )


def test_cached_requests_are_not_asked_again(
    engine: InferenceEngine, tasks: TaskManager, tmp_path: Path
) -> None:
    cache = {"use_cache": str(tmp_path / "cache")}
    first = answers(InfLM(engine=engine), tasks, [*TASKS], **cache)
    asked = engine.stats()["requests"]
    assert asked > 0
    again = answers(InfLM(engine=engine), tasks, [*TASKS], **cache)
    assert json.dumps(again) == json.dumps(first) and engine.stats()["requests"] == asked


def test_model_is_found_by_its_name_and_its_arguments_are_the_configs(
    engine: InferenceEngine, tasks: TaskManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def recorded(config: Any = None, **overrides: Any) -> InferenceEngine:
        made.append((config, overrides))
        return engine

    monkeypatch.setattr("inf.InferenceEngine", recorded)
    how = {"model_args": "config=config.yaml,rollout.dtype=float32", "limit": 1}
    [figures] = [each[-1] for each in answers("inf", tasks, ["own_choice"], **how).values()]
    assert "acc,none" in figures
    assert made == [("config.yaml", {"rollout": {"dtype": "float32"}})]
    with pytest.raises(ConfigError, match="it runs already"):
        InfLM("config.yaml", engine=engine)


def test_entry_point_names_the_model() -> None:
    """Releases of lm-eval after 0.4.13 find models by it."""
    project = (Path(inf.__file__).parent / "pyproject.toml").read_text()
    section = project.split('[project.entry-points."lm_eval.models"]')[1]
    named = re.search(r'^inf = "(.+):(.+)"$', section, re.M)
    assert named is not None
    assert getattr(importlib.import_module(named[1]), named[2]) is InfLM


@pytest.fixture
def made(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configs with which the model would have started the session's engine."""
    configs: list[Config] = []

    def started(config: Any = None, **overrides: Any) -> InferenceEngine:
        configs.append(load_config(config, overrides))
        return engine

    monkeypatch.setattr("inf.InferenceEngine", started)
    return configs


def test_device_is_the_configs_unless_the_command_names_one(made: list[Config]) -> None:
    for device in (EvaluatorConfig().device, None, "cpu"):
        InfLM.create_from_arg_string("", {"device": device, "batch_size": 1})
    assert [config.device for config in made] == ["auto", "auto", "cpu"]
    with pytest.raises(ConfigError, match="^device: .* not 'mps'"):
        InfLM(device="mps")


@pytest.mark.slow  # lm_eval reads the names of all its own tasks
def test_command_without_a_device_scores_a_task(
    made: list[Config], folder: Path, tmp_path: Path
) -> None:
    files = ["--include_path", str(folder), "--output_path", str(tmp_path)]
    assert main(["lm-eval", "--tasks", "own_choice", "--limit", "1", *files]) == 0
    [results] = tmp_path.rglob("results_*.json")
    assert 0 <= json.loads(results.read_text())["results"]["own_choice"]["acc,none"] <= 1
    assert len(made) == 1


def test_command_passes_its_arguments_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: asked.append(sys.argv[1:]))
    arguments = ["--model_args", "config=config.yaml", "--tasks", "a,b", "--limit", "5", "-n", "2"]
    before = list(sys.argv)
    assert main(["lm-eval", *arguments]) == 0
    assert asked == [["run", "--model", "inf", *arguments]] and sys.argv == before
