"""A verl trainer's config: what is taken, what is left out and listed, what is refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

import inf
from _inf.backends.registry import read_trainers_config
from _inf.config import load_config
from _inf.config.source import at
from _inf.errors import ConfigError
from tests.support.tiny import tiny_model
from tests.support.upstream import upstream

OWN = "verl/trainer/config/_generated_ppo_trainer.yaml"


def tree(text: str) -> dict[str, Any]:
    return dict(yaml.safe_load(text) or {})


TRAINER = tree("""
actor_rollout_ref:
  model: {path: some/model, lora_rank: 32}
  rollout:
    temperature: 0.7
    prompt_length: ${oc.select:data.max_prompt_length,512}
    load_format: dummy
    seed: 42
    name: vllm
  actor: {optim: {lr: "${nowhere}"}}
data: {max_prompt_length: 1024, truncation: left}
critic: {lr: 1}
""")


def section(rollout: str = "", **more: object) -> dict[str, Any]:
    """A trainer's config with these keys of the rollout, in YAML."""
    return {"actor_rollout_ref": {"model": {"path": "m"}, "rollout": tree(rollout)}} | more


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


OF_RUN = "actor_rollout_ref"
COMMAND = """actor_rollout_ref.rollout.n=4 +actor_rollout_ref.rollout.tensor_model_parallel_size=2
 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32 critic.lr=2
 actor_rollout_ref.model.path=other ++data.max_prompt_length=8"""
TRAINERS = """hydra.run.dir=outputs/${now:%Y} +ray_init.num_cpus=8 model_engine=megatron
 +actor_rollout_ref.rollout.new_switch=False +data.system_prompt=x
 actor_rollout_ref.rollout.top_k=0"""
OURS = "rollout.n=4 rollout.tensor_model_parallel_size=2 model_path=other"
IN_A_TREE = {"rollout": {"n": 4, "tensor_model_parallel_size": 2}, "model_path": "other"}
OF_SGLANG = pytest.mark.verl  # tensor parallelism
SAME = section("response_length: 512", data={"max_response_length": 512})
OTHER = section("response_length: 1024", data={"max_response_length": 512})
LONGER, OWN_LENGTH = "data.max_response_length=256", f"{OF_RUN}.rollout.response_length=64"


@pytest.mark.parametrize(
    ("source", "overrides", "taken", "left_out"),
    [
        (TRAINER, "",
         "model_path=some/model truncate_prompt=left rollout.temperature=0.7"
         " rollout.prompt_length=1024",
         "a mapping, without what only the trainer reads: model.lora_rank: 32, rollout.load_format:"
         " 'dummy', rollout.seed: 42, rollout.name: 'vllm', actor, critic"),
        # Keys with the names of this library are all taken.
        pytest.param(TRAINER, IN_A_TREE, OURS, "", marks=OF_SGLANG),
        pytest.param(TRAINER, OURS, OURS, "", marks=OF_SGLANG),
        (section("", data={"truncation": "middle"}, tool_timeout=3),
         "truncate_prompt=left tool_timeout=9", "truncate_prompt=left tool_timeout=9.0", ""),
        # Those of a run's command line are read as if they stood in its file.
        (TRAINER, COMMAND,
         "rollout.n=4 rollout.tensor_model_parallel_size=1 model_path=other"
         " rollout.prompt_length=8",
         "rollout.log_prob_micro_batch_size_per_gpu: 32"),
        (section("top_k: 5"), TRAINERS, "rollout.top_k=-1",
         "rollout.new_switch: False, hydra, ray_init, model_engine, the rest of data"),
        (TRAINER, f"{OF_RUN}.rollout.gpu_memory_utilization=0.8 rollout.name=hf",
         "rollout.name=hf rollout.temperature=0.7", "rollout.gpu_memory_utilization: 0.8"),
        # Lengths of the rollout follow those of data unless they are its own.
        (SAME, LONGER, "rollout.response_length=256", ""),
        (SAME, f"{LONGER} {OWN_LENGTH}", "rollout.response_length=64", ""),
        (OTHER, LONGER, "rollout.response_length=1024", ""),
        (TRAINER, f"{LONGER} {OWN_LENGTH}", "rollout.response_length=64", ""),
        (tree("""
            actor_rollout_ref: {model: {path: m}, rollout: {}}
            data: {max_prompt_length: 9, max_response_length: 8, trust_remote_code: true}"""),
         "", "rollout.prompt_length=9 rollout.response_length=8 trust_remote_code=True", ""),
        (tree("actor_rollout_ref: {model: {}, rollout: null}\ndata: null"),
         {"model_path": "m", "rollout": None}, "model_path=m", ""),
        # Of verl's generation.
        (tree("{model: {path: m}, rollout: {prompt_length: 9}, data: {n_samples: 5}}"), "",
         "rollout.prompt_length=9", "the rest of data"),
    ],
)  # fmt: skip
def test_what_answers_depend_on_is_taken_and_the_trainers_keys_are_listed(
    source: Any, overrides: Any, taken: str, left_out: str
) -> None:
    asked = overrides.split() if isinstance(overrides, str) else overrides
    config = read_trainers_config(source, asked)
    assert (
        " ".join(f"{key}={at(config.to_dict(), key)}" for key in re.findall(r"(\S+)=", taken))
        == taken
    )
    assert left_out in (config.source or "")
    assert load_config(config, {}).source == config.source


