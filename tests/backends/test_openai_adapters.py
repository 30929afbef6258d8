"""LoRA adapters of a server, with a scripted one; its forms are those of vLLM 0.32.0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from inf import ConfigError, InferenceEngine
from tests.backends.test_openai_offers import Vllm
from tests.support import scripted_server
from tests.support.refusals import refused
from tests.support.scripted_server import MODEL, Reply, ScriptedServer, scripted
from tests.support.tiny import tiny_model


class VllmWithAdapters(Vllm):
    """there: the adapters, by name their folders."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.there: dict[str, str] = {}
        self.ever: list[str] = []  # the names that were loaded
        self.unloads = 200

    def __call__(self, path: str, body: Any) -> Reply:
        if path == "/v1/models":
            own = {"id": MODEL, "parent": None}
            return Reply({"data": [own, *({"id": n, "parent": MODEL} for n in self.there)]})
        if path == "/v1/unload_lora_adapter":
            if self.unloads != 200:
                return Reply({"error": {"message": "busy"}}, status=self.unloads)
            del self.there[body["lora_name"]]
            return Reply(b"Success: LoRA adapter removed successfully.")
        if path != "/v1/load_lora_adapter":
            return super().__call__(path, body)
        if not (body["lora_name"] and body["lora_path"]):
            said = {"message": "Both 'lora_name' and 'lora_path' must be provided.", "param": None}
            return Reply({"error": said}, status=400)
        if body["lora_path"] == "/nowhere":
            return Reply({"error": {"message": "No adapter found for /nowhere"}}, status=404)
        if body["lora_name"] in self.there:
            said = f"The lora adapter '{body['lora_name']}' has already been loaded."
            return Reply({"error": {"message": said}}, status=400)
        self.ever.append(body["lora_name"])
        self.there[body["lora_name"]] = body["lora_path"]
        return Reply(b"Success: LoRA adapter added successfully.")


@pytest.fixture
def vllm(tokenizer: Any) -> VllmWithAdapters:
    return VllmWithAdapters(tokenizer)


@pytest.fixture
def server(vllm: VllmWithAdapters) -> Iterator[ScriptedServer]:
    with scripted(vllm) as server:
        yield server


@pytest.fixture
def engine(server: ScriptedServer) -> Iterator[InferenceEngine]:
    with scripted_server.connected(server, tokenizer_path=str(tiny_model())) as engine:
        server.seen.clear()
        yield engine


def asked(server: ScriptedServer) -> list[str]:
    """The models of the requests for answers, which are sent together, in the prompts' order."""
    bodies = [seen.body for seen in server.seen if seen.path.endswith("/completions")]
    server.seen.clear()
    return [body["model"] for body in sorted(bodies, key=lambda body: body["prompt"])]


PROMPTS: Any = [{"prompt_token_ids": [place, 9]} for place in (5, 6, 7)]


def test_rows_ask_for_their_adapters_as_models(
    engine: InferenceEngine, server: ScriptedServer, vllm: VllmWithAdapters
) -> None:
    assert "adapters" in engine.supports and engine.adapters == []
    assert engine.load_adapter("first", "/adapters/first") == 0
    vllm.there["anothers"] = "/adapters/other"  # loaded by another client
    assert engine.adapters == ["first", "anothers"]
    output = engine.generate(PROMPTS, adapter=["first", None, "anothers"])
    assert [row.adapter for row in output] == ["first", None, "anothers"]
    [ours] = vllm.ever
    assert asked(server) == [ours, MODEL, "anothers"]
    engine.score(PROMPTS[0], [[8]], adapter="first")
    assert asked(server) == [ours]


def test_no_name_at_the_server_is_used_twice_for_its_prefix_cache_keeps_what_it_computed(
    engine: InferenceEngine, server: ScriptedServer, vllm: VllmWithAdapters
) -> None:
    for version, folder in enumerate(("/one", "/two")):
        engine.load_adapter("first", folder)
        assert engine.generate(PROMPTS[0], adapter="first")[0].weight_version == version
    assert vllm.there == {vllm.ever[1]: "/two"} and asked(server) == vllm.ever
    engine.unload_adapter("first")
    assert vllm.there == {} and engine.adapters == []
    engine.load_adapter("first", "/two")
    assert vllm.there == {vllm.ever[2]: "/two"} and len(set(vllm.ever)) == 3
    assert all(name.startswith("first@") for name in vllm.ever)


def test_an_engine_beside_or_after_another_loads_the_same_name_and_folder(
    engine: InferenceEngine, server: ScriptedServer, vllm: VllmWithAdapters
) -> None:
    """The second would be refused, or answer with what the prefix cache has of the first."""
    engine.load_adapter("first", "/one")
    with scripted_server.connected(server, tokenizer_path=str(tiny_model())) as beside:
        beside.load_adapter("first", "/one")
        server.seen.clear()
        beside.generate(PROMPTS[0], adapter="first")
        engine.generate(PROMPTS[0], adapter="first")
        assert [seen.body["model"] for seen in server.seen if seen.body] == vllm.ever[::-1]
    engine.restart()
    assert engine.adapters == []
    engine.load_adapter("first", "/one")
    assert list(vllm.there) == vllm.ever[2:] and len(set(vllm.ever)) == 3


def test_engine_that_ends_unloads_what_it_has_loaded_and_nothing_else(
    server: ScriptedServer, vllm: VllmWithAdapters
) -> None:
    vllm.there["first"] = "/of/another/client"
    with scripted_server.connected(server, tokenizer_path=str(tiny_model())) as engine:
        engine.load_adapter("first", "/one")
        engine.load_adapter("second", "/two")
        with refused(ConfigError, "No adapter found", key="adapters.third"):
            engine.load_adapter("third", "/nowhere")
        assert engine.adapters == ["first", "second"]
        vllm.unloads = 500  # for a while
        with pytest.warns(
            UserWarning, match="adapters.second: the weights before are still loaded.*busy"
        ):
            assert engine.load_adapter("second", "/three") == 1
        vllm.unloads = 200
        server.seen.clear()
    assert vllm.there == {"first": "/of/another/client"}
    unloaded = [seen.body["lora_name"] for seen in server.seen if seen.body]
    assert sorted(unloaded) == sorted(vllm.ever)


def test_engine_ends_though_the_server_does_not_unload(
    server: ScriptedServer, vllm: VllmWithAdapters
) -> None:
    with scripted_server.connected(server, tokenizer_path=str(tiny_model())) as engine:
        engine.load_adapter("first", "/one")
        vllm.unloads = 500
    assert engine.dead and list(vllm.there) == vllm.ever


def test_what_a_server_cannot_load_is_refused_by_the_adapters_name(
    engine: InferenceEngine, server: ScriptedServer
) -> None:
    with refused(ConfigError, "a folder on its machine .*No adapter found", key="adapters.new"):
        engine.load_adapter("new", "/nowhere")
    server.seen.clear()
    with refused(ConfigError, "save the adapter with PEFT's", key="adapters.new"):
        engine.load_adapter("new", {})
    assert server.seen == [] and engine.adapters == []


def test_server_without_the_routes_takes_no_adapters(tokenizer: Any) -> None:
    with scripted(Vllm(tokenizer)) as server:
        with scripted_server.connected(server, tokenizer_path=str(tiny_model())) as engine:
            words = "does not offer it; .*hf or openai on vLLM or inf serve.*adapter_path merges"
            with refused(ConfigError, words, key="load_adapter()"):
                engine.load_adapter("first", "/one")
            assert engine.adapters == []
