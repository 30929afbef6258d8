"""Every call that is wrong ends in one of our exceptions, and the running engine never hears of it.

`test_tokens.py` and `test_sampling.py` try far more of them; here they go through the public API.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from inf import ConfigError, InferenceEngine, InferenceError, PromptError
from tests.support.tiny import VOCABULARY, tiny_model

KNOWN = "What is the capital of France?"
USER = {"role": "user", "content": "hi"}


class Reached(Exception):
    """A request came as far as the engine."""


@pytest.fixture
def guarded(tiny: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> InferenceEngine:
    """The tiny engine with its door shut: whatever is sent to it raises `Reached`."""

    async def shut(*args: Any, **kwargs: Any) -> None:
        raise Reached

    monkeypatch.setattr(tiny.rollout._engine, "async_generate", shut)
    return tiny


@pytest.fixture(scope="module")
def known_answer() -> list[int]:
    """Transformers' greedy answer to `KNOWN`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    model = AutoModelForCausalLM.from_pretrained(tiny_model(), dtype=torch.float32)
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": KNOWN}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    answered = model.generate(**rendered, max_new_tokens=32, do_sample=False)
    return list(answered[0, rendered["input_ids"].shape[1] :].tolist())


def in_batch(prompt: Any) -> list[Any]:
    return ["hi", {"prompt_token_ids": [5]}, prompt]


# Prompts that are wrong, and what the refusal says after "prompt N".
PROMPTS: list[tuple[Any, str]] = [
    ("", " is an empty string"),
    (None, " is None"),
    (5, " is of type int"),
    (math.nan, " is of type float"),
    ({"role": "user", "content": "hi"}, " is one message; put it into a list"),
    ([1, 2, 3], ", message 0 is of type int"),
    ([{"content": "hi"}], ", message 0 has no 'role'"),
    ([USER, {"role": "user"}], ", message 1 has no 'content'"),
    ([{"role": "robot", "content": "hi"}], ", message 0: unknown role 'robot'"),
    ([{"role": "user", "content": None}], ", message 0: content is None"),
    (
        [{"role": "user", "content": [{"type": "image"}]}],
        ", message 0: content[0] is a part of type",
    ),
    ({"text": ["hi"]}, ": text is of type list"),
    ([], " is a conversation without messages"),
    ("a\ud800", ": "),
    ({"prompt_token_ids": []}, ": prompt_token_ids is empty"),
    ({"prompt_token_ids": [5, -1]}, ": prompt_token_ids[1] is -1, outside"),
    ({"prompt_token_ids": [5, VOCABULARY]}, f": prompt_token_ids[1] is {VOCABULARY}, outside"),
    ({"prompt_token_ids": [5, 6.0]}, ": prompt_token_ids[1] is of type float"),
    ({"prompt_token_ids": [5] * 513}, " has 513 tokens, above the limit of 512"),
    ({"prompt_token_ids": torch.ones(2, 2, dtype=torch.int64)}, ": prompt_token_ids[0] is of type"),
]

