"""`inf lm-eval` beside lm-evaluation-harness's own Transformers backend."""

from __future__ import annotations

import contextlib
import functools
import json
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import yaml
from lm_eval.tasks import TaskManager

from _inf.apps.cli import main
from _inf.apps.cli.lm_eval import _adds_special_tokens
from _inf.config import Config
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
def theirs() -> Any:
    """The harness's own backend on the same folder."""
    from lm_eval.models.huggingface import HFLM  # seconds of imports

    return HFLM(pretrained=str(resolve_model(None)), device="cpu", dtype="float32", batch_size=2)


@pytest.fixture
def made(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configs with which the command would have started the session's engine."""
    configs: list[Config] = []

    def started(config: Config) -> Any:
        configs.append(config)
        return contextlib.nullcontext(engine)

    monkeypatch.setattr("inf.InferenceEngine", started)
    return configs


@pytest.fixture(autouse=True)
def only_own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of all the harness's own would take seconds."""
    own = functools.partial(TaskManager, include_defaults=False)
    monkeypatch.setattr("lm_eval.tasks.TaskManager", own)


def expected(model: Any, folder: Path, names: list[str], **how: Any) -> Answers:
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=model, tasks=names, task_manager=manager, bootstrap_iters=0, **how
    )
    return {
        name: [each["resps"] for each in found["samples"][name]] + [found["results"][name]]
        for name in names
    }


def run(folder: Path, into: Path, names: list[str], *arguments: str) -> Answers:
    files = ["--include_path", str(folder), "--output_path", str(into), "--log_samples"]
    assert main(["lm-eval", "--tasks", ",".join(names), *files, *arguments]) == 0
    results = json.loads(max(into.rglob("results_*.json")).read_text())["results"]
    found: Answers = {}
    for name in names:
        lines = max(into.rglob(f"samples_{name}_*.jsonl")).read_text().splitlines()
        rows = sorted(map(json.loads, lines), key=lambda row: int(row["doc_id"]))
        found[name] = [row["resps"] for row in rows] + [results[name]]
    return found


def assert_equal(ours: Answers, theirs: Answers) -> None:
    for name, expected in theirs.items():
        *found, figures = ours[name]
        for mine, other in zip(found, expected[:-1], strict=True):
            if name == "own_answer":
                assert mine == other
            elif name == "own_rolling":
                [[total]] = mine
                assert float(total) == pytest.approx(other[0][0], abs=1e-3)
            else:
                for [(mine_sum, mine_greedy)], [(sum_, greedy)] in zip(mine, other, strict=True):
                    assert float(mine_sum) == pytest.approx(sum_, abs=1e-3)
                    assert str(mine_greedy) == str(greedy)
        for metric, value in expected[-1].items():
            if isinstance(value, float):
                assert figures[metric] == pytest.approx(value, rel=1e-3), metric


def test_log_likelihoods_and_texts_are_those_of_the_harnesss_own_backend_and_can_be_cached(
    made: list[Config], engine: InferenceEngine, theirs: Any, folder: Path, tmp_path: Path
) -> None:
    cache = ("--use_cache", str(tmp_path / "cache"))
    first = run(folder, tmp_path / "1", [*TASKS], *cache)
    assert_equal(first, expected(theirs, folder, [*TASKS]))
    asked = engine.stats()["requests"]
    again = run(folder, tmp_path / "2", [*TASKS], *cache)
    assert json.dumps(again) == json.dumps(first) and engine.stats()["requests"] == asked
    chat, names = {"apply_chat_template": True}, ["own_answer", "own_choice"]
    ours = run(folder, tmp_path / "3", names, "--apply_chat_template")
    assert_equal(ours, expected(theirs, folder, names, **chat))


def test_text_that_is_too_long_is_cut_in_the_same_places(
    theirs: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an engine whose rows have 17 tokens, so that the client cuts its windows at 15."""
    short = "rollout.name=hf,rollout.prompt_length=5,rollout.response_length=12"
    args = ("--model_args", f"{short},rollout.dtype=float32", "--device", "cpu")
    ours = run(folder, tmp_path, ["own_rolling", "own_answer"], *args)
    monkeypatch.setattr(theirs, "_max_length", 15)
    assert_equal({"own_rolling": ours["own_rolling"]}, expected(theirs, folder, ["own_rolling"]))
    monkeypatch.setattr(theirs, "_max_length", 16)
    assert_equal({"own_answer": ours["own_answer"]}, expected(theirs, folder, ["own_answer"]))


def test_model_args_are_the_configs(
    made: list[Config], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("rollout: {prompt_length: 100, response_length: 50}\n")
    (tmp_path / "lm.yaml").write_text("model_args: {rollout.n: 1, rollout.dtype: bfloat16}\n")
    keys = f"config={tmp_path / 'config.yaml'},rollout.dtype=float32,max_gen_toks=7"
    arguments = ("--limit", "1", "--device", "cpu", "--config", str(tmp_path / "lm.yaml"))
    run(folder, tmp_path, ["own_choice"], "--model_args", keys, *arguments)
    [config] = made
    rollout = config.rollout
    assert (rollout.dtype, config.device) == ("float32", "cpu")
    assert (rollout.prompt_length, rollout.response_length) == (149, 1)
    assert "max_gen_toks': 7" in capsys.readouterr().out  # the harness prints its client's
    run(folder, tmp_path, ["own_choice"], "--limit", "1")
    assert made[1].device == "auto"
    assert not made[1].rollout.model_fields_set & {"prompt_length", "response_length"}
    asked = ["lm-eval", "--tasks", "own_answer", "--limit", "1", "--include_path", str(folder)]
    for wrong, code, words in (
        (["--device", "mps"], 2, "not 'mps'"),
        (["--model", "hf"], 2, "--model: it is this engine"),
        (["--gen_kwargs", "penalty_alpha=1"], 1, "inf: lm-eval: penalty_alpha: "),
    ):
        assert main([*asked, *wrong]) == code and words in capsys.readouterr().err


def test_context_begins_with_one_bos(engine: InferenceEngine) -> None:
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(engine.model_folder))
    assert not _adds_special_tokens(tokenizer, rendered=False)
    bos = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=[bos, "$A"], pair=None, special_tokens=[(bos, tokenizer.bos_token_id)]
    )
    assert _adds_special_tokens(tokenizer, rendered=False)
    assert tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}], tokenize=False
    ).startswith(bos)
    assert not _adds_special_tokens(tokenizer, rendered=True)
    tokenizer.chat_template = "{{ messages[0].content }}"
    assert _adds_special_tokens(tokenizer, rendered=True)
