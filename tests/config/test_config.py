"""How a config is read and merged: files, mappings, overrides, flat keys, `--set`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from _inf.backends.registry import read_config
from _inf.config import Config, MultiTurn, RolloutConfig, load_config, parse_assignments
from _inf.errors import ConfigError
from tests.support.config_faults import at, faults
from tests.support.upstream import upstream

ROOT = Path(__file__).resolve().parents[2]
ARRAY = np.arange(2)


def written(folder: Path, text: str) -> Path:
    file = folder / "c.yaml"
    file.write_text(text)
    return file


# ── What the shipped files say ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", [None, "another"])
@pytest.mark.parametrize("said", [{}, {"n": 4}, {"name": "hf"}, {"temperature": 0.9}], ids=str)
def test_defaults_depend_on_the_model_and_not_on_the_form_of_the_config(model, said, tmp_path):
    whole = {"model_path": model, "rollout": said}
    read = [
        read_config(None, whole),
        read_config(whole, {}),
        read_config({}, whole),
        read_config({"model_path": model}, {"rollout": said}),
        read_config({"rollout": said}, {"model_path": model}),
        read_config(written(tmp_path, json.dumps(whole)), {}),
        read_config(Config(rollout=RolloutConfig(**said)), {"model_path": model}),
        *(  # the config of another engine
            read_config(read_config({"model_path": of, "rollout": said}, {}), {"model_path": model})
            for of in (None, "a third")
        ),
    ]
    own = {"prompt_length": 2048, "do_sample": "temperature" in said, "max_num_seqs": 64}
    own |= {"dtype": "float32", "enforce_eager": True}
    for config in read:
        expected = RolloutConfig(**({} if model else own) | said)
        assert config.model_path == model and config.rollout == expected
        # The lengths follow the model.
        assert not config.rollout.model_fields_set & {"prompt_length", "response_length"}


def test_commands_lengths_stay_though_the_config_is_given_on():
    of_a_command = read_config(None, {}, {"prompt_length": 4096})
    assert read_config(of_a_command, {"model_path": "another"}).rollout.prompt_length == 4096
    short = read_config(of_a_command, {"rollout": {"max_model_len": 2600}})
    assert short.rollout.widths == (2048, 512)  # where there is no room for them


@pytest.mark.parametrize("rollout", [[], False, 0, ""])
def test_rollout_that_is_no_section_is_refused(rollout):
    assert faults({"rollout": rollout}) == [f"rollout: {rollout!r} is not an object"]


@pytest.mark.parametrize(
    ("said", "samples"),
    [
        ({"temperature": 0.9}, True),
        ({"top_k": 5}, True),
        ({"temperature": 0}, False),
        ({"top_p": 1, "top_k": -1}, False),
        ({"do_sample": False, "temperature": 1.0}, False),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_embedded_default_samples_where_what_is_laid_over_it_asks(said, samples):
    assert load_config(None, {"rollout": said}).rollout.do_sample is samples
    assert load_config(None, said).rollout.do_sample is samples  # the older, flat form
    assert load_config({"rollout": said}, {}).rollout.do_sample is samples
    another = {"model_path": "another", "rollout": said}
    assert load_config(None, another).rollout.do_sample is said.get("do_sample", True)


def test_greedy_beside_what_it_would_ignore_is_refused_by_name():
    for name, value in (("temperature", 0.9), ("top_p", 0.9), ("top_k", 5)):
        says = f"rollout.do_sample: false means greedy, but {name} is {value}; remove one of them"
        assert faults(None, rollout={name: value, "do_sample": False}) == [says]
        assert faults(at(f"rollout.{name}", value), rollout={"do_sample": False}) == [says]


# ── Sources ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "c.yaml: empty"),
        ("- a\n- b\n", "c.yaml: expected keys and values at the top"),
        ("device: cpu\ndevice: cpu\n", "c.yaml, line 2: not valid YAML: found duplicate key"),
        ("model_path: !!bool maybe\n", "c.yaml: not valid YAML: KeyError: 'maybe'"),
        ("rollout: &r {multi_turn: *r}\n", "c.yaml"),  # OmegaConf or we, by its version
        ("5: x\n", "config: a key must be text, not 5"),
        ("rollout: {n: [{'': '${oc.env:INF_NO_SUCH}'}]}\n", "config: a key is empty"),
        ("model_path: ${nope}\n", "model_path: cannot be resolved: Interpolation key 'nope'"),
        ("rollout: {layer_name_map: ['???']}\n", "rollout.layer_name_map[0]: is "),
        ("model_path: ${\n", "model_path: not valid YAML: GrammarParseError: no viable"),
        ("rollout: {dtype: no}\n", "rollout.dtype: must be 'auto', "),
        ("rollout: {n: 1e3}\n", "rollout.n: 1000.0 is not an int"),
    ],
)
def test_odd_yaml_is_right_or_refused(tmp_path, text, says):
    (line,) = faults(written(tmp_path, text))
    assert line.removeprefix(f"{tmp_path}/").startswith(says)


def test_file_that_cannot_be_read_is_one_sentence(tmp_path):
    missing, binary = tmp_path / "no.yaml", tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert faults(missing)[0].startswith(f"{missing}: no such config file")
    for path in (str(tmp_path), binary, binary / "x", "x\0y"):
        assert faults(path)[0].startswith(f"{path}: not a config file that can be read (")
    assert 'use model_path="Qwen/Qwen3" (in the shell: --set' in faults("Qwen/Qwen3")[0]
    assert faults(["a"]) == ["config: expected a path, a mapping or None, got ['a']"]


@pytest.mark.parametrize("value", ["0x_", "[" * 5000, "9" * 5000, 10**5000], ids=list("abcd"))
def test_value_that_cannot_be_read_or_printed_is_refused_by_its_key(value):
    (line,) = faults(at("rollout.n", value))
    assert line.startswith("rollout.n: ")


def test_file_beside_the_config_is_found_and_others_stay_as_given(tmp_path, monkeypatch):
    folder, here = tmp_path / "conf", tmp_path / "here"
    (folder / "model").mkdir(parents=True)
    here.mkdir()
    monkeypatch.chdir(here)
    file = written(folder, "model_path: ./model\n")
    assert load_config(file, {}).model_path == str(folder / "model")
    (here / "model").mkdir()
    assert load_config(file, {}).model_path == "./model"
    (folder / "hub").mkdir()
    assert load_config(written(folder, "model_path: hub\n"), {}).model_path == "hub"
    long = f"./{'x' * 300}"  # no name of a file, which the system refuses to look for
    assert load_config(written(folder, f"model_path: {long}\n"), {}).model_path == long


def test_source_is_read_as_people_mean_it(tmp_path):
    rollout = OmegaConf.create({"_target_": "a.B", "n": 2, "cudagraph_capture_sizes": [1, 2]})
    config = load_config({"model_path": Path("/m"), "rollout": rollout}, {})
    assert config.model_path == "/m" and config.rollout.n == 2
    sizes = at("rollout.cudagraph_capture_sizes", (1, 4))
    assert load_config({}, sizes).rollout.cudagraph_capture_sizes == [1, 4]
    text = """
    trust_remote_code: no
    rollout:
      temperature: 1e-1
      response_length: ${rollout.prompt_length}
      multi_turn:                # all commented out
    """
    file = written(tmp_path, f"\ufeff{text}")  # as Windows' editors begin a file
    config = load_config(file, at("rollout.prompt_length", 700))
    assert config.trust_remote_code is False and config.rollout.temperature == 0.1
    assert config.rollout.response_length == 700  # follows the override
    assert config.rollout.multi_turn == MultiTurn()
    assert faults({"model_path": {1}})[0].startswith("model_path: cannot be resolved: Value 'set'")
    cycle: dict[str, Any] = {}
    cycle["rollout"] = cycle
    assert faults(cycle)[0].startswith("config: a value contains itself")


@pytest.mark.verl
def test_verls_own_files_are_refused_with_what_makes_them_runnable():
    own = OmegaConf.load(upstream("verl/trainer/config/rollout/rollout.yaml"))
    (name,) = faults({"rollout": own})
    assert name.startswith("rollout.name: is '???'")
    (mode,) = faults({"rollout": own}, rollout={"name": "sglang"})
    assert mode.startswith("rollout.mode: must be 'async', not 'sync'")
    runnable = {"name": "sglang", "mode": "async", "tensor_model_parallel_size": 1}
    config = load_config({"rollout": own}, {"rollout": runnable})
    assert config.rollout.prompt_length == 512 and config.rollout.dtype == "bfloat16"


# ── Merging and flat keys ────────────────────────────────────────────────────────────────────────


def test_overrides_merge_deeply_and_lists_replace():
    below = {"sglang": {"page_size": 1, "attention_backend": "triton"}}
    source = {"rollout": {"engine_kwargs": below, "cudagraph_capture_sizes": [1, 2, 4], "n": 3}}
    above = {"engine_kwargs": {"sglang": {"page_size": 2}}, "cudagraph_capture_sizes": [8]}
    rollout = load_config(source, {"rollout": above}).rollout
    assert rollout.engine_kwargs["sglang"] == {"page_size": 2, "attention_backend": "triton"}
    assert rollout.cudagraph_capture_sizes == [8] and rollout.n == 3
    assert load_config(source, at("rollout.n", "???")).rollout.n == 3  # OmegaConf's "not said"
    assert source["rollout"]["engine_kwargs"] == below and below["sglang"]["page_size"] == 1


@pytest.mark.parametrize(
    ("flat", "read"),
    [
        ("max_new_tokens", lambda r: r.response_length),
        ("attention_backend", lambda r: r.engine_kwargs["sglang"]["attention_backend"]),
        ("temperature", lambda r: r.temperature),
    ],
)
def test_flat_key_works_with_one_warning_that_names_its_place(flat, read):
    value = "fa3" if flat == "attention_backend" else 7
    with pytest.warns(DeprecationWarning, match=f"config key '{flat}' is now 'rollout.") as warned:
        assert read(load_config({flat: value}, {}).rollout) == value
    assert len(warned) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_flat_key_beside_another_value_names_both_and_an_override_wins():
    nested, flat = {"rollout": {"temperature": 1.0}}, {"temperature": 0.5}
    (line,) = faults(flat | nested)
    assert line.startswith("temperature: 0.5 contradicts 1.0 at rollout.temperature")
    assert load_config({"n": 2, "rollout": {"n": 2}}, {}).rollout.n == 2
    assert load_config(nested, flat).rollout.temperature == 0.5
    assert load_config(flat, nested).rollout.temperature == 1.0


# ── The value itself, and --set ──────────────────────────────────────────────────────────────────


def test_config_is_frozen_and_reads_its_own_dict_back():
    config = load_config(ROOT / "config.yaml", {})
    with pytest.raises(ValueError, match="frozen"):
        config.rollout.n = 2
    assert load_config(config.to_dict(), {}) == config


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("rollout.dtype=float32", {"rollout": {"dtype": "float32"}}),
        ("rollout.temperature=1e-1", {"rollout": {"temperature": 0.1}}),
        ("truncate_prompt=", {"truncate_prompt": None}),
        ("a = [1, {b: c}]", {"a": [1, {"b": "c"}]}),
        ("model_path=/a=b", {"model_path": "/a=b"}),
    ],
)
def test_assignment_is_a_path_and_a_yaml_value(text, tree):
    assert parse_assignments([text]) == tree
    texts = ["rollout.n=2", text, "rollout.n=3"]  # they merge, and the last wins
    assert parse_assignments(texts)["rollout"]["n"] == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("text", ["a", "=1", "a..b=1", "a=[", "a=!!bool x", "a=&x [*x]"])
def test_assignment_or_value_that_is_none_is_refused(text):
    with pytest.raises(ConfigError):
        parse_assignments([text])
    with pytest.raises(ConfigError, match="^rollout\\.n: "):
        load_config({"rollout": {"n": 1}}, at("rollout.n", ARRAY))