# These kill SGLang's scheduler or the caller where they arrive: tried behind the guard only.
DEADLY: list[tuple[str, Any]] = [
    ("top_k", 2**31),
    ("temperature", 10**400),
    ("stop", "\ud800"),
    ("repetition_penalty", 1e-320),
]
# Keywords that are wrong.
PARAMS: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens: 0 is out of range"),
    ({"max_tokens": -1}, "max_tokens: -1 is out of range"),
    ({"max_tokens": 8.0}, "max_tokens: 8.0 is not an int"),
    ({"max_tokens": "8"}, "max_tokens: '8' is not an int"),
    ({"max_tokens": True}, "max_tokens: True is not an int"),
    ({"temperature": -0.1}, "temperature: -0.1 is out of range"),
    ({"temperature": math.nan}, "temperature: nan is not a finite number"),
    ({"temperature": math.inf}, "temperature: inf is not a finite number"),
    ({"temperature": 0.5, "do_sample": False}, "do_sample: False means greedy"),
    ({"top_p": 0}, "top_p: 0 is out of range"),
    ({"top_p": 1.1}, "top_p: 1.1 is out of range"),
    ({"top_k": 0}, "top_k: 0 is out of range; -1 means all tokens"),
    ({"min_p": 1.1}, "min_p: 1.1 is out of range"),
    ({"n": 0}, "n: 0 is out of range"),
    ({"presence_penalty": 2.1}, "presence_penalty: 2.1 is out of range"),
    ({"frequency_penalty": math.nan}, "frequency_penalty: nan is not a finite number"),
    ({"stop_token_ids": [VOCABULARY]}, f"stop_token_ids[0]: {VOCABULARY} is outside"),
    ({"timeout": 0}, "timeout: 0 is out of range"),
    ({"temprature": 0.5}, "temprature: generate() has no such parameter; did you mean 'temperat"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize: "),
    ({"stop": ""}, "stop: an empty string stops everything"),
    ({"stop": ["a", 5]}, "stop: ['a', 5] is neither a string nor a list of strings"),
    ({"min_tokens": -1}, "min_tokens: -1 is out of range"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens: 9 is above max_tokens, 8"),
    ({"seed": -1}, "seed: -1 is out of range"),
    ({"seed": 2**63}, "seed: 9223372036854775808 is out of range"),
    ({"repetition_penalty": 0}, "repetition_penalty: 0 is out of range"),
    ({"json_schema": {}, "regex": "a+"}, "regex: an answer can follow one grammar"),
    ({"prompt_logprobs": 0}, "prompt_logprobs: 0 is out of range"),
    ({"progress": "no"}, "progress: 'no' is not a bool"),
    ({"temperature": [0.5] * 5}, "temperature: a list of 5 values for "),
    ({"stop": [["a"]] * 5}, "stop: a list of 5 values for "),
    ({"n": [1, 1]}, "n: [1, 1] is not an int"),
    ({"max_tokens_per_turn": 9}, "max_tokens_per_turn: without tools or interactions"),
    *((dict([deadly]), f"{deadly[0]}: ") for deadly in DEADLY),
]


# ── Calls ────────────────────────────────────────────────────────────────────────────────────────


def test_guard_sees_whatever_reaches_the_engine(guarded: InferenceEngine) -> None:
    with pytest.raises(Reached):
        guarded.generate("hi")


@pytest.mark.parametrize(("prompt", "says"), PROMPTS, ids=[says for _, says in PROMPTS])
def test_wrong_prompt_is_refused_by_index_and_sends_none_of_its_batch(
    prompt: Any, says: str, guarded: InferenceEngine
) -> None:
    with pytest.raises(PromptError) as caught:
        guarded.generate(in_batch(prompt))
    assert str(caught.value).startswith(f"prompt 2{says}") and isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("params", "says"), PARAMS, ids=[says for _, says in PARAMS])
def test_wrong_keyword_is_refused_by_name(
    params: dict[str, Any], says: str, guarded: InferenceEngine
) -> None:
    with pytest.raises(ConfigError) as caught:
        guarded.generate(["hi", "hi"], **params)  # type: ignore[misc]
    assert str(caught.value).startswith(says) and isinstance(caught.value, ValueError)
    with pytest.raises(ConfigError):
        guarded.generate([], **params)  # type: ignore[misc]  # an empty batch hides nothing


def test_wrong_value_in_a_list_names_its_prompt_and_sends_none_of_the_batch(
    guarded: InferenceEngine,
) -> None:
    for params, says in (
        ({"top_p": [0.5, None, 2]}, "^top_p: 2 is out of range.*\\(prompt 2\\)$"),
        ({"stop": [["a"], None, [""]]}, "^stop: an empty string.*\\(prompt 2\\)$"),
        ({"top_p": [0.5, 0.5]}, "^top_p: a list of 2 values for 3 prompts"),
    ):
        with pytest.raises(ConfigError, match=says):
            guarded.generate(["hi"] * 3, **params)  # type: ignore[misc]
    with pytest.raises(Reached):
        guarded.generate(["hi"] * 3, top_p=[0.5, None, 1], stop=[["a"], None, []])


def test_prompt_and_max_tokens_above_the_limit_are_refused_to_the_token(
    guarded: InferenceEngine,
) -> None:
    full = {"prompt_token_ids": [5] * 512}
    says = "prompt 2 has 512 tokens; with max_tokens=129 that is 641, above the limit of 640"
    with pytest.raises(PromptError) as caught:
        guarded.generate(in_batch(full), max_tokens=129)
    assert str(caught.value).startswith(says) and "max_tokens=128 fits" in str(caught.value)
    with pytest.raises(PromptError, match="prompt 0 has 16 tokens; with max_tokens=2147483647 "):
        guarded.generate("Hello", max_tokens=2**31 - 1)
    for max_tokens in (2**31, 2**63, 10**30):  # no int32, which is what SGLang keeps it in
        with pytest.raises(ConfigError, match="^max_tokens: .* out of range"):
            guarded.generate("Hello", max_tokens=max_tokens)
    with pytest.raises(PromptError, match="^prompt 2 has 512 tokens; with max_tokens=129 "):
        guarded.generate(in_batch(full), max_tokens=[128, 600, 129])
    with pytest.raises(Reached):
        guarded.generate(in_batch(full), max_tokens=[128, 600, 128])
    with pytest.raises(Reached):
        guarded.generate(in_batch(full), max_tokens=128)


