"""The path on a GPU, as far as a machine without one can prove it.

Programs that believe in an H100 import, resolve and compile what a start there does
(`cuda_facts.py`), and the libraries of the wheels are searched for the kernels that it calls. No
kernel runs here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from _inf.backends.verl import cuda
from _inf.backends.verl.server_arguments import server_arguments
from _inf.config import load_config
from _inf.errors import ConfigError
from tests.support.fake_gpu import driver

pytestmark = pytest.mark.verl

ROOT = Path(__file__).parents[2]
SHARED_MEMORY = {90: 232_448, 80: 166_912, 89: 101_376}  # bytes of a block, at most


def in_process_with_gpu(
    folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process that finds `fake_gpu`'s driver and has no variables of engines."""
    kept = {key: os.environ[key] for key in ("HOME", "XDG_CACHE_HOME") if key in os.environ}
    path = driver(folder)
    kept |= {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": path}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**kept, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=600,
    )


# ─── A process that believes in an H100 ───


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    script = "tests.support.cuda_facts"
    done = in_process_with_gpu(tmp_path_factory.mktemp("driver"), "-m", script)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_what_a_start_imports_on_a_gpu_imports_and_every_measured_architecture_has_its_class(
    facts: dict[str, Any],
) -> None:
    """The scheduler, FlashAttention 3, flashinfer, Triton's attention, both tables of patches."""
    assert set(facts["imports"].values()) == {None}, facts["imports"]
    assert "/sm90/" in facts["library"]
    assert facts["deep_gemm"] is False
    assert len(facts["models"]) == 28
    assert set(facts["models"].values()) == {None}, facts["models"]


@pytest.mark.slow
def test_every_function_of_the_patch_tables_takes_upstreams_arguments(
    facts: dict[str, Any],
) -> None:
    assert facts["misfits"] == []


@pytest.mark.slow
def test_norms_and_rotary_embeddings_call_kernels_of_the_wheel_and_float32_norms_none(
    facts: dict[str, Any],
) -> None:
    """They are asked for tensors of a CPU, which a kernel refuses by its name."""
    norms = facts["norms"]
    assert norms["RMSNorm float32"] is norms["GemmaRMSNorm float32"] is None
    assert "'sgl_kernel::rmsnorm'" in norms["RMSNorm bfloat16"]
    assert "'sgl_kernel::gemma_rmsnorm'" in norms["GemmaRMSNorm bfloat16"]
    for size, said in facts["ropes"].items():
        kernel = "rotary_embedding" if size in ("16", "80", "96") else "apply_rope_pos_ids_cos_sin"
        assert f"'sgl_kernel::{kernel}" in said


@pytest.mark.slow
def test_server_arguments_of_a_gpu(facts: dict[str, Any]) -> None:
    args = facts["server_args"]
    backends = {name: each["attention_backend"] for name, each in args.items() if "device" in each}
    triton = {name for name, backend in backends.items() if backend != "fa3"}
    assert triton == {"float32", "the embedded model", "an A100"} and set(backends.values()) == {
        "fa3",
        "triton",
    }
    assert args["fa3 in float32"].startswith("ConfigError: rollout.engine_kwargs.sglang.attention")
    assert args["many rows"]["cuda_graph_bs"][-1] == 1024
    # Beyond its rows, so that SGLang adds a graph for all of them and leaves larger ones out.
    assert 50 < args["few rows"]["cuda_graph_bs"][-1] <= 50 + 32
    assert args["many rows, 24 GiB"]["cuda_graph_bs"][-1] == 1024
    assert args["most of 24 GiB"]["cuda_graph_bs"][-1] == 304
    assert args["own graphs"]["cuda_graph_bs"] == [1, 8]
    assert not args["bfloat16"]["disable_cuda_graph"] and args["eager"]["disable_cuda_graph"]
    another, embedded = args["another model"], args["the embedded model"]
    assert (another["dtype"], another["max_running_requests"]) == ("bfloat16", 1024)
    assert not another["disable_cuda_graph"] and another["cuda_graph_bs"][-1] == 1024
    assert (embedded["dtype"], embedded["max_running_requests"]) == ("float32", 64)
    assert embedded["disable_cuda_graph"]
    asleep, awake = args["to sleep"], args["bfloat16"]
    assert asleep["enable_memory_saver"] and asleep["enable_weights_cpu_backup"]
    assert not awake["enable_memory_saver"] and not awake["enable_weights_cpu_backup"]
    assert awake["sampling_backend"] == "flashinfer"
    assert not any(each["disable_overlap_schedule"] for each in args.values() if "device" in each)


