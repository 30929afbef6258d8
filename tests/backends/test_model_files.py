"""Which of SGLang's model files are imported for an architecture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own, because what is imported stays; the child's environment comes first.
PROGRAM = """
import json, sys
from _inf.backends.verl import environment
environment.prepare("cpu")
from _inf.backends.verl.child.model_code import FILES, ModelClasses, entry_classes, registry

models, before = ModelClasses(registry.ModelRegistry.models), set(sys.modules)
def new():
    names = [name for name in sys.modules if name not in before]
    return sorted(name for name in names if name.startswith("sglang.srt.models."))
report = {"at first": list(models), "qwen": "Qwen2ForCausalLM" in models, "qwen files": new()}
report["strangers"] = sorted({"wandb", "timm"} & set(sys.modules))
report["unknown"] = "NobodysForCausalLM" in models
every = registry.import_model_classes.__wrapped__("sglang.srt.models")
report["the same"] = dict.keys(models) == every.keys()
report["unnamed"] = [
    name for name in every if not any(name in entry_classes(file) for file in FILES)
]
print(json.dumps(report))
"""


EXTERNAL = """
from _inf.backends.verl import environment
environment.prepare("cpu")
from _inf.backends.verl.child.model_code import ModelClasses, registry

models = ModelClasses(registry.ModelRegistry.models)
print(models["LlamaForCausalLM"].__module__ if "LlamaForCausalLM" in models else None)
"""


@pytest.mark.engine
def test_model_package_of_ones_own_wins_also_with_the_name_of_a_file_of_sglang(
    tmp_path: Path,
) -> None:
    (tmp_path / "own_models").mkdir()
    (tmp_path / "own_models" / "__init__.py").touch()
    (tmp_path / "own_models" / "llama.py").write_text(
        "class LlamaForCausalLM: pass\nEntryClass = LlamaForCausalLM\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    own = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "own_models", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EXTERNAL],
        env={**os.environ, **own}, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "own_models.llama"


@pytest.mark.engine
@pytest.mark.slow
def test_only_the_file_of_an_architecture_is_imported_and_all_for_an_unknown_one() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["at first"] == []
    assert report["qwen"]
    assert report["qwen files"] == ["sglang.srt.models.qwen2"]
    assert report["strangers"] == []
    assert not report["unknown"]
    assert report["the same"]
    assert report["unnamed"] == []
