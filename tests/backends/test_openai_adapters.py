"""LoRA adapters of a server, with a scripted one; its forms are those of vLLM 0.32.0."""

from __future__ import annotations

import pytest

from inf import ConfigError
from tests.support.refusals import refused
from tests.support.scripted_server import MODEL, ScriptedServer, scripted
from tests.support.scripted_tokens import Vllm, connected


@pytest.fixture
def vllm(tokenizer):
    vllm = Vllm(tokenizer)
    vllm.adapters = {}
    return vllm


@pytest.fixture
def server(vllm):
    with scripted(vllm) as server:
        yield server


@pytest.fixture
def engine(server):
    with connected(server) as engine:
        server.seen.clear()
        yield engine


def asked(server: ScriptedServer) -> list[str]:
    """The models of the requests for answers, which are sent together, in the prompts' order."""
    bodies = [seen.body for seen in server.seen if seen.path.endswith("/completions")]
    server.seen.clear()
    return [body["model"] for body in sorted(bodies, key=lambda body: body["prompt"])]


PROMPTS = [{"prompt_token_ids": [place, 9]} for place in (5, 6, 7)]


def test_adapter_of_another_client_can_be_asked_for(engine, server, vllm):
    engine.load_adapter("first", "/adapters/first")
    vllm.adapters["anothers"] = "/adapters/other"
    assert engine.adapters == ["first", "anothers"]
    engine.generate(PROMPTS, adapter=["first", None, "anothers"])
    assert asked(server) == [*vllm.ever, MODEL, "anothers"]


def test_no_name_at_the_server_is_used_twice_for_its_prefix_cache_keeps_what_it_computed(
    engine, server, vllm
):
    """Not by an engine beside this one or after it, either."""
    for version, folder in enumerate(("/one", "/two")):
        engine.load_adapter("first", folder)
        assert engine.generate(PROMPTS[0], adapter="first")[0].weight_version == version
    assert vllm.adapters == {vllm.ever[1]: "/two"} and asked(server) == vllm.ever
    engine.unload_adapter("first")
    assert vllm.adapters == {} and engine.adapters == []
    with connected(server) as beside:
        for each in (beside, engine):
            each.load_adapter("first", "/two")
        server.seen.clear()
        for each in (beside, engine):
            each.generate(PROMPTS[0], adapter="first")
        assert asked(server) == vllm.ever[2:]
    engine.restart()
    assert engine.adapters == []
    engine.load_adapter("first", "/two")
    assert len(set(vllm.ever)) == 5 and all(name.startswith("first@") for name in vllm.ever)


def test_engine_that_ends_unloads_what_it_has_loaded_and_nothing_else(server, vllm):
    vllm.adapters["first"] = "/of/another/client"
    with connected(server) as engine:
        engine.load_adapter("first", "/one")
        engine.load_adapter("second", "/two")
        with refused(ConfigError, "No adapter found", key="adapters.third"):
            engine.load_adapter("third", "/nowhere")
        assert engine.adapters == ["first", "second"]
        vllm.unloads = 500  # for a while
        with pytest.warns(
            UserWarning, match="adapters.second: its earlier weights are still loaded.*busy"
        ):
            assert engine.load_adapter("second", "/three") == 1
        vllm.unloads = 200
    assert vllm.adapters == {"first": "/of/another/client"}
    with connected(server) as engine:
        engine.load_adapter("first", "/one")
        vllm.unloads = 500
    assert engine.dead and len(vllm.adapters) == 2


def test_what_a_server_cannot_load_is_refused_by_the_adapters_name(engine, server, vllm):
    with refused(ConfigError, "a folder on its machine .*No adapter found", key="adapters.new"):
        engine.load_adapter("new", "/nowhere")
    vllm.adapters = None  # it was started without them
    with refused(ConfigError, "Not Found.*vLLM needs --enable-lora", key="adapters.new"):
        engine.load_adapter("new", "/one")
    server.seen.clear()
    with refused(ConfigError, "save the adapter with PEFT's", key="adapters.new"):
        engine.load_adapter("new", {})
    assert server.seen == [] and engine.adapters == []
