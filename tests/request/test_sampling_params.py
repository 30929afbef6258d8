"""Sampling parameters in second place, as vLLM's `generate` takes them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from _inf.errors import ConfigError
from _inf.request.sampling import with_sampling_params

msgspec = pytest.importorskip("msgspec", reason="vLLM's SamplingParams is a msgspec.Struct")


class OfAClass:
    temperature = 0.5


class OfVllm(msgspec.Struct):
    """Fields of vLLM's SamplingParams, which is such a class, with their defaults."""

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    stop: list[str] = msgspec.field(default_factory=list)
    seed: int | None = None
    max_tokens: int = 16
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


def taken(given: object, **keywords: Any) -> Any:
    return with_sampling_params("generate()", given, keywords)  # type: ignore[arg-type]


def refused(given: object, **keywords: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        taken(given, **keywords)
    return str(caught.value)


def test_fields_with_an_equal_here_become_keywords_at_all_their_values() -> None:
    assert taken(OfVllm(temperature=0.5, stop=["xyz"]), logprobs=2) == {
        **{"n": 1, "temperature": 0.5, "top_k": -1, "max_tokens": 16, "stop": ["xyz"]},
        "logprobs": 2,
    }
    assert taken(OfSGLang(max_new_tokens=4)) == {"max_tokens": 4, "temperature": 1.0}
    assert taken({"max_new_tokens": 4, "top_p": 0.5}) == {"max_tokens": 4, "top_p": 0.5}


def test_field_without_an_equal_is_refused_with_the_call_to_write() -> None:
    said = refused(OfVllm(detokenize=False, structured_outputs="x", temperature=0.0))
    assert said == (
        "sampling_params: detokenize has no equal here; structured_outputs is no keyword here; here"
        " the grammar itself is the keyword: json_schema or regex; the others are"
        " generate(prompts, n=1, temperature=0.0, max_tokens=16, ...)."
    )
    said = "sampling_params: temprature is no keyword here; did you mean 'temperature'?."
    assert refused({"temprature": 0}) == said
    assert refused({"seed": 1}, seed=2) == (
        "seed: sampling_params has it too; leave one of them out."
    )


@pytest.mark.parametrize(
    "given", ["another prompt", [{"temperature": 0}], 5, object(), {1}, OfAClass()]
)
def test_anything_else_in_second_place_is_refused(given: object) -> None:
    assert refused(given).startswith("generate(): ") and "as one list" in refused(given)
