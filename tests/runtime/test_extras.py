"""What needs an extra that is not installed is refused by name, with the extra in the message."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from _inf.apps.check.token_rows import read_batch
from _inf.apps.check.turns_report import compare_paths
from _inf.apps.cli import main
from _inf.apps.eval.dataset import Example, check_for_verls_reward
from _inf.apps.eval.metrics import metrics
from _inf.apps.ray.run import answer_on_ray
from _inf.apps.rollouts import rollouts_to_data_proto
from _inf.backends.registry import read_config
from _inf.config import Config
from _inf.config.tool_formats import OWN, SGLANG
from _inf.conversation.agent_loops.loading import KnownLoops
from _inf.errors import ConfigError, ToolError
from _inf.models.merging import write_merged
from _inf.runtime import extras
from _inf.tools.loading import load_tools
from _inf.tools.parsing import parse
from inf import InferenceEngine
from tests.support.chat_templates import FAMILIES, embedded_tokenizer, model_of
from tests.support.config_faults import at

TURNS, AGENT = "rollout.multi_turn", "rollout.agent"
VERL = r"verl is not installed in .*: it is the extra verl of inf-engine; run `.+`"


@pytest.fixture
def no_verl(monkeypatch):
    """Neither verl nor SGLang, wherever this runs."""
    monkeypatch.setattr(extras, "has", lambda extra: False)
    monkeypatch.setattr(extras, "installed", lambda package: "")
    for name in ("verl", "verl.tools.base_tool", "verl.tools.gsm8k_tool"):
        monkeypatch.setitem(sys.modules, name, None)


def set_to(path: str, value: Any) -> Callable[[], object]:
    rollout = {"name": "hf"} | at(path.removeprefix("rollout."), value)
    if "multi_turn" in rollout:
        rollout["multi_turn"]["enable"] = True
    return lambda: read_config({"rollout": rollout}, {})


OF_IDS = Mock(**{"_backend.supports": {"token_ids"}})
EXAMPLE = Example(0, "2 + 2?", "openai/gsm8k", "4", {})
REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("rollout.name", set_to("rollout.name", "sglang")),
    (f"{TURNS}.format", set_to(f"{TURNS}.format", "kimi_k2")),
    (f"{TURNS}.interaction_config_path", set_to(f"{TURNS}.interaction_config_path", "x.yaml")),
    (f"{AGENT}.default_agent_loop", set_to(f"{AGENT}.default_agent_loop", "tool_agent")),
    (f"{AGENT}.agent_loop_config_path", set_to(f"{AGENT}.agent_loop_config_path", "x.yaml")),
    ("agent_loop", lambda: KnownLoops(Config()).find("tool_agent")),
    ("agent_loop", lambda: KnownLoops(Config()).find({"_target_": "mine.Loop"})),
    ("rollout_batch()", lambda: InferenceEngine.rollout_batch(OF_IDS, [])),
    ("trainer_batch()", lambda: InferenceEngine.trainer_batch(Mock(), [])),
    ("model_path", lambda: write_merged(Path("actor"), Path("merged"), False)),
    ("rollouts_to_data_proto", lambda: rollouts_to_data_proto([])),
    ("against", lambda: read_batch(__file__)),
    ("reward", lambda: check_for_verls_reward(EXAMPLE)),
]


@pytest.mark.usefixtures("no_verl")
@pytest.mark.parametrize(("name", "call"), REFUSED, ids=[name for name, _ in REFUSED])
def test_what_needs_verl_is_refused_by_name(name, call):
    with pytest.raises(ConfigError, match=VERL) as refused:
        call()
    assert str(refused.value).startswith(f"{name}: ") and refused.value.key == name
    assert extras.NEEDS_VERL[name] in str(refused.value)


@pytest.mark.usefixtures("no_verl")
def test_gsm8k_says_what_of_it_is_verls(capfd):
    assert main(["eval", "gsm8k", "--set", "rollout.name=hf"]) == 2
    assert capfd.readouterr().err.startswith(f"inf: gsm8k: {extras.NEEDS_VERL['gsm8k']}, and verl")


@pytest.mark.usefixtures("no_verl")
def test_paths_of_a_conversation_are_compared_without_verls(monkeypatch):
    monkeypatch.setitem(sys.modules, "verl.workers.rollout.schemas", None)
    report = compare_paths(model_of(embedded_tokenizer(), FAMILIES["Qwen2.5"]), Config(), None)
    assert report.passed
    assert f"verl: {extras.NEEDS_VERL['check turns']}, and verl is not" in report.text()


@pytest.mark.usefixtures("no_verl")
@pytest.mark.parametrize("module", ["verl.tools.gsm8k_tool.Gsm8kTool", "mine_of_verl.Mine"])
def test_tool_class_that_imports_verl_is_refused_in_its_entry(module, tmp_path):
    (tmp_path / "tools.yaml").write_text(yaml.safe_dump([{"class_name": module}]))
    source = "from verl.tools.base_tool import BaseTool\nclass Mine(BaseTool):\n    pass\n"
    (tmp_path / "mine_of_verl.py").write_text(source)
    with pytest.raises(ToolError, match=rf"tools\[0\]\.class_name: .*: the tool is .*{VERL}"):
        load_tools(tmp_path / "tools.yaml")


@pytest.mark.usefixtures("no_verl")
def test_formats_are_those_that_can_be_read_without_sglang():
    for name in SGLANG:
        with pytest.raises(ToolError, match=f"format: '{name}': its calls are read by SGLang's"):
            parse("", name, [])
    listed = ", ".join([*OWN, "qwen", "qwen25", "glm", "glm47", "step3p5"])
    with pytest.raises(ToolError, match=rf"did you mean 'hermes'.* The formats are {listed}\.$"):
        parse("", "hermse", [])


@pytest.mark.parametrize("sglang", [True, False])
def test_newer_verl_gives_what_it_has_and_the_rest_is_for_an_environment_of_its_own(
    sglang, monkeypatch
):
    monkeypatch.setattr(extras, "has", lambda extra: sglang)
    monkeypatch.setattr(extras, "installed", lambda package: "0.9.1")
    assert not extras.has_verl()
    given = {name for name in extras.NEEDS_VERL if not extras.without_verl(name)}
    assert given == extras.OF_ANY_VERL
    with pytest.raises(ConfigError) as refused:
        set_to("rollout.name", "sglang")()
    said = str(refused.value)
    assert f"this needs verl 0.6.1, and {sys.prefix} has verl 0.9.1: make an environment" in said
    assert said.endswith(".whl[verl]'`, or use rollout.name: hf")


def test_metrics_without_verl_are_verls_where_both_have_them(no_verl):
    extra = {"reward_extra": {"pred": "a"}}
    rows = [
        {"number": number, "data_source": "a", "reward": reward, **extra}
        for number, rewards in ((0, (1, 0)), (1, (1, 1)))
        for reward in rewards
    ]
    found = metrics(rows, 2)
    assert (found["val-core/a/reward/mean@2"], found["val-aux/a/reward/std@2"]) == (0.75, 0.25)
    assert not [name for name in found if any(each in name for each in ("best", "worst", "maj"))]


@pytest.mark.usefixtures("no_verl")
def test_workers_of_a_batch_and_packages_of_other_extras_are_refused_by_name():
    with pytest.raises(ConfigError) as refused:
        answer_on_ray(Config(), [], {}, lambda *row: None, workers=2, rollouts=False)
    assert str(refused.value) == "--workers: ray is not installed: pip install 'inf-engine[ray]'"
    with pytest.raises(ConfigError, match=r"^mcp is not .* 'inf-engine\[mcp\]'$"):
        extras.require("mcp")


def test_each_extra_is_one_of_the_package():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    optional = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    for extra in extras.EXTRAS:
        assert f"\n{extra} = [" in optional
