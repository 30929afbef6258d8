"""Names of other libraries: each leads to what is here, and one table serves all places."""

from __future__ import annotations

import pickle

import pytest

from _inf.apps.cli import main
from _inf.apps.openai_requests import ChatRequest, read
from _inf.apps.serve.session_settings import SessionSettings
from _inf.config import KEYS as CONFIG_KEYS
from _inf.config.other_names import ATTRIBUTES, KEYS, KEYWORDS, SENTENCES
from _inf.errors import ConfigError
from _inf.request import keywords
from _inf.request.effective import check_params
from _inf.response.output import GenerationOutput
from _inf.response.row import GenerationRow
from inf import Config, InferenceEngine
from tests.config.test_config_keys import at, faults

ROW = GenerationRow("a", [5], [-0.5], finish_reason="stop")
OUTPUT = GenerationOutput([ROW])
# What a keyword of vLLM, Transformers, SGLang, Oumi or OpenAI is called here.
ASKED = {
    "guided_json": "here it is json_schema",
    "structured_outputs": "here the grammar itself is the keyword: json_schema or regex",
    "max_new_tokens": "here it is max_tokens",
    "system": 'give it as a message of the prompt: [{"role": "system", "content": ...}, ...]',
    "torch_dtype": "here it is the config's key rollout.dtype",
    "pad_token_id": "leave it out: nothing is padded here",
}


def test_names_that_the_table_leads_to_are_there_and_those_it_has_are_not():
    paths = {*CONFIG_KEYS, "rollout.engine_kwargs.sglang.attention_backend"}
    assert {*KEYWORDS.values()} <= {*keywords.KEYWORDS}
    assert {*KEYS.values()} <= paths
    assert all(hasattr(ROW, name) or hasattr(OUTPUT, name) for name in ATTRIBUTES.values())
    assert not {*KEYWORDS, *SENTENCES} & {*keywords.KEYWORDS}
    assert not {*KEYS} & {*Config.model_fields}
    assert not any(hasattr(ROW, name) or hasattr(OUTPUT, name) for name in ATTRIBUTES)
    assert not {*KEYWORDS} & {*SENTENCES}


@pytest.mark.parametrize(("name", "instead"), ASKED.items())
def test_keyword_of_another_library_is_refused_with_its_name_here(name, instead):
    with pytest.raises(ConfigError) as caught:
        check_params({name: 1}, Config().rollout)
    assert str(caught.value) == f"{name}: unknown keyword; {instead}"


def test_config_sessions_and_bodies_say_the_same():
    (line,) = faults(at("torch_dtype", "auto"))
    assert line == "torch_dtype: unknown key; here it is rollout.dtype"
    with pytest.raises(ConfigError, match="^sampling.max_new_tokens: .*; here it is max_tokens"):
        SessionSettings(sampling={"max_new_tokens": 5}).checked(384)
    with pytest.raises(ConfigError, match="^max_new_tokens: unknown key; here it is max_tokens"):
        read(ChatRequest, {"messages": [], "max_new_tokens": 5})


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("--max-new-tokens", "here it is --max-tokens"),
        ("--torch-dtype", "here it is --set rollout.dtype=VALUE"),
        ("--model-path", "here it is --model"),
        ("--prompt-length", "here it is --set rollout.prompt_length=VALUE"),
    ],
)
def test_option_of_another_library_is_refused_with_its_name_here(option, instead, capsys):
    assert main(["Hello", option, "5"]) == 2
    assert instead in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("holder", "name", "instead"),
    [
        (ROW, "text", "here it is completion"),
        (OUTPUT, "outputs", "here it is rows"),
        (OUTPUT, "completion", "did you mean 'completions'?"),
    ],
)
def test_attribute_of_another_librarys_output_is_refused_with_its_name_here(holder, name, instead):
    with pytest.raises(AttributeError) as caught:
        getattr(holder, name)
    assert str(caught.value) == f"{type(holder).__name__} has no {name!r}; {instead}"
    assert pickle.loads(pickle.dumps(holder)) == holder


@pytest.mark.parametrize("call", ["generate", "stream", "astream", "rollout_batch"])
def test_parameters_in_second_place_are_refused_with_the_call_to_write(call):
    method = getattr(InferenceEngine, call)
    given = {"temperature": 0, "max_new_tokens": 5, "use_beam_search": True}
    with pytest.raises(ConfigError) as caught:
        method(None, "Hi", given)
    assert f"{call}(prompts, temperature=0, max_tokens=5, ...)" in str(caught.value)
