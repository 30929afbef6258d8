"""lm-evaluation-harness on `engine.serve()`, compared with its own Transformers backend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
import pytest
import yaml
from lm_eval.tasks import TaskManager

from _inf.models.resolve import resolve_model
from inf import InferenceEngine

pytestmark = pytest.mark.slow
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
Answers = dict[str, list[Any]]  # the answers to each task's requests, then the task's figures


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
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
def theirs():
    """The harness's own backend on the same folder."""
    from lm_eval.models.huggingface import HFLM  # seconds of imports

    return HFLM(pretrained=str(resolve_model(None)), device="cpu", dtype="float32", batch_size=2)


def answered(model: Any, folder: Path, names: list[str], **how: Any) -> Answers:
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=model, tasks=names, task_manager=manager, bootstrap_iters=0, **how
    )
    return {
        name: [each["resps"] for each in found["samples"][name]] + [found["results"][name]]
        for name in names
    }


def asked(engine: InferenceEngine, folder: Path, names: list[str], **how: Any) -> Answers:
    """The same through the harness's client for servers, as docs/evaluation.md names its keys."""
    with engine.serve() as server:
        keys = {
            "model": engine.config.model_name,
            "base_url": f"{server.base_url}/completions",
            "tokenizer_backend": "huggingface",
            "tokenizer": str(engine.model_folder),
            "max_length": engine.model.limits.total,
        }
        local: dict[str, Any] = {"model_args": keys, "batch_size": 64}
        return answered("local-completions", folder, names, **local, **how)


def assert_equal(ours: Answers, theirs: Answers) -> None:
    for name, expected in theirs.items():
        *found, figures = ours[name]
        for mine, other in zip(found, expected[:-1], strict=True):
            if name == "own_answer":
                assert mine == other
            else:  # a log likelihood, and whether it is greedy
                both = (np.array(each, float).ravel() for each in (mine, other))
                np.testing.assert_allclose(*both, atol=1e-3)
        for metric, value in expected[-1].items():
            if isinstance(value, float):
                assert figures[metric] == pytest.approx(value, rel=1e-3), metric


def test_log_likelihoods_and_texts_are_those_of_the_harnesss_own_backend(engine, theirs, folder):
    assert_equal(asked(engine, folder, [*TASKS]), answered(theirs, folder, [*TASKS]))
    names, how = ["own_answer", "own_choice"], {"apply_chat_template": True}
    assert_equal(asked(engine, folder, names, **how), answered(theirs, folder, names, **how))


def test_text_that_is_too_long_is_cut_in_the_same_places(theirs, folder, monkeypatch):
    """On an engine whose rows have 17 tokens, so that the client cuts its windows at 15."""
    rollout = {"name": "hf", "prompt_length": 16, "response_length": 1, "dtype": "float32"}
    with InferenceEngine(device="cpu", rollout=rollout) as short:
        ours = asked(short, folder, ["own_rolling", "own_answer"])
    monkeypatch.setattr(theirs, "_max_length", 15)
    assert_equal({"own_rolling": ours["own_rolling"]}, answered(theirs, folder, ["own_rolling"]))
    monkeypatch.setattr(theirs, "_max_length", 16)
    assert_equal({"own_answer": ours["own_answer"]}, answered(theirs, folder, ["own_answer"]))
