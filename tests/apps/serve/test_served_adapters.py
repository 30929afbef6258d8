"""Adapters are models of a server, loaded and unloaded over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from _inf.apps.serve.server import InferenceServer
from _inf.backends.openai.http import httpx
from inf import ConfigError, InferenceEngine
from tests.support.serve_clients import client
from tests.support.tiny import tiny_model
from tests.support.trained import adapter

SETTINGS = {"name": "hf", "dtype": "float32", "prompt_length": 512, "response_length": 128}
IDS = [5, 9, 17, 33]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [adapter(tiny_model(), folder / str(seed), seed=seed) for seed in (5, 6)]


@pytest.fixture
def served(folders: list[Path]) -> Iterator[tuple[InferenceEngine, InferenceServer]]:
    with InferenceEngine(model_path=str(tiny_model()), rollout=SETTINGS) as engine:
        with engine.serve(adapter_folder=folders[0].parent) as server:
            yield engine, server


def posted(server: InferenceServer, path: str, **body: Any) -> tuple[int, str]:
    answer = httpx.post(f"{server.base_url}/{path}_lora_adapter", json=body, timeout=60)
    return answer.status_code, answer.text


def test_adapters_are_loaded_listed_asked_for_and_unloaded(
    served: tuple[InferenceEngine, InferenceServer], folders: list[Path]
) -> None:
    engine, server = served
    caller = client(server)
    base = caller.models.list().data[0].id

    def answered(model: str) -> list[int]:
        extra = {"return_token_ids": True}
        row = caller.completions.create(model=model, prompt=IDS, extra_body=extra, **GREEDY)
        assert row.model == model
        ids: list[int] = row.choices[0].token_ids  # type: ignore[attr-defined]
        return ids

    status, said = posted(server, "load", lora_name="mine", lora_path=str(folders[0]))
    assert (status, said) == (200, "Success: LoRA adapter 'mine' added successfully.")
    listed = caller.models.list().data
    assert [(each.id, getattr(each, "parent", None)) for each in listed] == [
        (base, None), ("mine", base)
    ]  # fmt: skip
    assert caller.models.retrieve("mine").id == "mine"
    ours: Any = {"prompt_token_ids": IDS}
    first = engine.generate(ours, adapter="mine", **GREEDY).token_ids[0]
    plain = engine.generate(ours, **GREEDY).token_ids[0]
    assert answered("mine") == first != plain == answered(base)
    chunks = caller.chat.completions.create(
        model="mine", messages=[{"role": "user", "content": "Hi"}], stream=True, **GREEDY
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == engine.generate("Hi", adapter="mine", **GREEDY).completions[0]

    status, said = posted(server, "load", lora_name="mine", lora_path=str(folders[1]))
    assert status == 400 and "load_inplace" in said
    again = {"lora_name": "mine", "lora_path": str(folders[1]), "load_inplace": True}
    assert posted(server, "load", **again)[0] == 200
    assert answered("mine") == engine.generate(ours, adapter="mine", **GREEDY).token_ids[0] != first
    assert posted(server, "unload", lora_name="mine")[0] == 200
    assert posted(server, "unload", lora_name="mine")[0] == 404
    assert len(caller.models.list().data) == 1
    status, said = posted(server, "load", lora_name="mine", lora_path="nowhere")
    assert status == 400 and "nowhere is not a PEFT folder" in said
    status, said = posted(server, "load", lora_name="mine", lora_path=folders[0].name)
    assert status == 200 and posted(server, "unload", lora_name="mine")[0] == 200
    body = {"model": "mine", "prompt": IDS}
    gone = httpx.post(f"{server.base_url}/completions", json=body, timeout=60)
    assert gone.status_code == 404 and gone.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/etc", "..", "../../x", "link"])
def test_no_other_folder_is_read(
    path: str, served: tuple[InferenceEngine, InferenceServer], folders: list[Path]
) -> None:
    engine, server = served
    link = folders[0].parent / "link"
    link.unlink(missing_ok=True)
    link.symlink_to("/etc")
    status, said = posted(server, "load", lora_name="mine", lora_path=path)
    assert status == 400 and "is not below the server's adapter folder" in said
    assert engine.adapters == []


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_path_that_cannot_be_is_an_error_of_the_request(
    path: str, served: tuple[InferenceEngine, InferenceServer]
) -> None:
    status, said = posted(served[1], "load", lora_name="mine", lora_path=path)
    assert status == 400 and "is no folder" in said


def test_of_loads_of_one_name_at_once_one_is_answered(
    served: tuple[InferenceEngine, InferenceServer], folders: list[Path]
) -> None:
    body = {"lora_name": "mine", "lora_path": str(folders[0])}
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(posted, served[1], "load", **body) for _ in range(8)]
    assert sorted(each.result()[0] for each in answers) == [200, *[400] * 7]


def test_server_without_a_folder_of_adapters_has_no_such_routes(
    served: tuple[InferenceEngine, InferenceServer], folders: list[Path]
) -> None:
    engine, _ = served
    with engine.serve() as server:
        assert posted(server, "load", lora_name="mine", lora_path=str(folders[0]))[0] == 404


def test_folder_that_cannot_be_used_is_refused(
    served: tuple[InferenceEngine, InferenceServer], tiny_server: InferenceServer, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="adapter_folder: .*nowhere is not a folder"):
        served[0].serve(adapter_folder=tmp_path / "nowhere")
    assert posted(tiny_server, "load", lora_name="mine", lora_path=str(tmp_path))[0] == 404
