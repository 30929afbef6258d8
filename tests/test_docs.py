"""Tests of the pages that are generated from the code or compared with it."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import inf
from _inf.backends.registry import read_config
from _inf.config import Config
from _inf.errors import ConfigError
from _inf.request.keywords import KEYWORDS
from tests.support.config_faults import at
from tests.support.upstream import dataclass_fields, upstream
from tests.support.vllm_fields import vllm_fields

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ── What is generated ────────────────────────────────────────────────────────────────────────────


OF_VERL = ("config", "turns")  # defaults with verl, and what its own builder makes of a turn


@pytest.mark.parametrize(
    "name",
    [
        *("api", "backends", "batch", "serving", "tools"),
        *(pytest.param(name, marks=pytest.mark.verl) for name in OF_VERL),
    ],
)
def test_generated_page_is_current(name: str, generate: ModuleType) -> None:
    if name == "api":
        pytest.importorskip("griffe", reason="needs the extra docs")
    page = (DOCS / f"{name}.md").read_text()
    assert generate.PART.search(page)
    assert generate.generated(page) == page, "run: .venv/bin/python docs/generate.py"


def test_types_of_keywords_are_current(generate: ModuleType) -> None:
    assert generate.TYPED.read_text() == generate.typed_module(), "run docs/generate.py"


def test_page_of_the_api_has_every_public_name() -> None:
    page = (DOCS / "api.md").read_text()
    not_there = [name for name in inf.__all__ if f"### `{name}`" not in page]
    assert not_there == ["Config"]  # docs/config.md has its keys


# ── docs/verl.md ─────────────────────────────────────────────────────────────────────────────────

ROWS = re.findall(
    r"^\| `([\w.]+)(?:\.\*)?` \| (used|only .+?) \|", (DOCS / "verl.md").read_text(), re.M
)


def test_page_of_backends_says_of_each_field_of_vllm_what_it_is_here() -> None:
    """The fields themselves are compared with vLLM's by `tests/soak/test_openai_servers.py`."""
    for name, verdict in vllm_fields().items():
        assert verdict in ("the same", "different", "refused"), name
        if name != "structured_outputs":
            assert (name in KEYWORDS) is (verdict != "refused"), name


@pytest.mark.verl
def test_page_for_verl_users_has_each_key_of_verls_once() -> None:
    def names(section: str) -> dict[str, str]:
        return dataclass_fields("verl/workers/config/rollout.py", f"{section}Config")

    sections = {"val_kwargs": "Sampling", "multi_turn": "MultiTurn", "agent": "AgentLoop"}
    expected = names("Rollout").keys() - sections
    expected |= {f"{key}.{name}" for key, section in sections.items() for name in names(section)}
    assert sorted(path for path, _ in ROWS) == sorted(expected)


SECTIONS: dict[str, Any] = {
    "agent.custom_async_server": {"path": "x"},
    "trace": {"token2text": True},
    "server": {"max_attempts": 4},
    "prometheus": {"port": 9091},
    "profiler": {"all_ranks": True},
}


@pytest.mark.verl
@pytest.mark.parametrize(("path", "verdict"), [row for row in ROWS if row[1] != "used"])
def test_page_for_verl_users_says_what_the_code_does(path: str, verdict: str) -> None:
    if verdict == "only the defaults":
        refused = at(path, SECTIONS[path])
    else:
        accepted = [yaml.safe_load(value) for value in re.findall(r"`(.+?)`", verdict)]
        for value in accepted:
            server = {"base_url": "http://localhost", "model_path": "m"}
            rollout = {"rollout": at(path, value)}
            read_config(server | rollout if value == "openai" else rollout, {})
        others = [True, False, 2, 7, 0.25, "x", {"x": 1}]
        if set(map(str, accepted)) >= {"True", "False"}:
            others = ["x"]
        refused = at(path, next(v for v in others if v not in accepted))
    with pytest.raises(ConfigError, match=rf"^rollout\.{re.escape(path)}\b"):
        read_config({"rollout": refused}, {})


@pytest.mark.verl
def test_page_for_verl_users_loads_verls_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(
        upstream("verl/trainer/config/_generated_ppo_trainer.yaml"), tmp_path / "config.yaml"
    )
    monkeypatch.chdir(tmp_path)
    made: list[Config] = []

    def start(self: object, config: Config) -> None:
        made.append(config)
        vars(self)["config"] = config

    monkeypatch.setattr(inf.InferenceEngine, "__init__", start)
    block = re.findall(r"^```python\n(.*?)^```", (DOCS / "verl.md").read_text(), re.S | re.M)[0]
    exec(compile(block, "docs/verl.md", "exec"), {})
    assert made[0].rollout.load_format == "auto" and made[0].model_path == "Qwen/Qwen3-0.6B"


def test_every_test_that_holds_a_promise_exists() -> None:
    page = (DOCS / "architecture.md").read_text()
    table = page.partition("## Which test holds which promise\n")[2].partition("\n## ")[0]
    named = re.findall(r"`(tests/[^`]+)`", table)
    assert len(named) > 25
    assert [name for name in named if not [*DOCS.parent.glob(name)]] == []
