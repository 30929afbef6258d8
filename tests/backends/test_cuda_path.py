"""The path on a GPU, as far as a machine without one can prove it.

Programs that believe in an H100 import, resolve and compile what a start there does
(`cuda_facts.py`). No kernel runs here.
"""

from __future__ import annotations

import json
import re
import shutil
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from transformers import PretrainedConfig

from _inf.backends.model_info import with_dtype
from _inf.backends.verl import cuda
from _inf.backends.verl.server_arguments import server_arguments
from _inf.config import load_config
from _inf.errors import ConfigError
from tests.support.fake_gpu import driver, needs_headers, python

pytestmark = pytest.mark.verl

SHARED_MEMORY = {90: 232_448, 80: 166_912, 89: 101_376}  # bytes of a block, at most


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    script = "tests.support.cuda_facts"
    done = python("-m", script, LD_LIBRARY_PATH=driver(tmp_path_factory.mktemp("driver")))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@needs_headers
@pytest.mark.slow
def test_what_a_start_imports_on_a_gpu_imports_and_every_measured_architecture_has_its_class(facts):
    """The scheduler, FlashAttention 3, flashinfer, Triton's attention, both tables of patches."""
    assert set(facts["imports"].values()) == {None}, facts["imports"]
    assert "/sm90/" in facts["library"]
    assert facts["deep_gemm"] is False
    assert len(facts["models"]) == 31
    assert set(facts["models"].values()) == {None}, facts["models"]


@needs_headers
@pytest.mark.slow
def test_every_function_of_the_patch_tables_takes_upstreams_arguments(facts):
    assert facts["misfits"] == []


@needs_headers
@pytest.mark.slow
def test_norms_call_kernels_of_the_wheel_and_float32_norms_none(facts):
    """They are asked for tensors of a CPU, which a kernel refuses by its name."""
    norms = facts["norms"]
    assert norms["RMSNorm float32"] is norms["GemmaRMSNorm float32"] is None
    assert "'sgl_kernel::rmsnorm'" in norms["RMSNorm bfloat16"]
    assert "'sgl_kernel::gemma_rmsnorm'" in norms["GemmaRMSNorm bfloat16"]


@pytest.fixture(autouse=True)
def _serial_on_a_cpu(monkeypatch):
    """As without `pytest --overlap`."""
    monkeypatch.setattr("_inf.backends.verl.server_arguments.SERIAL_DEVICES", {"cpu"})


def arguments_of(
    monkeypatch: pytest.MonkeyPatch,
    device: Literal["cuda", "cpu"] = "cuda",
    capability: int = 9,
    gigabytes: int = 80,
    keys: dict[str, Any] | None = None,
    sglang: dict[str, Any] | None = None,
    **rollout: Any,
) -> dict[str, Any]:
    gpu = SimpleNamespace(total_memory=gigabytes * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (capability, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: gpu)
    rollout |= {"engine_kwargs": {"sglang": sglang}} if sglang else {}
    config = load_config(None, {"model_path": "another", "rollout": rollout, **(keys or {})})
    known = with_dtype(config, device == "cpu", PretrainedConfig())
    return server_arguments(known, 64, device, "info")


ON_A_CPU, TORCHS = {"device": "cpu"}, {"attention_backend": "torch_native"}
EXPERTS, OVERLAP = "enable_return_routed_experts", "disable_overlap_schedule"


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, {"attention_backend": None, "cuda_graph_max_bs": 1024, "enable_memory_saver": False}),
        ({"dtype": "float32"}, {"attention_backend": "triton"}),
        ({"capability": 8}, {"attention_backend": "triton"}),
        ({"max_num_seqs": 50}, {"cuda_graph_max_bs": 50 + 32, OVERLAP: False}),
        ({"gigabytes": 24, "gpu_memory_utilization": 0.9}, {"cuda_graph_max_bs": 307}),
        ({"cudagraph_capture_sizes": [1, 8]}, {"cuda_graph_bs": [1, 8]}),
        (
            {"free_cache_engine": True},
            {"enable_memory_saver": True, "enable_weights_cpu_backup": True},
        ),
        ({"free_cache_engine": True, **ON_A_CPU}, {"enable_memory_saver": False}),
        ({"tensor_model_parallel_size": 2, "expert_parallel_size": 2}, {"ep_size": 2}),
        ({"sglang": {"attention_backend": "triton"}}, {"attention_backend": "triton"}),
        (
            {"sglang": {"attention_backend": None}, **ON_A_CPU},
            {"attention_backend": "torch_native"},
        ),
        ({"sglang": {"enable_torch_compile": True}}, {"enable_torch_compile": True}),
        (ON_A_CPU, TORCHS | {OVERLAP: True}),
        ({"sglang": {OVERLAP: True}}, {OVERLAP: True}),
        ({"sglang": {OVERLAP: False}, **ON_A_CPU}, {OVERLAP: False}),
        ({"sglang": {EXPERTS: True}}, {OVERLAP: True}),
    ],
    ids=str,
)
def test_server_arguments_of_a_device(monkeypatch, how, expected):
    assert arguments_of(monkeypatch, **how).items() >= expected.items()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (
            {"sglang": {"attention_backend": "fa3"}, "dtype": "float32"},
            "attention_backend: fa3 computes in half precision",
        ),
        ({"sglang": {EXPERTS: True, OVERLAP: False}}, f"engine_kwargs.sglang.{OVERLAP}: "),
        ({"sglang": {"enable_torch_compile": True}, **ON_A_CPU}, "enable_torch_compile: "),
        ({"keys": {"pack_weights": False}}, "^pack_weights: "),
        ({"keys": {"compiled_kernels": False}}, "^compiled_kernels: "),
    ],
    ids=str,
)
def test_argument_that_its_device_cannot_have_is_refused(monkeypatch, how, says):
    with pytest.raises(ConfigError, match=says):
        arguments_of(monkeypatch, **how)


