"""A call that is wrong ends in one of our exceptions, and the running engine never hears of it.

What is wrong, and what is said of it, is tested in `tests/request/`; here it goes through the
public API.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from inf import ConfigError, InferenceEngine, InferenceError, PromptError
from tests.support.reference import Transformers
from tests.support.tiny import VOCABULARY, tiny_model

LONG = {"prompt_token_ids": [5] * 513}
FULL = {"prompt_token_ids": [5] * 512}
# Prompts and keywords that are wrong, and the beginning of what is said.
WRONG_PROMPTS: list[tuple[Any, str]] = [
    (None, "prompt 2 is None"),
    ([{"role": "robot", "content": "hi"}], "prompt 2, message 0: unknown role"),
    ("a\ud800", "prompt 2: "),
    ({"prompt_token_ids": [5, VOCABULARY]}, "prompt 2: prompt_token_ids[1] is "),
    (LONG, "prompt 2 has 513 tokens, above the limit of 512"),
]
# The last four kill SGLang's scheduler or the caller where they arrive.
WRONG_KEYWORDS: dict[str, Any] = {
    "max_tokens": 0,
    "temprature": 0.5,
    "stop_token_ids": [VOCABULARY],
    "seed": [1] * 5,
    "json_schema": {"type": "x"},
    "top_k": 2**31,
    "temperature": 10**400,
    "stop": "\ud800",
    "repetition_penalty": 1e-320,
}


class Reached(Exception):
    """A request came as far as the engine."""


@pytest.fixture
def guarded(tiny: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> InferenceEngine:
    """The tiny engine with its door shut: whatever is sent to it raises `Reached`."""

    async def shut(*args: Any, **kwargs: Any) -> None:
        raise Reached

    monkeypatch.setattr(tiny.rollout._engine, "async_generate", shut)
    return tiny


def test_guard_sees_whatever_reaches_the_engine(guarded: InferenceEngine) -> None:
    for params in ({}, {"top_p": [0.5, None, 1]}, {"max_tokens": [128, 600, 128]}):
        with pytest.raises(Reached):
            guarded.generate(["hi", "hi", FULL], **params)


@pytest.mark.parametrize(("prompt", "says"), WRONG_PROMPTS, ids=[says for _, says in WRONG_PROMPTS])
def test_wrong_prompt_is_refused_by_index_and_sends_none_of_its_batch(
    prompt: Any, says: str, guarded: InferenceEngine
) -> None:
    batch = ["hi", {"prompt_token_ids": [5]}, prompt]
    for call in (guarded.generate, lambda batch: asyncio.run(guarded.agenerate(batch))):
        with pytest.raises(PromptError) as caught:
            call(batch)
        assert str(caught.value).startswith(says) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", WRONG_KEYWORDS)
def test_wrong_keyword_is_refused_by_name_and_by_prompt_and_sends_nothing(
    name: str, guarded: InferenceEngine
) -> None:
    params: dict[str, Any] = {name: WRONG_KEYWORDS[name]}
    for prompts in (["hi", "hi"], []):  # an empty batch hides nothing
        with pytest.raises(ConfigError, match=rf"^{name}[:\[.]") as caught:
            guarded.generate(prompts, **params)
        assert isinstance(caught.value, ValueError)
    with pytest.raises(ConfigError, match=rf"^{name}[:\[.]"):
        asyncio.run(guarded.agenerate("hi", **params))
    with pytest.raises(ConfigError, match=r"^top_p: 2 .*\(prompt 2\)$"):
        guarded.generate(["hi"] * 3, top_p=[0.5, None, 2])


def test_prompt_and_max_tokens_above_the_limit_are_refused_to_the_token(
    guarded: InferenceEngine,
) -> None:
    for max_tokens in (129, [128, 600, 129]):
        says = "^prompt 2 has 512 tokens; with max_tokens=129 that is 641, above the limit of 640"
        with pytest.raises(PromptError, match=says):
            guarded.generate(["hi", "hi", FULL], max_tokens=max_tokens)  # type: ignore[arg-type]


def test_empty_batch_sends_nothing_and_refused_calls_are_in_no_statistics(
    guarded: InferenceEngine,
) -> None:
    before = guarded.stats()
    for nothing in ([], ()):
        output = guarded.generate(nothing, n=3)
        assert len(output) == 0 and output.completions == output.metadata == []
    for prompts, params in (([None], {}), (["hi"], {"n": 0})):
        with pytest.raises(InferenceError):
            guarded.generate(prompts, **params)  # type: ignore[misc]
    assert guarded.stats() == before


def test_extreme_values_inside_the_ranges_are_answered(tiny: InferenceEngine) -> None:
    greedy = tiny.generate("hi", max_tokens=4, temperature=0).token_ids
    for params in (
        {"temperature": 5e-324},
        {"temperature": 1e-6},
        {"temperature": 1.0, "top_p": 5e-324},
        {"temperature": 1.0, "min_p": 1},
        {"temperature": 100.0, "top_k": 1},
    ):
        assert tiny.generate("hi", max_tokens=4, **params).token_ids == greedy  # type: ignore[misc]
    for params in (
        {"temperature": 1e39},  # no float32
        {"temperature": 1.0, "top_k": 2**31 - 1},
        {"temperature": 1.0, "presence_penalty": -2, "frequency_penalty": 2},
        {"stop_token_ids": list(range(VOCABULARY)), "ignore_eos": True},
        {"temperature": 1.0, "seed": 2**63 - 1},
        {"temperature": 1.0, "repetition_penalty": 1e39},
        {"stop": ["x"] * 1000 + ["é" * 3000]},
        {"min_tokens": 4},
    ):
        answered = tiny.generate("hi", max_tokens=4, **params)  # type: ignore[misc]
        assert all(math.isfinite(logprob) for logprob in answered.logprobs[0])


def test_engine_answers_rightly_after_refusals(tiny: InferenceEngine) -> None:
    for prompt, _ in WRONG_PROMPTS:
        with pytest.raises(PromptError):
            tiny.generate(["hi", "hi", prompt])
    for name in list(WRONG_KEYWORDS)[:-4]:
        with pytest.raises(ConfigError):
            tiny.generate("hi", **{name: WRONG_KEYWORDS[name]})  # type: ignore[arg-type]
    assert not tiny.rollout._engine.tokenizer_manager.rid_to_state
    ids = [5, 6, 7, 8]
    answered = tiny.generate({"prompt_token_ids": ids}, max_tokens=32, temperature=0).token_ids
    assert answered == Transformers.of(tiny_model()).greedy([ids], 32)


# ── Engines that do not start ────────────────────────────────────────────────────────────────────


@pytest.fixture
def starts_nothing() -> Iterator[None]:
    """No process has come into being."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def no_yaml(folder: Path) -> dict[str, Any]:
    (folder / "broken.yaml").write_text("model_path: x\nrollout: [1\n")
    return {"config": folder / "broken.yaml"}


def cut_gguf(folder: Path) -> dict[str, Any]:
    header = struct.pack("<4sIQQ", b"GGUF", 3, 100, 20)
    (folder / "cut.gguf").write_bytes(header)
    return {"model_path": str(folder / "cut.gguf")}


@pytest.mark.usefixtures("starts_nothing")
@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        (lambda folder: {"config": folder / "no.yaml"}, "{folder}/no.yaml: no such config file"),
        (no_yaml, "{folder}/broken.yaml, line 3: not valid YAML"),
        (lambda folder: {"model_path": f"{folder}/no"}, "model_path: there is nothing at {folder}"),
        (cut_gguf, "model_path: {folder}/cut.gguf cannot be used: cut short"),
        (lambda _: {"model_path": "no-such-org-of-ours/none"}, "model_path: there is no folder at"),
    ],
)
def test_config_or_model_that_is_not_there_or_broken_is_one_sentence_and_no_process(
    keywords: Callable[[Path], dict[str, Any]], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        InferenceEngine(**keywords(tmp_path))
    assert str(caught.value).startswith(says.format(folder=tmp_path))
    assert "\n" not in str(caught.value) or "yaml" in says
