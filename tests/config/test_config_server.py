"""The keys of `rollout.name: openai`: what it needs, and what it does not read."""

from __future__ import annotations

from typing import Any

import pytest

from _inf.backends.registry import PARTLY_READ, read_config
from _inf.config import Config
from _inf.config.check import _paths
from tests.support.config_faults import at, faults

SERVER = {
    "base_url": "http://localhost:8000/v1",
    "model_path": "some-model",
    "rollout": {"name": "openai"},
}


def test_server_needs_an_address_and_a_models_name() -> None:
    found = faults({"rollout": {"name": "openai"}})
    assert [fault.partition(":")[0] for fault in found] == ["base_url", "model_path"]
    assert "the server's address" in found[0]


@pytest.mark.parametrize("source", [None, SERVER])
def test_embedded_models_keys_are_not_for_a_server(source: Any) -> None:
    config = read_config(source, SERVER)
    assert config.rollout.dtype == "auto" and not config.rollout.enforce_eager
    assert config.rollout.prompt_length == 512
    assert config.rollout.do_sample is (source is not None)  # greedy without a config, as always


TOKENS = {"tokenizer_path": "Qwen/Qwen3-0.6B"}
OF_A_SERVER = {"base_url": SERVER["base_url"], "api_key_env": "SERVER_KEY", **TOKENS}
OF_SGLANG = {"rollout.tensor_model_parallel_size": 2, "rollout.gpu_memory_utilization": 0.8}
OF_SGLANG |= {"rollout.load_format": "dummy"}
OF_SGLANG |= {"rollout.engine_kwargs.sglang.attention_backend": "triton"}
OF_AN_ENGINE = {"device": "cpu", "adapter_path": "adapter", "rollout.dtype": "float32", **OF_SGLANG}


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ({"rollout": {"name": "sglang"}}, OF_A_SERVER),
        ({"rollout": {"name": "hf"}}, {**OF_A_SERVER, **OF_SGLANG}),
        (SERVER, OF_AN_ENGINE),
        ({**SERVER, **TOKENS}, OF_AN_ENGINE),
    ],
)
def test_key_that_a_backend_does_not_read_is_refused_by_name(source: Any, keys: Any) -> None:
    says = f"rollout.name is {source['rollout']['name']}, which does not read"
    for key, value in keys.items():
        (fault,) = faults(source, **at(key, value))
        assert fault.startswith(f"{key}: ") and says in fault


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("truncate_prompt", "left"),
        ("trust_remote_code", True),
        ("rollout.top_k", 5),
        ("rollout.ignore_eos", True),
        ("rollout.prompt_length", 99),
        ("rollout.max_model_len", 2000),
    ],
)
def test_key_about_tokens_needs_the_tokenizer(key: str, value: Any) -> None:
    (fault,) = faults(SERVER, **at(key, value))
    assert fault.startswith(f"{key}: ") and "openai with tokenizer_path does" in fault
    assert read_config({**SERVER, "tokenizer_path": "folder"}, at(key, value))


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("localhost:8000/v1", "is not an address"),
        ("ftp://host/v1", "is not an address"),
        ("http://", "is not an address"),
        ("https://user:secret@host/v1", "must not contain a key or a password"),
        ("https://host/v1?key=secret", "must not contain a key or a password"),
    ],
)
def test_address_is_checked_and_no_password_is_repeated(address: str, reason: str) -> None:
    (fault,) = faults({**SERVER, "base_url": address})
    assert fault.startswith("base_url: ") and reason in fault and "secret" not in fault


@pytest.mark.parametrize("key", ["sk-0123456789abcdef", "0a1b2c", "key with spaces", "lowercase"])
def test_key_in_the_place_of_a_variables_name_is_not_repeated(key: str) -> None:
    (fault,) = faults({**SERVER, "api_key_env": key})
    assert fault.startswith("api_key_env: must be the name of an environment variable")
    assert key not in fault


def test_every_key_that_is_not_read_exists() -> None:
    known = {*_paths(Config().to_dict()), "rollout.engine_kwargs.hf"}
    assert set(PARTLY_READ) <= known
