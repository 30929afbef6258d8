"""Sampling parameters in second place, as vLLM's `generate` takes them."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pydantic
import pytest
from omegaconf import OmegaConf

from _inf.errors import ConfigError
from _inf.request.sampling import with_sampling_params

msgspec = pytest.importorskip("msgspec", reason="vLLM's SamplingParams is a msgspec.Struct")


class WithProperties:
    max_tokens = 4  # of the class

    @property
    def temperature(self) -> float:
        return 0.5


@dataclasses.dataclass(slots=True)
class DataclassWithSlots:
    temperature: float = 0.5
    max_tokens: int = 4


class Named(NamedTuple):
    temperature: float = 0.5
    max_tokens: int = 4


class Pydantic(pydantic.BaseModel, extra="allow"):
    temperature: float = 0.5


@dataclasses.dataclass
class WithoutDefaults:
    temperature: float


@dataclasses.dataclass
class OfTransformers:
    """Fields of Transformers' GenerationConfig."""

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    max_new_tokens: int | None = None


class OfVllm(msgspec.Struct):
    """Fields of vLLM's SamplingParams, which is such a class, with their defaults."""

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    stop: list[str] = msgspec.field(default_factory=list)
    seed: int | None = None
    max_tokens: int | None = 16
    detokenize: bool = True
    structured_outputs: Any = None
    output_text_buffer_length: int = 0
    _all_stop_token_ids: set[int] = msgspec.field(default_factory=set)

    def __post_init__(self) -> None:
        self.output_text_buffer_length = max(map(len, self.stop), default=1) - 1


@dataclasses.dataclass
class OfSGLang:
    max_new_tokens: int = 128
    temperature: float = 1.0
    stop_strs: list[str] | None = None
    stop_token_ids: set[int] | None = None
    no_stop_trim: bool = False


def taken(given: object, **keywords: Any) -> Any:
    return with_sampling_params("generate()", given, keywords)  # type: ignore[arg-type]


def refused(given: object, **keywords: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        taken(given, **keywords)
    return str(caught.value)


def test_fields_with_an_equal_here_become_keywords_at_all_their_values():
    assert taken(OfVllm(temperature=0.5, stop=["xyz"]), logprobs=2) == dict(
        n=1, temperature=0.5, top_k=-1, max_tokens=16, stop=["xyz"], logprobs=2
    )
    assert taken(OfSGLang(4, stop_strs=["x"], stop_token_ids={5, 2})) == dict(
        max_tokens=4, temperature=1.0, stop=["x"], stop_token_ids=[2, 5],
        include_stop_str_in_output=False,
    )  # fmt: skip
    assert taken(OfTransformers(max_new_tokens=4)) == {"do_sample": False, "max_tokens": 4}
    assert taken({"max_new_tokens": 4, "top_p": 0.5}) == {"max_tokens": 4, "top_p": 0.5}


@pytest.mark.parametrize(
    "given",
    [
        WithProperties(),
        DataclassWithSlots(),
        Named(),
        Pydantic.model_validate({"max_tokens": 4}),
        SimpleNamespace(temperature=0.5, max_tokens=4),
    ],
    ids=lambda given: type(given).__name__,
)
def test_fields_are_read_wherever_a_class_keeps_them(given):
    assert taken(given) == {"temperature": 0.5, "max_tokens": 4}


@pytest.mark.parametrize(
    ("top_k", "here"), [(0, -1), (np.int64(0), -1), ([0, 5], [-1, 5]), (False, False)]
)
def test_top_k_of_zero_is_vllms_all(top_k, here):
    assert taken({"top_k": top_k}) == {"top_k": here}


def test_two_names_of_one_keyword_must_agree():
    assert taken({"max_tokens": 5, "max_new_tokens": 5}) == {"max_tokens": 5}
    assert refused({"max_tokens": 5, "max_new_tokens": 7}) == (
        "max_tokens: sampling_params has it as max_tokens and as max_new_tokens; leave one of them"
        " out."
    )
    assert taken({"max_tokens": None, "max_new_tokens": 5}) == {"max_tokens": 5}


def test_values_that_say_nothing_are_told_from_those_that_do():
    nothing = {"temperature": None, "truncate_prompt_tokens": None, "extra_args": {}}
    assert taken(OmegaConf.create({"_target_": "verl.SamplingConfig", **nothing})) == {}
    empty = {"tools": [], "json_schema": {}, "allowed_token_ids": []}
    assert taken(empty) == empty
    assert taken(OmegaConf.create({"stop": ["a"]})) == {"stop": ["a"]}
    said = "sampling_params: max_tokens=None has no equal here; None means what the config says; "
    assert refused(OfVllm(max_tokens=None)).startswith(said)
    assert refused(OmegaConf.create({"n": "${x}"})).startswith("n: cannot be resolved")


def test_field_without_an_equal_is_refused_with_the_call_to_write():
    said = refused(OfVllm(detokenize=False, structured_outputs="x", temperature=0.0))
    assert said == (
        "sampling_params: detokenize has no equal here; structured_outputs is no keyword here; here"
        " the grammar itself is the keyword: json_schema or regex; the others are"
        " generate(prompts, max_tokens=16, n=1, temperature=0.0, ...)."
    )
    arrays = {"temperature": np.ones(2), "scale": np.ones(2)}
    for given in (arrays, Pydantic.model_validate({"scale": np.ones(2)})):
        said = "sampling_params: scale has no equal here; the others are "
        assert refused(given).startswith(said)
    said = "sampling_params: temprature is no keyword here; did you mean 'temperature'?."
    assert refused({"temprature": 0}) == said
    assert refused({"seed": 1}, seed=2) == (
        "seed: sampling_params has it too; leave one of them out."
    )


@pytest.mark.parametrize(
    "given", ["another prompt", [{"temperature": 0}], 5, object(), {1}, OfVllm]
)
def test_anything_else_in_second_place_is_refused(given):
    assert refused(given).startswith("generate(): ") and "as one list" in refused(given)


def test_object_of_a_class_without_defaults_is_refused_with_the_reason():
    said = refused(WithoutDefaults(0.5))
    assert "WithoutDefaults() without arguments fails" in said and said.endswith(
        "give a dict of the fields that you set."
    )
