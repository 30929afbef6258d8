"""Which of SGLang's model files are imported for an architecture; and RMSNorm and rotary embedding
in fewer operators compute what SGLang's own do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from _inf.backends.verl import environment

pytestmark = [pytest.mark.engine, pytest.mark.verl]  # it imports the whole stack
WIDTH, HEADS, POSITIONS = 64, 3, 50


@pytest.fixture(scope="module", autouse=True)
def model_code() -> Any:
    environment.prepare("auto")
    from _inf.backends.verl.child import model_code

    return model_code


@pytest.fixture(autouse=True)
def as_in_the_scheduler() -> Any:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def norm(dtype: torch.dtype, **settings: Any) -> Any:
    usual = {
        "weight": torch.rand(WIDTH).to(dtype),
        "hidden_size": WIDTH,
        "variance_epsilon": 1e-5,
        "variance_size_override": None,
        "override_orig_dtype": None,
        "fp32_residual": False,
        "cast_x_before_out_mul": False,
    }
    return SimpleNamespace(**{**usual, **settings})


def refuse(*args: object, **kwargs: object) -> Any:
    raise AssertionError("SGLang's own path was taken")


def marker(*args: object, **kwargs: object) -> Any:
    return "SGLang's own path"


def test_kernel_for_norms_of_queries_is_not_compiled_for_float32(model_code: Any) -> None:
    """nvcc refuses its source for float32, after seconds."""
    asked = model_code.half_precision_only
    assert asked(refuse, 128, torch.float32) is False
    assert asked(marker, 128, torch.bfloat16) == marker()


@pytest.mark.parametrize("rows", [0, 1, 7])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("with_residual", [True, False])
def test_norm_is_sglangs(model_code: Any, rows: int, scale: float, with_residual: bool) -> None:
    from sglang.srt.layers.layernorm import RMSNorm

    x = torch.randn(rows, WIDTH) * scale
    residual = torch.randn(rows, WIDTH) * scale if with_residual else None
    layer = norm(torch.float32)
    ours = model_code.normalize(None, refuse, layer, x.clone(), residual)
    torch.testing.assert_close(ours, RMSNorm.forward_native(layer, x, residual))


def test_norm_of_another_kind_takes_sglangs_path(model_code: Any) -> None:
    x, half = torch.randn(2, WIDTH), torch.randn(2, WIDTH).bfloat16()
    for layer, given in (
        (norm(torch.float32), (half,)),
        (norm(torch.bfloat16), (x,)),
        (norm(torch.float32, variance_size_override=8), (x,)),
        (norm(torch.float32, override_orig_dtype=torch.float32), (x,)),
        (norm(torch.float32), (x[:, :8],)),
        (norm(torch.float32), (x, x, x)),
    ):
        assert model_code.normalize(None, marker, layer, *given) == "SGLang's own path"


def rotary(**settings: Any) -> Any:
    from sglang.srt.layers.rotary_embedding import _apply_rotary_emb

    angles = torch.rand(POSITIONS, WIDTH // 2)
    usual = {
        "cos_sin_cache": torch.cat((angles.cos(), angles.sin()), dim=-1),
        "is_neox_style": True,
        "rotary_dim": WIDTH,
        "head_size": WIDTH,
        "_apply_rotary_emb_wrapped": _apply_rotary_emb,
    }
    return SimpleNamespace(**{**usual, **settings})


def query_and_key(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As a product gives them: views of one tensor."""
    query, key, _ = torch.randn(rows, 3 * HEADS * WIDTH).chunk(3, dim=-1)
    return query, key


@pytest.mark.parametrize("rows", [1, 7])
def test_rotation_is_sglangs_in_every_layer_of_every_step(model_code: Any, rows: int) -> None:
    from sglang.srt.layers.rotary_embedding import RotaryEmbedding

    layer = rotary()
    for _ in range(2):  # steps
        positions = torch.randint(0, POSITIONS, (rows,))
        for _ in range(2):  # layers
            given = query_and_key(rows)
            ours = model_code.rotate(None, refuse, layer, positions, *given)
            theirs = RotaryEmbedding.forward_native(layer, positions, *given)
            torch.testing.assert_close(ours, theirs)


def test_rotation_of_another_kind_takes_sglangs_path(model_code: Any) -> None:
    query, key = query_and_key(2)
    positions = torch.tensor([1, 2])
    for layer, given, named in (
        (rotary(is_neox_style=False), (positions, query, key), {}),
        (rotary(rotary_dim=8), (positions, query, key), {}),
        (rotary(), (positions, query.bfloat16(), key.bfloat16()), {}),
        (rotary(), (positions[None], query, key), {}),
        (rotary(), (positions, query, key, positions), {}),
        (rotary(), (positions, query, key), {"offsets": positions}),
    ):
        result = model_code.rotate(None, marker, layer, *given, **named)
        assert result == "SGLang's own path"


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


@pytest.mark.slow
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
