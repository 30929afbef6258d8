"""The keys of `rollout.name: openai`: what it needs, and what it does not read."""

from __future__ import annotations

from typing import Any

import pytest

from _inf.backends.registry import PARTLY_READ, read_config
from _inf.config import Config
from _inf.config.load import _paths
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


@pytest.mark.parametrize("name", ["sglang", "hf"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("base_url", SERVER["base_url"]),
        ("api_key_env", "SERVER_KEY"),
        ("tokenizer_path", "Qwen/Qwen3-0.6B"),
    ],
)
def test_engine_here_does_not_read_the_keys_of_a_server(name: str, key: str, value: Any) -> None:
    (fault,) = faults({key: value}, rollout={"name": name})
    assert fault.startswith(f"{key}: must be None, not ") and f"rollout.name is {name}" in fault


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("device", "cpu"),
        ("adapter_path", "adapter"),
        ("rollout.dtype", "float32"),
        ("rollout.tensor_model_parallel_size", 2),
        ("rollout.engine_kwargs.sglang.attention_backend", "triton"),
    ],
)
@pytest.mark.parametrize("tokens", [{}, {"tokenizer_path": "Qwen/Qwen3-0.6B"}])
def test_key_that_no_server_reads_is_refused_by_name(
    key: str, value: Any, tokens: dict[str, str]
) -> None:
    found = faults({**SERVER, **tokens}, **at(key, value))
    (fault,) = found
    assert fault.startswith(f"{key}: ") and "rollout.name is openai, which does not read" in fault


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
