"""The keys of `rollout.name: openai`: what it needs, and what it does not read."""

from __future__ import annotations

import pytest

from _inf.backends.registry import read_config
from tests.support.config_faults import at, faults

SERVER = {
    "base_url": "http://localhost:8000/v1",
    "model_path": "some-model",
    "rollout": {"name": "openai"},
}


def test_server_needs_an_address_and_a_models_name():
    found = faults({"rollout": {"name": "openai"}})
    assert [fault.partition(":")[0] for fault in found] == ["base_url", "model_path"]
    assert "the server's address" in found[0]


@pytest.mark.parametrize("source", [None, SERVER])
def test_embedded_models_keys_are_not_for_a_server(source):
    config = read_config(source, SERVER)
    assert config.rollout.dtype == "auto" and not config.rollout.enforce_eager
    assert config.rollout.prompt_length == 512 and config.rollout.do_sample
    assert config.rollout.max_num_seqs == 1024


TOKENS = {"tokenizer_path": "Qwen/Qwen3-0.6B"}
OF_A_SERVER = {"base_url": SERVER["base_url"], "api_key_env": "SERVER_KEY", **TOKENS}
OF_SGLANG = {"rollout.tensor_model_parallel_size": 2, "rollout.gpu_memory_utilization": 0.8}
OF_SGLANG |= {"rollout.load_format": "dummy"}
OF_SGLANG |= {"rollout.engine_kwargs.sglang.attention_backend": "triton"}
OF_AN_ENGINE = {"device": "cpu", "adapter_path": "adapter", "rollout.dtype": "float32", **OF_SGLANG}
OF_AN_ENGINE |= {"rollout.images.max_pixels": 7, "rollout.images.allow_remote": True}


@pytest.mark.verl
@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ({"rollout": {"name": "sglang"}}, OF_A_SERVER),
        ({"rollout": {"name": "hf"}}, {**OF_A_SERVER, **OF_SGLANG}),
        (SERVER, OF_AN_ENGINE),
        ({**SERVER, **TOKENS}, OF_AN_ENGINE),
    ],
)
def test_key_that_a_backend_does_not_read_is_refused_by_name(source, keys):
    says = f"rollout.name is {source['rollout']['name']}, which does not read"
    for key, value in keys.items():
        (fault,) = faults(source, **at(key, value))
        assert fault.startswith(f"{key}: ") and says in fault


def test_key_about_tokens_needs_the_tokenizer():
    keys = {"truncate_prompt": "left", "trust_remote_code": True, "rollout.top_k": 5}
    keys |= {"rollout.ignore_eos": True, "rollout.prompt_length": 99, "rollout.max_model_len": 2000}
    for key, value in keys.items():
        (fault,) = faults(SERVER, **at(key, value))
        assert fault.startswith(f"{key}: ") and "openai with tokenizer_path does" in fault
        assert read_config({**SERVER, "tokenizer_path": "folder"}, at(key, value))


NO_ADDRESS, NOT_REPEATED = "is not an address", "must not contain a key or a password"
NO_VARIABLE = "must be the name of an environment variable"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        *(("base_url", url, NO_ADDRESS) for url in ("localhost:8000/v1", "http://")),
        ("base_url", "https://user:secret@host/v1", NOT_REPEATED),
        ("base_url", "https://host/v1?key=secret", NOT_REPEATED),
        *(("api_key_env", f"{key}secret", NO_VARIABLE) for key in ("sk-012", "with ")),
    ],
)
def test_address_and_variable_are_checked_and_no_secret_is_repeated(key, value, says):
    (fault,) = faults({**SERVER, key: value})
    assert fault.startswith(f"{key}: ") and says in fault and "secret" not in fault
