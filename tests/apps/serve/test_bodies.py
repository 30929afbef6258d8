"""What a request's body says when a field of it is wrong, in words that its sender understands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from _inf.apps.serve.bodies import ChatBody, read_body
from _inf.apps.serve.error_responses import by_field
from _inf.apps.serve.token_bodies import SglangBody
from _inf.errors import PromptTooLongError
from _inf.request.keywords import checked
from _inf.tools.definition import as_tools
from inf import ConfigError, ToolError

CHAT: dict[str, Any] = {"messages": []}


def refusal(form: Any, body: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as refused:
        read_body(form, json.dumps(body).encode())
    return str(refused.value)


@pytest.mark.parametrize("name", ["stop_regex", "web_search_options", "ebnf", "structural_tag"])
def test_field_of_another_server_has_no_hint_at_a_field_of_another_meaning(name: str) -> None:
    assert refusal(ChatBody, {**CHAT, name: 1}) == f"{name}: unknown"


@pytest.mark.parametrize(
    ("name", "instead"),
    [("prompt_token_ids", "/v1/completions"), ("truncate_prompt_tokens", "truncate_prompt:")],
)
def test_field_of_another_server_is_refused_with_what_does_it_here(name: str, instead: str) -> None:
    said = refusal(ChatBody, {**CHAT, name: 1})
    assert said.startswith(f"{name}: unknown; ") and instead in said


@pytest.mark.parametrize("prompt", [{}, {"input_ids": [5], "text": "Hi"}])
def test_sglangs_route_takes_one_prompt_form(prompt: dict[str, Any]) -> None:
    assert "give either input_ids or text" in refusal(SglangBody, prompt)


def test_misspelled_field_has_a_hint() -> None:
    assert "did you mean 'temperature'" in refusal(ChatBody, {**CHAT, "temprature": 1})


def test_value_that_is_no_object_is_said_so_without_a_class_of_ours() -> None:
    said = refusal(SglangBody, {"input_ids": [5], "sampling_params": 5})
    assert said == "sampling_params: 5 is not an object"


def test_all_wrong_tokens_of_a_bias_are_named() -> None:
    with pytest.raises(ConfigError, match=r"9 is outside .* 'x' is not an int\. '-1' is not"):
        checked("logit_bias", {"9": 1.0, "3": 1.0, "x": 1.0, "-1": 1.0}, 9)
    with pytest.raises(ConfigError, match="And 95 more"):
        checked("logit_bias", {str(n): 1.0 for n in range(9, 109)}, 9)


def test_tool_of_another_type_is_refused_by_its_type() -> None:
    with pytest.raises(ToolError, match=r"tools\[0\]\.type: 'custom' tools are not supported"):
        as_tools([{"type": "custom", "custom": {"name": "f"}}])


def test_error_about_a_keyword_names_the_field_that_gave_it() -> None:
    fields = {"json_schema": "tools, as the schema of a call", "max_tokens": "max_new_tokens"}
    with pytest.raises(ConfigError) as refused, by_field(fields):
        raise ConfigError("json_schema.properties.x: no.", key="json_schema.properties.x")
    assert str(refused.value) == "tools, as the schema of a call.properties.x: no."
    assert refused.value.key == "tools"
    with pytest.raises(PromptTooLongError) as too_long, by_field(fields):
        raise PromptTooLongError("prompt 0 has 5 tokens.", key="max_tokens", index=0)
    assert (too_long.value.key, too_long.value.index) == ("max_new_tokens", 0)
    with pytest.raises(ConfigError, match=r"^seed: no") as other, by_field(fields):
        raise ConfigError.of("seed", "no")
    assert other.value.key == "seed"
