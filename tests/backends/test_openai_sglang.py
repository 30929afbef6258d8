"""The backend on SGLang's own server, with a scripted one: its route, and new weights from a
folder."""

import math
from pathlib import Path

import pytest
import torch

from _inf.backends.openai import servers, sglang_server
from _inf.errors import InferenceError, RequestFailure
from inf import ConfigError
from tests.support.reference import Transformers
from tests.support.refusals import refused
from tests.support.scripted_server import scripted
from tests.support.scripted_tokens import ANSWER, IM_END, Sglang, connected
from tests.support.tiny import tiny_model


@pytest.fixture
def sglang(tokenizer):
    return Sglang(tokenizer)


@pytest.fixture
def server(sglang):
    with scripted(sglang) as server:
        yield server


def test_its_own_route_is_found_and_used(server, sglang):
    with connected(server) as engine:
        server.seen.clear()
        [row] = engine.generate({"prompt_token_ids": [5, 6]}, min_p=0.1, regex="a+", stop="z")
        assert server.bodies[0]["input_ids"] == [5, 6]
        sent = server.bodies[0]["sampling_params"]
        assert (sent["min_p"], sent["regex"], sent["stop"]) == (0.1, "a+", ["z"])
        assert sent["stop_token_ids"] == [IM_END] and "json_schema" not in sent
        assert row.token_ids == ANSWER and row.logprobs == [-0.5] * 4
        assert row.metadata["matched_stop"] == IM_END and row.metadata["cached_tokens"] == 4
        sglang.version = "7"
        assert row.weight_version == 0 and engine.generate("Hi")[0].weight_version == 7
        chunks = list(engine.stream("Hi"))
        assert [token for chunk in chunks for token in chunk.token_ids] == row.token_ids
        assert chunks[-1].finish_reason == "stop"
        sglang.aborts = True
        with pytest.raises(RequestFailure, match="aborted the request: Out of memory"):
            engine.generate("Hi")


@pytest.mark.parametrize(
    "params",
    [{"seed": 3}, {"repetition_penalty": 1.1}, {"ignore_eos": True, "stop_token_ids": [7]}],
    ids=str,
)
def test_what_sglangs_server_ignores_is_refused_by_name(server, params):
    with connected(server) as engine:
        server.seen.clear()
        with refused(ConfigError, key=next(iter(params))):
            engine.generate("Hi", **params)
    assert server.seen == []


@pytest.fixture
def local(server):
    with connected(server) as engine:
        yield engine


def test_new_weights_go_through_a_folder_and_rows_have_their_version(local, sglang, monkeypatch):
    monkeypatch.setattr(sglang_server, "PAUSE_SECONDS", 0.01)
    model, sglang.busy = Transformers.of(tiny_model(seed=5)).model, 2
    assert local.generate("Hi").metadata[0]["weight_version"] == 0
    assert local.update_weights(model) == 1
    state = model.state_dict()
    assert sglang.loaded.keys() == state.keys()
    assert all(torch.equal(sglang.loaded[name], state[name]) for name in state)
    assert not Path(sglang.path).exists()
    assert local.update_weights(state, version=7) == local.weight_version == 7
    assert local.generate("Hi").metadata[0]["weight_version"] == 7
    local.restart()  # the folder that the server names is gone
    assert local.weight_version == 7 and local.update_weights(model) == 8


def test_weights_that_are_not_loaded_leave_the_version_as_it_is(local, sglang, monkeypatch):
    model = Transformers.of(tiny_model(seed=5)).model
    with refused(ConfigError, "lm_head.weight has the shape", key="weights"):
        local.update_weights({**model.state_dict(), "lm_head.weight": torch.zeros(3)})
    sglang.fails = True
    with pytest.raises(InferenceError, match="Failed to load"):
        local.update_weights(model)
    monkeypatch.setattr(sglang_server, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(sglang_server, "PAUSE_SECONDS", 0.01)
    sglang.fails, sglang.busy = False, 10**6
    with pytest.raises(InferenceError, match="End its other clients first"):
        local.update_weights(model)
    assert local.weight_version == 0 and sglang.loaded == {}


def test_only_a_server_of_this_machine_is_given_new_weights(server, monkeypatch):
    for address, here in (
        ("http://localhost:1", True),
        ("http://127.0.0.2:1", True),
        ("http://[::1]:1", True),
        ("http://10.0.0.4:1", False),
        ("https://some.host/v1", False),
    ):
        assert servers.on_this_machine(address) == here
    monkeypatch.setattr(servers, "on_this_machine", lambda _: False)
    with connected(server) as engine:
        assert "update_weights" not in engine.supports and "regex" in engine.supports
        with refused(ConfigError, "SGLang's server of this machine does"):
            engine.update_weights({})
        assert math.isclose(engine.generate("Hi").logprobs[0][0], -0.5)