@needs_headers
@pytest.mark.slow
def test_triton_kernels_compile_for_a_gpu_and_fit_and_do_not_round_float32(facts):
    kernels = facts["kernels"]
    assert {kernel["kernel"] for kernel in kernels} == {
        "_fwd_kernel",
        "_fwd_grouped_kernel_stage1",
        "_fwd_kernel_stage2",
        "fused_moe_kernel",
    }
    assert not any(kernel["float16"] or kernel["tf32"] for kernel in kernels)
    for capability, most in SHARED_MEMORY.items():
        needed = [each["shared"] for each in kernels if each["capability"] == capability]
        assert 0 < max(needed) <= most, capability


PREPARED = """
import importlib.util, os, shutil, subprocess, sys
from _inf.backends.verl.environment import prepare

def ends() -> int:
    return subprocess.run(["/bin/true"], env={**os.environ, "LD_PRELOAD": hook}).returncode

[nvidia] = {path for path in importlib.util.find_spec("nvidia").submodule_search_locations}
hook = os.path.join(os.path.dirname(nvidia), "torch_memory_saver_hook_mode_preload.abi3.so")
before = ends()
prepare("cuda")
from triton.backends.nvidia.driver import libcuda_dirs
[folder] = libcuda_dirs()
subprocess.run(["cc", "-shared", "-o", "/dev/null", "-L", folder, "-lcuda"], check=True)
print(before, ends(), folder, shutil.which("ninja"))
"""


@needs_headers
@pytest.mark.parametrize("own", [False, True], ids=["no ninja on PATH", "one on PATH"])
def test_engine_finds_the_libraries_of_cuda_and_ninja(tmp_path, own):
    """The memory saver is preloaded, and needs libcudart, which pip brought; Triton links -lcuda,
    and some machines have only libcuda.so.1; with a toolkit tvm-ffi calls ninja by its name."""
    tools, beside = tmp_path / "tools", Path(sysconfig.get_path("scripts"), "ninja")
    tools.mkdir()
    for name in ("gcc", "cc", "as", "ld"):
        (tools / name).symlink_to(shutil.which(name) or "/nowhere")
    if own:
        shutil.copy(beside, tools)
    variables = {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = python("-c", PREPARED, LD_LIBRARY_PATH=driver(tmp_path), **variables)
    place = str(tmp_path).strip("/").replace("/", "-")  # of the driver: others may have another
    linked = tmp_path / "cache" / "inf" / "libcuda" / place
    ninja = tools / "ninja" if own else beside
    assert done.stdout.split() == ["127", "0", str(linked), str(ninja)], done.stderr


@needs_headers
def test_missing_compiler_and_headers_are_named_before_a_start(tmp_path, monkeypatch):
    cuda.check_tools()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ConfigError, match="gcc"):
        cuda.check_tools()
    monkeypatch.undo()
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path}/Python.h") + ".*python3-dev"):
        cuda.check_tools()


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_allocator_beside_which_memory_cannot_be_given_back_is_refused(monkeypatch, name):
    monkeypatch.setenv(name, "max_split_size_mb:64, expandable_segments: True")
    config = load_config({"rollout": {"free_cache_engine": True}}, {})
    with pytest.raises(ConfigError, match=f"free_cache_engine: {name} .* expandable_segments"):
        server_arguments(config, 64, "cuda", "info")


def test_cause_is_read_in_the_last_traceback_only():
    warned = "Failed to load JIT KV-Cache kernel: [Errno 2] No such file or directory: 'nvcc'\n"
    traceback = "Traceback (most recent call last)\n"
    assert cuda.cause(warned) == cuda.cause(f"{warned}{traceback}ValueError") == ""
    assert "toolkit" in cuda.cause(f"{traceback}{warned}")
    assert "gpu_memory_utilization" in cuda.cause(f"{traceback}CUDA out of memory. Tried")