@pytest.mark.slow
def test_triton_kernels_compile_for_a_gpu_and_fit_and_do_not_round_float32(
    facts: dict[str, Any],
) -> None:
    kernels = facts["kernels"]
    ours = [kernel for kernel in kernels if kernel["setting"] == "ieee"]
    assert {kernel["kernel"] for kernel in ours} == {
        "_fwd_kernel",
        "_fwd_grouped_kernel_stage1",
        "_fwd_kernel_stage2",
        "fused_moe_kernel",
    }
    assert not any(kernel["float16"] for kernel in ours)
    assert not any(kernel["tf32"] for kernel in ours)
    for capability, most in SHARED_MEMORY.items():
        needed = [each["shared"] for each in ours if each["capability"] == capability]
        assert 0 < max(needed) <= most, capability
    # What the setting is there for.
    assert any(kernel["tf32"] for kernel in kernels if kernel not in ours)


# ─── What `prepare` leaves in the environment ───


@pytest.mark.skipif(
    importlib.util.find_spec("nvidia.cuda_runtime") is None, reason="torch brought no libcudart"
)
def test_library_of_the_memory_saver_can_be_preloaded(tmp_path: Path) -> None:
    """Without it the engine's process ends with 127 where `free_cache_engine` is true."""
    [site] = {Path(path).parent for path in importlib.util.find_spec("nvidia").submodule_search_locations}  # fmt: skip  # noqa: E501
    hook = site / "torch_memory_saver_hook_mode_preload.abi3.so"
    program = f"""
import os, subprocess
from _inf.backends.verl.environment import prepare
preload = {{"LD_PRELOAD": {str(hook)!r}}}
print(subprocess.run(["/bin/true"], env={{**os.environ, **preload}}, stderr=-3).returncode)
prepare("cuda")
print(subprocess.run(["/bin/true"], env={{**os.environ, **preload}}).returncode)
"""
    done = in_process_with_gpu(tmp_path, "-c", program)
    assert done.stdout.split() == ["127", "0"], done.stderr


def test_triton_finds_a_driver_that_the_linker_finds(tmp_path: Path) -> None:
    """Some machines have only libcuda.so.1, and Triton links -lcuda."""
    program = """
import subprocess
from _inf.backends.verl.environment import prepare
prepare("cuda")
from triton.backends.nvidia.driver import libcuda_dirs
[folder] = libcuda_dirs()
subprocess.run(["cc", "-shared", "-o", "/dev/null", "-L", folder, "-lcuda"], check=True)
print(folder)
"""
    done = in_process_with_gpu(tmp_path, "-c", program, XDG_CACHE_HOME=str(tmp_path / "cache"))
    place = str(tmp_path).strip("/").replace("/", "-")  # of the driver: others may have another
    assert done.stdout.strip() == str(tmp_path / "cache" / "inf" / "libcuda" / place), done.stderr


@pytest.mark.parametrize("own", [False, True], ids=["none on PATH", "one on PATH"])
def test_ninja_is_found_beside_this_python_where_path_has_none(tmp_path: Path, own: bool) -> None:
    """Where there is a toolkit tvm-ffi calls it by its name, and .venv/bin/inf is not on PATH."""
    tools, beside = tmp_path / "tools", Path(sysconfig.get_path("scripts"), "ninja")
    tools.mkdir()
    for name in ("gcc", "cc"):
        (tools / name).symlink_to(shutil.which(name) or "/nowhere")
    if own:
        shutil.copy(beside, tools)
    program = """
import shutil
from _inf.backends.verl.environment import prepare
prepare("cuda")
print(shutil.which("ninja"))
"""
    done = in_process_with_gpu(tmp_path, "-c", program, PATH=str(tools))
    assert done.stdout.strip() == str(tools / "ninja" if own else beside), done.stderr


def test_missing_compiler_and_headers_are_named_before_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_allocator_beside_which_memory_cannot_be_given_back_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "max_split_size_mb:64, expandable_segments: True")
    config = load_config({"rollout": {"free_cache_engine": True}}, {})
    with pytest.raises(ConfigError, match=f"free_cache_engine: {name} .* expandable_segments"):
        server_arguments(config, 64, "cuda", "info")


