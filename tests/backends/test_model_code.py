"""Which of SGLang's model files are imported for an architecture; and RMSNorm and rotary embedding
in C compute what SGLang's own do."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from _inf.backends.verl import environment
from tests.support.installed import ran

pytestmark = [pytest.mark.engine, pytest.mark.verl]  # it imports the whole stack
WIDTH, HEADS, POSITIONS = 64, 3, 50


@pytest.fixture(scope="module", autouse=True)
def model_code():
    environment.prepare("auto")
    from _inf.backends.verl.child import model_code

    return model_code


@pytest.fixture(autouse=True)
def as_in_the_scheduler():
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def refuse(*args: object, **kwargs: object) -> Any:
    raise AssertionError("SGLang's own path was taken")


def marker(*args: object, **kwargs: object) -> Any:
    return "SGLang's own path"


def norm(dtype: torch.dtype, **settings: Any) -> Any:
    usual = {"weight": torch.rand(WIDTH).to(dtype), "hidden_size": WIDTH, "variance_epsilon": 1e-5}
    none = {"variance_size_override": None, "override_orig_dtype": None}
    return SimpleNamespace(**{**none, **usual, **settings})


def test_norm_is_sglangs_and_of_another_kind_takes_sglangs_path(model_code, compiled_kernels):
    x, half = torch.randn(2, WIDTH), torch.randn(2, WIDTH).bfloat16()
    strided, layer = torch.randn(WIDTH, 2).T, norm(torch.float32)
    for given in ((x,), (x, x * 3)):
        out = model_code.normalize(compiled_kernels, refuse, layer, *given)
        summed = given[-1] + x if given[1:] else x
        expected = torch.rms_norm(summed, (WIDTH,), layer.weight, 1e-5)
        torch.testing.assert_close(out, (expected, summed) if given[1:] else expected)
    for other, given in (
        (layer, (half,)),
        (norm(torch.bfloat16), (x,)),
        (norm(torch.float32, variance_size_override=8), (x,)),
        (norm(torch.float32, override_orig_dtype=torch.float32), (x,)),
        (layer, (x[:, :8],)),
        (layer, (x, x, x)),
        (layer, (strided,)),
        (layer, (x, strided)),
    ):
        assert model_code.normalize(compiled_kernels, marker, other, *given) == marker()


@pytest.mark.parametrize("rotated", [WIDTH, WIDTH // 2])
def test_rotation_is_sglangs_and_of_another_kind_takes_sglangs_path(
    model_code, compiled_kernels, rotated
):
    from sglang.srt.layers.rotary_embedding import RotaryEmbedding, _apply_rotary_emb

    def rotary(**settings: Any) -> Any:
        usual = {"is_neox_style": True, "rotary_dim": rotated, "head_size": WIDTH}
        own = {"cos_sin_cache": torch.randn(POSITIONS, rotated)}
        own["_apply_rotary_emb_wrapped"] = _apply_rotary_emb
        return SimpleNamespace(**{**own, **usual, **settings})

    product = torch.randn(2, 3 * HEADS * WIDTH)
    query, key, rest = product.chunk(3, dim=-1)
    positions, layer = torch.tensor([1, 2]), rotary()
    before, theirs = rest.clone(), RotaryEmbedding.forward_native(layer, positions, query, key)
    ours = model_code.rotate(compiled_kernels, refuse, layer, positions, query, key)
    torch.testing.assert_close(ours, theirs)
    assert torch.equal(rest, before)
    for other, given, named in (
        (rotary(is_neox_style=False), (positions, query, key), {}),
        (layer, (positions, query.bfloat16(), key.bfloat16()), {}),
        (layer, (positions[None], query, key), {}),
        (layer, (positions, query, key, positions), {}),
        (layer, (positions, query, key), {"offsets": positions}),
    ):
        assert model_code.rotate(compiled_kernels, marker, other, *given, **named) == marker()


# In a process of its own, because what is imported stays; the child's environment comes first. It
# has a package of models, one with the name of a file of SGLang's.
PROGRAM = """
import json, sys
from _inf.backends.verl import environment
from tests.support.installed import ran
environment.prepare("cpu")
from _inf.backends.verl.child.model_code import FILES, ModelClasses, entry_classes, registry

models, before = ModelClasses(registry.ModelRegistry.models), set(sys.modules)
def new():
    names = [name for name in sys.modules if name not in before]
    return sorted(name for name in names if name.startswith("sglang.srt.models."))
report = {"at first": list(models), "qwen": "Qwen2ForCausalLM" in models, "qwen files": new()}
report["own"] = models["LlamaForCausalLM"].__module__
report["strangers"] = sorted({"wandb", "timm"} & set(sys.modules))
report["unknown"] = "NobodysForCausalLM" in models
every = registry.import_model_classes.__wrapped__("sglang.srt.models")
report["the same"] = dict.keys(models) == every.keys()
report["unnamed"] = [
    name for name in every if not any(name in entry_classes(file) for file in FILES)
]
print(json.dumps(report))
"""


@pytest.mark.slow
def test_only_the_file_of_an_architecture_is_imported_all_for_an_unknown_one_and_ones_own_wins(
    tmp_path,
):
    package = tmp_path / "own_models"
    package.mkdir()
    (package / "__init__.py").touch()
    own = "class LlamaForCausalLM: pass\nEntryClass = LlamaForCausalLM\n"
    (package / "llama.py").write_text(own)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    variables = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "own_models", "PYTHONPATH": path}
    report = json.loads(ran(sys.executable, "-c", PROGRAM, **variables).splitlines()[-1])
    assert report == {
        "at first": ["LlamaForCausalLM"],  # of the package
        "qwen": True,
        "qwen files": ["sglang.srt.models.qwen2"],
        "own": "own_models.llama",
        "strangers": [],
        "unknown": False,
        "the same": True,
        "unnamed": [],
    }