def test_key_of_the_model_that_changes_no_answer_is_not_listed() -> None:
    source = tree("{model: {path: m, override_config: {attn_implementation: eager}}, rollout: {}}")
    assert read_trainers_config(source, None).source == "a mapping"


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
    source = tree("""
        actor_rollout_ref:
          model: {path: m, custom_chat_template: x, tokenizer_path: other, hf_config_path: m}
          rollout:
            quantization: fp8
            temprature: 1
            agent: {custom_async_server: {path: f}}
            engine_kwargs: {vllm: {quantization: fp8, swap_space: 4}}
            multi_turn: {use_inference_chat_template: true}
            qat: {enable: false, b: 4}
        data: {apply_chat_template_kwargs: {enable_thinking: false}, truncation: middle}
    """)
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
    nulls: dict[str, Any] = {"data": dict.fromkeys(source["data"])}
    nulls[OF_RUN] = {name: dict.fromkeys(keys) for name, keys in source[OF_RUN].items()}
    del nulls[OF_RUN]["model"]["path"]
    assert read_trainers_config(source, nulls).model_path == "m"


@pytest.mark.parametrize(
    ("source", "overrides", "says"),
    [
        (tree("{model: {}, rollout: {}}"), [], f"{OF_RUN}.model.path: must be set"),
        (tree("{model: {path: m}, rollout: [1]}"), [], f"{OF_RUN}.rollout: must be a section with"),
        (section(), [f"{OF_RUN}.model=5"], f"{OF_RUN}.model: must be"),
        (section(), [f"{OF_RUN}=null"], f"{OF_RUN}.model.path: must be"),
        (section("do_sampel: false"), [], f"{OF_RUN}.rollout.do_sampel: unknown"),
        (tree("{model: {path: '???'}, rollout: {}}"), [], "model_path: is '???', which means that"),
        *(
            (section(), wrong, f"overrides: expected a mapping or assignments, not {wrong}")
            for wrong in (5, [1], [None], b"n=1")
        ),
        # Overrides that would be lost.
        (section(), ["--config-name=x"], "--config-name=x: an option of Hydra"),
        (section(), ["~data.x"], "~data.x: an option of Hydra"),
        (section(), ["rollout={n:4}"], "rollout={n:4}: in YAML a space follows each colon"),
        (section(), ["rollout.n=4 rollout.seed=1"],
         "rollout.n=4 rollout.seed=1: give rollout.seed as an assign"),
        (section(), ["rolout.n=4"], "rolout: unknown key; did you mean 'rollout'?"),
        (section(), [f"{OF_RUN}.Rollout.n=4"], f"{OF_RUN}.Rollout: unknown key; did you mean"),
        (section(), [f"{OF_RUN}.n=4"], f"{OF_RUN}.n: unknown key; it belongs at {OF_RUN}.rollout"),
        (section(), [f"{OF_RUN}.model.override_config.sliding_window=False"],
         f"{OF_RUN}.model.override_config: {{'sliding_window': False}} would change"),
        (None, None, ""),
        ({"model": {"path": "m"}}, None, ""),
        ({"rollout": {}}, None, ""),
        ({}, None, ""),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_its_place(source: Any, overrides: Any, says: str) -> None:
    (said,) = refusals(source, overrides)
    assert said.startswith(says) and (says or "trainer's config" in said)


def test_interpolations_without_a_value_are_named_only_where_a_key_needs_them() -> None:
    unset = "${oc.env:NO_SUCH_VARIABLE}"
    source = tree(f"""
        actor_rollout_ref:
          model: {{path: m, lora_rank: "{unset}"}}
          rollout: {{n: "${{data.k}}", profiler: {{a: "{unset}"}}}}
        data: {{train_files: "{unset}", max_prompt_length: 9, k: 3}}
    """)
    node = OmegaConf.create(source)
    for each in (source, node, node.actor_rollout_ref):
        assert read_trainers_config(each, None).rollout.n == 3
    assert f"model.lora_rank: '{unset}'" in (read_trainers_config(source, None).source or "")
    whole = {"actor_rollout_ref": OmegaConf.create({**source, **section()})["actor_rollout_ref"]}
    assert read_trainers_config(whole, None).rollout.n == 1
    wrong = section(f"n: {unset}")
    for each in (wrong, OmegaConf.create(wrong)):
        (said,) = refusals(each)
        assert said.startswith("rollout.n: cannot be resolved") and "NO_SUCH_VARIABLE" in said
        assert read_trainers_config(each, ["rollout.n=2"]).rollout.n == 2
    (said,) = refusals(source, OmegaConf.create({"model_path": unset}))
    assert said.startswith("model_path: cannot be resolved")


def test_folder_of_a_run_is_read(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(TRAINER, tmp_path / ".hydra/config.yaml")
    assert read_trainers_config(tmp_path, None).rollout.temperature == 0.7


def test_files_are_looked_for_beside_a_trainers_config(tmp_path: Path) -> None:
    (tmp_path / "own_tools.yaml").write_text("tools: []")
    config = section("multi_turn: {enable: true, tool_config_path: own_tools.yaml}")
    OmegaConf.save(config, tmp_path / "config.yaml")
    config = read_trainers_config(tmp_path / "config.yaml", None)
    assert config.rollout.multi_turn.tool_config_path == str(tmp_path / "own_tools.yaml")


def test_engine_answers_from_a_trainers_file(tmp_path: Path, command: Any) -> None:
    file = tmp_path / "config.yaml"
    OmegaConf.save(TRAINER, file)
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
