"""Adapters are models of a server, loaded and unloaded over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from inf import ConfigError
from tests.support.engines import engine_fixture
from tests.support.serve_clients import CHAT, COMPLETION, Http, user
from tests.support.tiny import tiny_model
from tests.support.trained import adapter

IDS = [5, 9, 17, 33]
GREEDY = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return [adapter(tiny_model(), folder / str(seed), seed=seed) for seed in (5, 6)]


engine = engine_fixture(name="hf")


@pytest.fixture
def http(engine, folders):
    with engine.serve(adapter_folder=folders[0].parent) as server:
        yield Http(server)


def load(http: Http, path: object, **more: Any) -> tuple[int, str]:
    body = {"lora_name": "mine", "lora_path": str(path), **more}
    answer = http.send("/v1/load_lora_adapter", **body)
    return answer.status_code, answer.text


def unload(http: Http) -> int:
    return http.send("/v1/unload_lora_adapter", lora_name="mine").status_code


def test_adapters_are_loaded_listed_asked_for_and_unloaded(http, engine, folders):
    def answered(model: str) -> Any:
        whole = http.post(COMPLETION, model=model, prompt=IDS, return_token_ids=True, **GREEDY)
        assert whole["model"] == model
        return whole["choices"][0]["token_ids"]

    base = engine.config.model_name
    said = "Success: LoRA adapter 'mine' added successfully."
    assert load(http, folders[0]) == (200, said)
    listed = http.get("/v1/models")["data"]
    assert [(each["id"], each["parent"]) for each in listed] == [(base, None), ("mine", base)]
    ours = {"prompt_token_ids": IDS}
    first = engine.generate(ours, adapter="mine", **GREEDY).token_ids[0]
    plain = engine.generate(ours, **GREEDY).token_ids[0]
    assert answered("mine") == first != plain == answered(base)
    events = http.events(CHAT, model="mine", messages=[user("Hi")], **GREEDY)
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
    assert text == engine.generate("Hi", adapter="mine", **GREEDY).completions[0]

    status, said = load(http, folders[1])
    assert status == 400 and "load_inplace" in said
    assert load(http, folders[1], load_inplace=True)[0] == 200
    assert answered("mine") == engine.generate(ours, adapter="mine", **GREEDY).token_ids[0] != first
    assert [unload(http), unload(http)] == [200, 404]
    assert len(http.get("/v1/models")["data"]) == 1
    assert load(http, folders[0].name)[0] == 200 and unload(http) == 200


def test_no_other_folder_is_read(http, engine, folders):
    (folders[0].parent / "link").symlink_to("/etc")
    below = "is not below the server's adapter folder"
    told = {"/etc": below, "..": below, "link": below, "a\0b": "is not a folder"}
    for path, says in {**told, "x" * 5000: "is not a folder"}.items():
        status, said = load(http, path)
        assert status == 400 and says in said
    assert engine.adapters == []


def test_of_loads_of_one_name_at_once_one_is_answered(http, folders):
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(load, http, folders[0]) for _ in range(8)]
    assert sorted(each.result()[0] for each in answers) == [200, *[400] * 7]
    assert unload(http) == 200


def test_server_without_a_folder_of_adapters_has_no_such_routes(engine, folders, tmp_path):
    with engine.serve() as server:
        assert load(Http(server), folders[0])[0] == 404
    with pytest.raises(ConfigError, match="adapter_folder: .*nowhere is not a folder"):
        engine.serve(adapter_folder=tmp_path / "nowhere")