def test_cause_is_read_in_the_last_traceback_only() -> None:
    warned = "Failed to load JIT KV-Cache kernel: [Errno 2] No such file or directory: 'nvcc'\n"
    traceback = "Traceback (most recent call last)\n"
    assert cuda.cause(warned) == cuda.cause(f"{warned}{traceback}ValueError") == ""
    assert "toolkit" in cuda.cause(f"{traceback}{warned}")
    assert "rollout.dtype" in cuda.cause(f"{traceback}RMSNorm failed to dispatch data type Float\n")
    assert "gpu_memory_utilization" in cuda.cause(f"{traceback}CUDA out of memory. Tried")


# ─── The kernels in the wheels ───

HALVES = ("__nv_bfloat16", "__half")
HALVES_AND_FLOAT = (*HALVES, "float")
COMMON, FLASH = "sm90/common_ops", "flash_ops"
KERNELS = (
    (COMMON, r"flashinfer::norm::RMSNormKernel<8u, {}>", HALVES),
    (COMMON, r"flashinfer::norm::FusedAddRMSNormKernel<8u, {}>", HALVES),
    (COMMON, r"flashinfer::norm::GemmaRMSNorm<{}>", HALVES[:1]),
    (COMMON, r"flashinfer::norm::GemmaFusedAddRMSNorm<{}>", HALVES[:1]),
    (COMMON, r"BatchQKApplyRotaryPosIdsCosSinCacheEnhanced<{}, long>", HALVES_AND_FLOAT),
    (COMMON, r"rotary_embedding_kernel<{}, true>", ("c10::BFloat16", "c10::Half", "float")),
    (COMMON, r"act_and_mul_kernel<{}, &\(float silu", HALVES_AND_FLOAT),
    (COMMON, r"act_and_mul_kernel<{}, &\(float gelu_tanh", HALVES_AND_FLOAT),
    (COMMON, r"act_and_mul_kernel<{}, &\(float gelu<", HALVES_AND_FLOAT),
    (COMMON, r"sampling::TopKTopPSamplingFromProb<{}, int>", ("float",)),
    (COMMON, r"sampling::MinPSamplingFromProb<{}, int>", ("float",)),
    (COMMON, r"sampling::TopKRenormProb<{}, int>", ("float",)),
    (COMMON, r"sampling::TopPRenormProb<{}>", ("float",)),
    (COMMON, r"^{}\(at::Tensor", ("topk_softmax", "moe_align_block_size", "moe_sum")),
    (FLASH, r"run_mha_fwd_<90, cutlass::bfloat16_t, {}", ("64", "96", "128", "256")),
    (FLASH, r"run_mha_fwd_<{}, cutlass::bfloat16_t, 128", ("80", "86")),  # not chosen there
)


def symbols(library: str) -> str:
    [folder] = importlib.util.find_spec("sgl_kernel").submodule_search_locations
    command = ["nm", "-D", "--defined-only", "-C", str(Path(folder, f"{library}.abi3.so"))]
    listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return re.sub(r"^\w+ \w ", "", listing.stdout, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def kernels() -> dict[str, str]:
    if shutil.which("nm") is None:
        pytest.skip("needs nm")
    return {library: symbols(library) for library in {name for name, _, _ in KERNELS}}


@pytest.mark.parametrize(("library", "kernel", "forms"), KERNELS)
def test_wheel_has_the_kernels_that_the_path_calls(
    kernels: dict[str, str], library: str, kernel: str, forms: tuple[str, ...]
) -> None:
    for form in forms:
        pattern = kernel.format(re.escape(form))
        assert re.search(pattern, kernels[library], re.MULTILINE), pattern


@pytest.mark.parametrize("library", ["sm90", "sm100"])  # of an H100, and of all other GPUs
def test_wheel_is_compiled_for_every_gpu_that_is_accepted(library: str) -> None:
    """The probe refuses what is older than 8.0."""
    [package] = importlib.util.find_spec("sgl_kernel").submodule_search_locations
    [triton] = importlib.util.find_spec("triton").submodule_search_locations
    program = Path(triton, "backends/nvidia/bin/cuobjdump")
    command = [program, "--list-elf", Path(package, library, "common_ops.abi3.so")]
    listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    kinds = set(re.findall(r"sm_(\w+)\.cubin", listing.stdout))
    assert {"80", "89", "90"} <= kinds and not any(kind.startswith("7") for kind in kinds)


def test_wheel_lacks_the_norms_that_are_computed_without_a_kernel(kernels: dict[str, str]) -> None:
    """Once it has them, the rows of `gpu_patches` can go."""
    for kernel in ("RMSNormKernel<8u, float>", "GemmaRMSNorm<float>"):
        assert f"norm::{kernel}" not in kernels[COMMON]
