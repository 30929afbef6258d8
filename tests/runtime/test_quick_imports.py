"""Imports of a start leave out what nobody calls, and only within their block."""

from __future__ import annotations

import importlib
import sys

import pytest

from _inf.runtime.interpreter import quick_imports
from tests.support.installed import ran


def run(code: str) -> None:
    ran(sys.executable, "-c", code)


@pytest.mark.slow
def test_imports_leave_scikit_learn_quantizers_and_the_compiler_until_somebody_calls_them():
    run("""
import os, sys
os.environ["TORCH_COMPILE_DISABLE"] = "1"
from _inf.runtime.interpreter import quick_imports
with quick_imports():
    import transformers.generation.candidate_generator  # of 4.57: imports it as the next line does
    from sklearn.metrics import roc_curve
    assert "sklearn" not in sys.modules and "pandas" not in sys.modules
assert "sklearn.metrics" not in sys.modules

with quick_imports():
    import transformers.quantizers.auto as auto
assert "torchao" not in sys.modules
class Config: modules_to_not_convert = quant_type = None
quantizer = auto.AUTO_QUANTIZER_MAPPING["torchao"](Config(), pre_quantized=True)
assert type(quantizer).__name__ == "TorchAoHfQuantizer"

def double(x): return 2 * x
with quick_imports():
    import torch
    compiled = torch.compile(dynamic=True)(double)
assert compiled is double and "torch._inductor.compile_fx" not in sys.modules
assert "TORCHDYNAMO_DISABLE" not in os.environ
assert torch.compile(double) is not double

rates, _, _ = roc_curve([0, 1], [0.1, 0.9])
assert rates[-1] == 1.0
from sklearn.metrics import f1_score, roc_curve
assert f1_score([1], [1]) == 1.0 and sys.modules["sklearn.metrics"].__file__
del sys.modules["sklearn.metrics"]
with quick_imports():
    from sklearn.metrics import f1_score as within  # asked for within: the real one
    import sklearn.metrics.pairwise
assert within is sys.modules["sklearn.metrics"].f1_score
with quick_imports():
    assert sys.modules["sklearn.metrics"].__file__, "one that is imported is left alone"
""")
    run("""
import os
os.environ.pop("TORCH_COMPILE_DISABLE", None)  # which an engine of this process has set
import torch
from _inf.runtime.interpreter import quick_imports
def double(x): return 2 * x
with quick_imports():
    assert torch.compile(double) is not double
""")


def test_objects_of_imports_are_old_ones_afterwards():
    run("""
import gc
from _inf.runtime.interpreter import quick_imports
with quick_imports():
    assert not gc.isenabled()
    import colorsys
    made = [[] for _ in range(10_000)]
assert gc.isenabled() and not gc.get_freeze_count()
assert any(each is made for each in gc.get_objects(generation=2))
gc.freeze()
frozen = gc.get_freeze_count()
with quick_imports():
    import wave
assert gc.get_freeze_count() == frozen, "what the caller has frozen stays so"
""")


def test_package_seems_absent_within_the_block_only(tmp_path, monkeypatch):
    (tmp_path / "of_a_gpu.py").write_text("number = 1")
    monkeypatch.syspath_prepend(tmp_path)
    with quick_imports(without=["of_a_gpu"]), pytest.raises(ImportError):
        importlib.import_module("of_a_gpu")
    assert importlib.import_module("of_a_gpu").number == 1
    with quick_imports(without=["of_a_gpu"]):
        assert importlib.import_module("of_a_gpu").number == 1, "it was imported before"
