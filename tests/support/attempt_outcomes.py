"""One case of a config or of a call: True where it is answered, False where it is refused.

Whatever else comes out of it is a fault, a refusal that does not say where too.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from _inf.config import load_config, parse_assignments
from _inf.config.load import FLAT
from _inf.errors import ConfigError, InferenceError, PromptError, ToolError
from _inf.types import Limits, ModelInfo
from tests.support.strategies import DEFAULTS
from tests.support.tiny import VOCABULARY, tiny_model


def told(failure: InferenceError, places: Iterable[str]) -> bool:
    """False, for a refusal; it must begin with one of `places`."""
    message = str(failure)
    assert message.startswith(tuple(places)), f"it does not say where: {message[:500]!r}"
    return False


# ─── Configs ───


def tree(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for path, value in pairs:
        *above, last = path.split(".")
        node = whole
        for key in above:
            if not isinstance(node.get(key), dict):
                node[key] = {}
            node = node[key]
        node[last] = value
    return whole


def each_line_names(failure: ConfigError, words: Iterable[str]) -> bool:
    known = {"config", "rollout", "null", "a int", *words}
    for line in str(failure).split("\n"):
        head = re.split(r"[.:\[,]", line)[0]
        assert head in known or head.isdigit(), f"it does not say where: {line[:500]!r}"
    return False


def config_mapping(case: Any, folder: Path) -> bool:
    below, above = map(tree, case)
    try:
        config = load_config(below, above)
    except ConfigError as failure:
        return each_line_names(failure, [*below, *above])
    said = config.to_dict()
    pairs = [(FLAT.get(path, path), value) for path, value in [*case[0], *case[1]]]
    for path, value in pairs:
        alone = sum(
            f"{p}.".startswith(f"{path}.") or f"{path}.".startswith(f"{p}.") for p, _ in pairs
        )
        plain = value is None or isinstance(value, bool | int | float)
        if alone == 1 and plain and not isinstance(DEFAULTS.get(path, {}), dict):
            found = functools.reduce(lambda node, key: node[key], path.split("."), said)
            same = found == value or (value is not None and float(found) == float(value))
            assert same and isinstance(found, bool) == isinstance(value, bool), path
    return True


def config_text(case: Any, folder: Path) -> bool:
    file = folder / "c.yaml"
    file.write_bytes(case)
    try:
        load_config(file, {})
    except ConfigError as failure:
        if not str(failure).startswith(str(file)):
            text = case.decode("utf-8", "replace") + " rollout config"
            for line in str(failure).split("\n"):
                assert line.split(":")[0].split(".")[0] in text, f"it does not say where: {line}"
        return False
    return True


def assignment(case: Any, folder: Path) -> bool:
    try:
        load_config(None, parse_assignments(case))
    except ConfigError as failure:
        paths = [text.partition("=")[0].strip() for text in case]
        return told(failure, [*case, *paths, *(FLAT[p] for p in paths if p in FLAT), "rollout."])
    return True


# ─── Calls ───


def real(value: Any, low: float, high: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    with contextlib.suppress(OverflowError):
        return math.isfinite(float(value)) and low <= float(value) <= high
    return False


def whole(value: Any, low: int, high: int) -> bool:
    return (
        isinstance(value, numbers.Integral)
        and type(value) is not bool
        and low <= int(value) <= high
    )


INT32, TINY = 2**31 - 1, 5e-324
RIGHT: Mapping[str, Callable[[Any], bool]] = {
    "temperature": lambda value: real(value, 0, math.inf),
    "top_p": lambda value: real(value, TINY, 1),
    "min_p": lambda value: real(value, 0, 1),
    "presence_penalty": lambda value: real(value, -2, 2),
    "frequency_penalty": lambda value: real(value, -2, 2),
    "repetition_penalty": lambda value: real(value, 1e-6, math.inf),
    "timeout": lambda value: real(value, TINY, 1e300),
    "top_k": lambda value: whole(value, -1, INT32) and int(value) != 0,
    "max_tokens": lambda value: whole(value, 1, INT32),
    "min_tokens": lambda value: whole(value, 0, INT32),
    "max_tokens_per_turn": lambda value: whole(value, 1, INT32),
    "seed": lambda value: whole(value, 0, 2**63 - 1),
    "n": lambda value: whole(value, 1, 2**16),
    "num_beams": lambda value: whole(value, 1, VOCABULARY),
    "prompt_logprobs": lambda value: isinstance(value, bool) or whole(value, 1, VOCABULARY),
    **{
        name: lambda value: isinstance(value, bool)
        for name in (
            "do_sample",
            "ignore_eos",
            "skip_special_tokens",
            "progress",
            "sampling_mask",
            "return_routed_experts",
        )
    },
}
NEEDS_MORE = ("min_tokens", "timeout", "sampling_mask", "return_routed_experts")  # than their value


@functools.cache
def rollout() -> Any:
    return load_config({}, {}).rollout


MODEL = ModelInfo(None, frozenset({0, 2}), Limits(prompt=512, total=640, vocabulary=VOCABULARY))


def parameters(case: Any, folder: Path) -> bool:
    from _inf.request.sampling import resolve

    prompts, given_ = case
    try:
        sampling = resolve(given_, rollout(), prompts, MODEL)
    except (ConfigError, ToolError) as failure:
        for name, value in given_.items() if len(given_) == 1 else ():
            free = name in RIGHT and name not in NEEDS_MORE
            assert not (free and RIGHT[name](value)), f"it is right: {failure}"
        return told(failure, [f"{name}{mark}" for name in given_ for mark in (":", "[", ".")])
    for name, value in given_.items():
        values = value if isinstance(value, list | tuple) else [value]
        right = RIGHT.get(name, lambda _: True)
        assert all(each is None or right(each) for each in values), f"{name} is wrong"
    for params in sampling.params:
        json.dumps(vars(params))
    return True


@functools.cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model())


def prompts(case: Any, folder: Path) -> bool:
    from _inf.request.prompts import normalize
    from _inf.request.template import Template
    from _inf.request.tokenize import tokenize

    before, prompt = case
    batch = [*["hi"] * before, prompt] if before else prompt
    limits = Limits(prompt=512, total=640, vocabulary=VOCABULARY)
    try:
        answered = tokenize(normalize(batch), Template(tokenizer()), limits)
    except PromptError as failure:
        place = f"prompt {before}" if before else r"prompt \d+"
        assert re.match(rf"{place}[ :,]", str(failure)), f"it does not say where: {failure}"
        short = isinstance(prompt, str) and 0 < len(prompt) < 100
        assert not short or re.search("[\ud800-\udfff]", prompt), f"it is right: {failure}"
        return False
    for each in answered:
        assert 0 < len(each.token_ids) <= 512
        assert all(type(i) is int and 0 <= i < VOCABULARY for i in each.token_ids)
    return True


SCHEMA = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}


def templates(case: Any, folder: Path) -> bool:
    from _inf.request.template import Template

    text, kwargs, tools, content = case
    own = copy.copy(tokenizer())
    own.chat_template = text
    schemas = [SCHEMA] if tools else []
    try:
        template = Template(own, kwargs, schemas=schemas, instructions="Call f.", eos_token_ids={2})
        if tools:
            template.check_turns()
        ids = template.prompt([{"role": "user", "content": content}], 3)
    except (PromptError, ToolError) as failure:
        return told(failure, ["prompt 3", "tools: the model's chat template"])
    assert ids and all(type(i) is int for i in ids)
    return True


def responses(case: Any, folder: Path) -> bool:
    from _inf.request.tokenize import tokenize_responses

    limits = Limits(prompt=512, total=640, vocabulary=VOCABULARY)
    before, response = case
    given_ = [*["hi"] * before, response] if before else response
    try:
        answered = tokenize_responses(given_, before + 1, tokenizer(), limits)
    except PromptError as failure:
        return told(failure, ["response"])
    assert all(0 <= i < VOCABULARY for ids in answered for i in ids)
    return True