def test_prompt_too_long_by_one_token_names_both_lengths(guarded: InferenceEngine) -> None:
    words = "a" * (512 - 11)  # a token each, and eleven of the template's
    with pytest.raises(Reached):
        guarded.generate(in_batch(words))
    with pytest.raises(PromptError, match="^prompt 2 has 513 tokens, above the limit of 512"):
        guarded.generate(in_batch(words + "a"))


def test_async_call_is_refused_the_same(guarded: InferenceEngine) -> None:
    with pytest.raises(PromptError, match="^prompt 1 is None"):
        asyncio.run(guarded.agenerate(["hi", None]))
    with pytest.raises(ConfigError, match="^top_p: 0 is out of range"):
        asyncio.run(guarded.agenerate("hi", top_p=0))


def test_empty_batch_is_an_empty_output_and_sends_nothing(guarded: InferenceEngine) -> None:
    for nothing in ([], ()):
        output = guarded.generate(nothing, n=3)
        assert len(output) == 0 and output.completions == output.metadata == []
    assert len(asyncio.run(guarded.agenerate([]))) == 0


def test_refused_calls_are_in_no_statistics(guarded: InferenceEngine) -> None:
    before = guarded.stats()
    for prompts, params in (([None], {}), (["hi"], {"n": 0}), ([], {})):
        try:
            guarded.generate(prompts, **params)  # type: ignore[misc]
        except InferenceError:
            pass
    assert guarded.stats() == before


@pytest.mark.parametrize("value", [1e10, 1e300])
def test_timeout_beyond_the_clock_is_none_or_refused(value: float, tiny: InferenceEngine) -> None:
    try:
        answered = tiny.generate("hi", max_tokens=2, timeout=value)
    except ConfigError as refused:
        assert str(refused).startswith("timeout: ")
    else:
        assert len(answered.token_ids[0]) == 2


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


def test_engine_answers_rightly_after_all_of_these(
    tiny: InferenceEngine, known_answer: list[int]
) -> None:
    for prompt, _ in PROMPTS:
        with pytest.raises(PromptError):
            tiny.generate(in_batch(prompt))
    for params, _ in PARAMS:
        if not {*params} & {name for name, value in DEADLY if params.get(name) == value}:
            with pytest.raises(ConfigError):
                tiny.generate(KNOWN, **params)  # type: ignore[misc]
    assert not tiny.rollout._engine.tokenizer_manager.rid_to_state
    assert tiny.generate(KNOWN, max_tokens=32, temperature=0).token_ids == [known_answer]


# ── Engines that do not start ────────────────────────────────────────────────────────────────────


@pytest.fixture
def starts_nothing() -> Iterator[None]:
    """No process has come into being."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


@pytest.mark.usefixtures("starts_nothing")
def test_config_file_that_is_not_there_or_no_yaml_is_one_sentence(tmp_path: Path) -> None:
    missing, broken = tmp_path / "no.yaml", tmp_path / "broken.yaml"
    broken.write_text("model_path: x\nrollout: [1\n")
    with pytest.raises(ConfigError) as caught:
        InferenceEngine(missing)
    assert str(caught.value).startswith(f"{missing}: no such config file")
    with pytest.raises(ConfigError) as caught:
        InferenceEngine(str(broken))
    assert str(caught.value).startswith(f"{broken}, line 3: not valid YAML")


@pytest.mark.usefixtures("starts_nothing")
def test_model_that_is_not_there_or_cut_short_is_one_sentence(tmp_path: Path) -> None:
    missing, cut = tmp_path / "no-model", tmp_path / "cut.gguf"
    cut.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 100, 20))  # a header and nothing after it
    with pytest.raises(ConfigError) as caught:
        InferenceEngine(model_path=str(missing))
    assert str(caught.value).startswith(f"model_path: there is nothing at {missing}")
    with pytest.raises(ConfigError) as caught:
        InferenceEngine(model_path=str(cut))
    assert str(caught.value).startswith(f"model_path: {cut} cannot be used: cut short")
    with pytest.raises(ConfigError) as caught:
        InferenceEngine(model_path="no-such-org-of-ours/no-such-model")
    assert str(caught.value).startswith("model_path: there is no folder at ")
    assert "Hub" in str(caught.value) and "\n" not in str(caught.value)
