"""A verl trainer's config: what is taken, what is left out and listed, what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import inf
from _inf.backends.registry import read_trainers_config
from _inf.config import load_config
from _inf.errors import ConfigError
from tests.support.tiny import tiny_model
from tests.support.upstream import upstream

OWN = "verl/trainer/config/_generated_ppo_trainer.yaml"
ROLLOUT = {"temperature": 0.7, "prompt_length": "${oc.select:data.max_prompt_length,512}"}
TRAINER: dict[str, Any] = {
    "actor_rollout_ref": {
        "model": {"path": "some/model", "lora_rank": 32},
        "rollout": {**ROLLOUT, "load_format": "dummy", "seed": 42, "name": "vllm"},
        "actor": {"optim": {"lr": "${nowhere}"}},
    },
    "data": {"max_prompt_length": 1024, "truncation": "left"},
    "critic": {"lr": 1},
}


def section(
    rollout: object = None, model: dict[str, Any] | None = None, **more: object
) -> dict[str, Any]:
    return {
        "actor_rollout_ref": {"model": {"path": "m", **(model or {})}, "rollout": rollout or {}}
    } | more


def refusals(source: Any, overrides: Any = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_trainers_config(source, overrides)
    return str(caught.value).splitlines()


@pytest.mark.verl
def test_verls_own_file_loads_as_a_path_and_as_a_node_whole_or_its_section() -> None:
    file = upstream(OWN)
    node = OmegaConf.load(file)
    node.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu = 8
    read = [read_trainers_config(each, None) for each in (file, str(file), node)]
    read.append(read_trainers_config(node.actor_rollout_ref, None))
    for config in read:
        assert config.model_path == "~/models/deepseek-llm-7b-chat"
        assert (config.rollout.load_format, config.rollout.dtype) == ("auto", "bfloat16")
        assert config.rollout.tensor_model_parallel_size == 1 and config.rollout.do_sample
        assert config.source is not None
        for key in ("rollout.mode: 'sync'", "rollout.load_format: 'dummy'", "actor, ref"):
            assert key in config.source
    assert str(file) in (read[0].source or "")
    assert "log_prob_micro_batch_size_per_gpu: 8" in (read[2].source or "")
    resolved = OmegaConf.to_container(node.actor_rollout_ref, resolve=True)
    for source in (file, node, resolved):  # whose lengths are numbers
        longer = read_trainers_config(source, ["data.max_response_length=1024"])
        assert longer.rollout.response_length == 1024
    megatron = upstream("verl/trainer/config/_generated_ppo_megatron_trainer.yaml")
    assert read_trainers_config(megatron, None).rollout.do_sample


@pytest.mark.verl
def test_file_that_hydra_has_not_composed_names_the_command_that_does() -> None:
    file = upstream("verl/trainer/config/ppo_trainer.yaml")
    (said,) = refusals(file)
    assert said.startswith(f"{file}: Hydra has not composed it yet") and "--cfg job" in said


def test_what_answers_depend_on_is_taken_and_the_trainers_keys_are_listed() -> None:
    config = read_trainers_config(TRAINER, None)
    assert (config.model_path, config.truncate_prompt) == ("some/model", "left")
    assert (config.rollout.temperature, config.rollout.prompt_length) == (0.7, 1024)
    assert config.source == (
        "a mapping, without what only the trainer reads: model.lora_rank: 32, rollout.load_format:"
        " 'dummy', rollout.seed: 42, rollout.name: 'vllm', actor, critic"
    )
    assert load_config(config, {}).source == config.source


@pytest.mark.verl  # tensor parallelism is SGLang's
@pytest.mark.parametrize(
    "overrides",
    [
        {"rollout": {"n": 4, "tensor_model_parallel_size": 2}, "model_path": "other"},
        ["rollout.n=4", "rollout.tensor_model_parallel_size=2", "model_path=other"],
    ],
)
def test_overrides_with_the_names_of_this_library_are_all_taken(overrides: Any) -> None:
    config = read_trainers_config(TRAINER, overrides)
    assert (config.rollout.n, config.rollout.tensor_model_parallel_size) == (4, 2)
    assert config.model_path == "other" and config.rollout.temperature == 0.7


def test_overrides_of_a_runs_command_line_are_read_as_if_they_stood_in_its_file() -> None:
    section = "actor_rollout_ref"
    command = [f"{section}.rollout.n=4", f"+{section}.rollout.tensor_model_parallel_size=2"]
    command += [f"{section}.rollout.log_prob_micro_batch_size_per_gpu=32", "critic.lr=2"]
    command += [f"{section}.model.path=other", "++data.max_prompt_length=8"]
    config = read_trainers_config(TRAINER, command)
    assert (config.rollout.n, config.rollout.tensor_model_parallel_size) == (4, 1)
    assert (config.model_path, config.rollout.prompt_length) == ("other", 8)
    assert "rollout.log_prob_micro_batch_size_per_gpu: 32" in (config.source or "")


def test_keys_that_another_backend_does_not_read_are_left_out() -> None:
    faster = ["actor_rollout_ref.rollout.gpu_memory_utilization=0.8", "rollout.name=hf"]
    config = read_trainers_config(TRAINER, faster)
    assert config.rollout.name == "hf" and config.rollout.temperature == 0.7
    assert "rollout.gpu_memory_utilization: 0.8" in (config.source or "")


def test_misspelt_keys_that_the_answers_depend_on_name_the_right_ones() -> None:
    wrong = ["data.max_respons_length=5", "actor_rollout_ref.model.pth=x"]
    assert refusals(TRAINER, [*wrong, "actor_rollout_ref.rollout.promt_length=5"]) == [
        "actor_rollout_ref.model.pth: unknown key; did you mean 'path'?",
        "data.max_respons_length: unknown key; did you mean 'max_response_length'?",
        "actor_rollout_ref.rollout.promt_length: unknown key; did you mean 'prompt_length'?",
    ]


def test_all_keys_that_would_change_an_answer_are_refused_at_once_and_null_leaves_them_out() -> (
    None
):
    model = {"custom_chat_template": "{{ x }}", "tokenizer_path": "other", "hf_config_path": "m"}
    rollout = {
        "quantization": "fp8",
        "temprature": 1,
        "agent": {"custom_async_server": {"path": "f"}},
        "engine_kwargs": {"vllm": {"quantization": "fp8", "swap_space": 4}},
    }
    rollout |= {
        "multi_turn": {"use_inference_chat_template": True},
        "qat": {"enable": False, "b": 4},
    }
    data = {"apply_chat_template_kwargs": {"enable_thinking": False}, "truncation": "middle"}
    source = {
        "actor_rollout_ref": {"model": {"path": "m", **model}, "rollout": rollout},
        "data": data,
    }
    said = refusals(source)
    assert [line.partition(": ")[0] for line in said] == [
        "actor_rollout_ref.model.custom_chat_template",
        "actor_rollout_ref.model.tokenizer_path",
        "data.apply_chat_template_kwargs",
        "data.truncation",
        "actor_rollout_ref.rollout.quantization",
        "actor_rollout_ref.rollout.temprature",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.quantization",
        "rollout.agent.custom_async_server.path",
        "rollout.multi_turn.use_inference_chat_template",
    ]
    assert "give it to each call as chat_template_kwargs" in said[2]
    without = {
        "actor_rollout_ref": {"model": dict.fromkeys(model), "rollout": dict.fromkeys(rollout)}
    }
    assert read_trainers_config(source, {**without, "data": dict.fromkeys(data)}).model_path == "m"


@pytest.mark.parametrize(
    ("model", "rollout", "overrides", "says"),
    [
        ({}, {}, None, "actor_rollout_ref.model.path: must be set"),
        ({"path": "m"}, [1], None, "actor_rollout_ref.rollout: must be a section with keys"),
        ({"path": "m"}, {}, ["actor_rollout_ref.model=5"], "actor_rollout_ref.model: must be"),
        ({"path": "m"}, {}, ["actor_rollout_ref=null"], "actor_rollout_ref.model.path: must be"),
        ({"path": "m"}, {"do_sampel": False}, None, "actor_rollout_ref.rollout.do_sampel: unknown"),
        *(
            ({"path": "m"}, {}, wrong, f"overrides: expected a mapping or assignments, not {wrong}")
            for wrong in (5, [1], [None], b"n=1")
        ),
        ({"path": "???"}, {}, None, "model_path: is '???', which means that it must be set"),
    ],
)
def test_what_is_missing_or_no_section_is_named(
    model: Any, rollout: Any, overrides: Any, says: str
) -> None:
    (said,) = refusals({"actor_rollout_ref": {"model": model, "rollout": rollout}}, overrides)
    assert said.startswith(says)


def test_interpolations_without_a_value_are_named_only_where_a_key_needs_them() -> None:
    unset = "${oc.env:NO_SUCH_VARIABLE}"
    data = {"train_files": unset, "max_prompt_length": 9, "k": 3}
    source = section({"n": "${data.k}", "profiler": {"a": unset}}, {"lora_rank": unset}, data=data)
    node = OmegaConf.create(source)
    for each in (source, node, node.actor_rollout_ref):
        assert read_trainers_config(each, None).rollout.n == 3
    assert f"model.lora_rank: '{unset}'" in (read_trainers_config(source, None).source or "")
    whole = {"actor_rollout_ref": OmegaConf.create({**source, **section()})["actor_rollout_ref"]}
    assert read_trainers_config(whole, None).rollout.n == 1
    for wrong in (section({"n": unset}), OmegaConf.create(section({"n": unset}))):
        (said,) = refusals(wrong)
        assert said.startswith("rollout.n: cannot be resolved") and "NO_SUCH_VARIABLE" in said
        assert read_trainers_config(wrong, ["rollout.n=2"]).rollout.n == 2
    (said,) = refusals(source, OmegaConf.create({"model_path": unset}))
    assert said.startswith("model_path: cannot be resolved")


def test_lengths_of_the_rollout_follow_those_of_data_unless_they_are_its_own() -> None:
    same = section({"response_length": 512}, data={"max_response_length": 512})
    other = section({"response_length": 1024}, data={"max_response_length": 512})
    longer, own = "data.max_response_length=256", "actor_rollout_ref.rollout.response_length=64"
    for source, overrides, length in (
        (same, [longer], 256),
        (same, [longer, own], 64),
        (other, [longer], 1024),
        (TRAINER, [longer, own], 64),
    ):
        assert read_trainers_config(source, overrides).rollout.response_length == length


def test_a_runs_command_line_may_have_what_only_its_trainer_or_hydra_knows() -> None:
    command = ["hydra.run.dir=outputs/${now:%Y}", "+ray_init.num_cpus=8", "model_engine=megatron"]
    command += ["+actor_rollout_ref.rollout.new_switch=False", "+data.system_prompt=x"]
    command += ["actor_rollout_ref.rollout.top_k=0"]
    config = read_trainers_config(section({"top_k": 5}), command)
    assert config.rollout.top_k == -1
    left_out = "rollout.new_switch: False, hydra, ray_init, model_engine, the rest of data"
    assert (config.source or "").endswith(left_out)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("--config-name=x", "--config-name=x: an option of Hydra"),
        ("~data.x", "~data.x: an option of Hydra"),
        ("rollout={n:4}", "rollout={n:4}: in YAML a space follows each colon"),
        (
            "rollout.n=4 rollout.seed=1",
            "rollout.n=4 rollout.seed=1: give rollout.seed as an assign",
        ),
        ("rolout.n=4", "rolout: unknown key; did you mean 'rollout'?"),
        ("actor_rollout_ref.Rollout.n=4", "actor_rollout_ref.Rollout: unknown key; did you mean"),
        ("actor_rollout_ref.n=4", "actor_rollout_ref.n: unknown key; it belongs at actor_rollout_"),
        (
            "actor_rollout_ref.model.override_config.sliding_window=False",
            "actor_rollout_ref.model.override_config: {'sliding_window': False} would change",
        ),
    ],
)
def test_overrides_that_would_be_lost_are_refused(override: str, says: str) -> None:
    (said,) = refusals(section(), [override])
    assert said.startswith(says)


def test_folder_of_a_run_and_a_config_of_verls_generation_are_read(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(OmegaConf.create(TRAINER), tmp_path / ".hydra/config.yaml")
    assert read_trainers_config(tmp_path, None).rollout.temperature == 0.7
    generation = {"model": {"path": "m"}, "rollout": {"prompt_length": 9}, "data": {"n_samples": 5}}
    config = read_trainers_config(generation, None)
    assert config.rollout.prompt_length == 9 and "the rest of data" in (config.source or "")


def test_keys_beside_the_rollout_that_answers_depend_on_are_read() -> None:
    data = {"max_prompt_length": 9, "max_response_length": 8, "trust_remote_code": True}
    config = read_trainers_config(section(data=data), None)
    assert config.rollout.widths == (9, 8) and config.trust_remote_code
    attention = {"override_config": {"attn_implementation": "eager"}}
    assert read_trainers_config(section(model=attention), None).source == "a mapping"


def test_overrides_of_this_library_stand_above_what_the_file_says() -> None:
    source = section(data={"truncation": "middle"}, tool_timeout=3)
    config = read_trainers_config(source, ["truncate_prompt=left", "tool_timeout=9"])
    assert (config.truncate_prompt, config.tool_timeout) == ("left", 9)


def test_files_are_looked_for_beside_a_trainers_config(tmp_path: Path) -> None:
    (tmp_path / "own_tools.yaml").write_text("tools: []")
    turns = {"enable": True, "tool_config_path": "own_tools.yaml"}
    OmegaConf.save(OmegaConf.create(section({"multi_turn": turns})), tmp_path / "config.yaml")
    config = read_trainers_config(tmp_path / "config.yaml", None)
    assert config.rollout.multi_turn.tool_config_path == str(tmp_path / "own_tools.yaml")


def test_null_sections_are_empty_and_a_model_may_come_from_the_overrides() -> None:
    source = {"actor_rollout_ref": {"model": {}, "rollout": None}, "data": None}
    assert read_trainers_config(source, {"model_path": "m", "rollout": None}).model_path == "m"


@pytest.mark.parametrize("source", [None, {"model": {"path": "m"}}, {"rollout": {}}, {}])
def test_what_is_no_trainers_config_is_refused(source: Any) -> None:
    (said,) = refusals(source)
    assert "trainer's config" in said


def test_engine_answers_from_a_trainers_file(tmp_path: Path, command: Any) -> None:
    file = tmp_path / "config.yaml"
    OmegaConf.save(OmegaConf.create(TRAINER), file)
    path = {"model": {"path": str(tiny_model())}, "rollout": {"name": "hf", "response_length": 8}}
    with inf.InferenceEngine.from_verl(file, {"actor_rollout_ref": path}) as engine:
        assert len(engine.generate("Hello", ignore_eos=True).token_ids[0]) == 8
        assert engine.config.source is not None and engine.config.source.startswith(str(file))
    with pytest.raises(ConfigError, match="use InferenceEngine.from_verl"):
        inf.InferenceEngine(file)
    code, _, said = command("--verl", file, "-c", "c.yaml", "Hello")
    assert code == 2 and "--verl: -c is given too" in said
    options = ["-m", tiny_model(), "--set", "rollout.name=hf", "--max-tokens", "3", "--json"]
    code, rows, said = command("--verl", file, *options, "Hello")
    assert code == 0 and '"completion_tokens": 3' in rows
    assert f"{file}, without what only the trainer reads" in said
