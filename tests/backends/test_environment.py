"""What is decided before verl and sglang are imported: pins, device, variables, stubs.

`prepare` changes its process permanently, so each test of it has its own process. A small library
takes the place of NVIDIA's driver.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from _inf.backends.verl import compiled_libraries, environment
from _inf.errors import ConfigError
from tests.support.fake_gpu import ROOT, driver, needs_headers, python

pytestmark = pytest.mark.verl

PREPARE = """
import json, os, sys
from _inf.backends.verl.environment import prepare
device = prepare({device!r})
print(json.dumps({{"device": device, "heavy": "torch" in sys.modules, **os.environ}}))
"""


def prepared(device: str, **variables: str) -> dict[str, str]:
    done = python("-c", PREPARE.format(device=device), **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusal(code: str, **variables: str) -> str:
    done = python("-c", code, **variables)
    assert done.returncode != 0
    return done.stderr.strip().splitlines()[-1]


# Pins

CHECK = "from _inf.backends.verl.environment import check_pins; check_pins()"


def metadata(folder: Path, requires: tuple[str, ...], **installed: str) -> str:
    """A folder of packages: inf-engine with its requirements, and others."""
    versions = {"inf_engine": "0.1.0", **installed}
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {each}" for each in requires if name == "inf_engine"]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
    return str(folder)


def test_every_broken_pin_is_named_with_what_was_found_and_what_to_do(tmp_path):
    pins = "torch==2.9.1", "verl==0.6.1", "nothere==1.0"
    path = metadata(
        tmp_path, tuple(f'{pin}; extra == "verl"' for pin in pins), torch="2.8.0", verl="0.6.1"
    )
    said = refusal(CHECK, path=path)
    assert said.startswith("_inf.errors.ConfigError: ")
    assert "torch is 2.8.0 and must be 2.9.1; nothere 1.0 is not installed; run `bash" in said
    assert python("-c", CHECK, path=path, INF_SKIP_PIN_CHECK="1").returncode == 0
    # A wheel has no install.sh beside the package.
    (tmp_path / "_inf").symlink_to(ROOT / "_inf")
    said = refusal(f"import sys; sys.path.insert(0, {path!r}); {CHECK}", path=path)
    assert "run `pip install torch==2.9.1 nothere==1.0`" in said


def test_only_exact_pins_of_the_extra_verl_are_checked(tmp_path):
    """And the local label of a build breaks none."""
    requires = 'torch==2.8.0; extra == "verl"', 'six<1; extra == "verl"', "nothere==1.0"
    path = metadata(tmp_path, (*requires, 'neither==1.0; extra == "dev"'), torch="2.8.0+cu128")
    assert python("-c", CHECK, path=path).returncode == 0
    assert python("-S", "-c", CHECK).returncode == 0  # a checkout that is not installed


# Stub libraries


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "inf"


def test_compiler_that_is_missing_or_fails_is_a_sentence(cache, monkeypatch):
    monkeypatch.setenv("CC", "false")
    with pytest.raises(ConfigError, match="could not build a stub of libcuda"):
        compiled_libraries.stub(compiled_libraries.CUDA)
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ConfigError, match=r"libcuda\.so\.1.*no C compiler \(cc, gcc or clang\)"):
        compiled_libraries.stub(compiled_libraries.CUDA)


@pytest.mark.engine  # it takes as long as a start
def test_sgl_kernel_imports_with_both_stubs(cache):
    """Every symbol is bound, and nothing else has been loaded in the place of a stub."""
    code = """
import ctypes
from _inf.backends.verl import compiled_libraries
stubs = [compiled_libraries.stub(library) for library in compiled_libraries.LIBRARIES.values()]
for stub in stubs:
    ctypes.CDLL(str(stub), mode=ctypes.RTLD_GLOBAL)
import sgl_kernel
maps = open("/proc/self/maps").read()
print(sgl_kernel.__name__, *(str(stub) in maps for stub in stubs))
"""
    variables = {"LD_BIND_NOW": "1", "XDG_CACHE_HOME": str(cache.parent)}
    done = python("-c", code, **variables)
    assert done.stdout.splitlines()[-1] == "sgl_kernel True True", done.stderr[-2000:]
    assert "no version information" not in done.stderr


# The device and the variables


def test_cpu_gets_the_variables_that_verl_and_sglang_read_and_those_that_are_set_stay():
    environ = prepared("cpu")
    expected = {
        "device": "cpu",
        "SGLANG_USE_CPU_ENGINE": "1",
        "ASCEND_RT_VISIBLE_DEVICES": "0",
        "TORCH_COMPILE_DISABLE": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "heavy": False,
    }
    assert {key: environ[key] for key in expected} == expected
    torchrun = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1"}
    variables = {**torchrun, "TORCH_COMPILE_DISABLE": "0"}
    environ = prepared("cpu", **variables)
    assert {key: environ[key] for key in variables} == variables
    assert environ["ASCEND_RT_VISIBLE_DEVICES"] == "1"
    assert "GLOO_SOCKET_IFNAME" not in environ


def test_preparing_twice_changes_nothing_and_another_device_is_refused():
    code = """
import os
from _inf.backends.verl.environment import prepare
assert prepare("cpu") == "cpu"
before = dict(os.environ)
assert prepare("cpu") == prepare("auto") == "cpu"
assert dict(os.environ) == before
prepare("cuda")
"""
    said = refusal(code)
    assert said.startswith("_inf.errors.ConfigError: device: 'cuda' was asked for")
    assert "already runs on 'cpu'" in said


@needs_headers
def test_auto_takes_the_gpu_that_a_driver_shows_and_cpu_hides_it(tmp_path):
    environ = prepared("auto", LD_LIBRARY_PATH=driver(tmp_path))
    assert environ["device"] == "cuda"
    assert environ["CUDA_VISIBLE_DEVICES"] == "0,1"  # the caller may use the other
    assert environ["LD_LIBRARY_PATH"].split(":")[0] == str(tmp_path)
    assert environ["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
    assert "SGLANG_USE_CPU_ENGINE" not in environ
    environ = prepared("cpu", LD_LIBRARY_PATH=str(tmp_path))
    assert (environ["device"], environ["CUDA_VISIBLE_DEVICES"]) == ("cpu", "")
    assert environ["LD_LIBRARY_PATH"] == str(tmp_path)


@needs_headers
@pytest.mark.parametrize(
    ("visible", "seen"), [("2, 5,7", "5"), ("7", "7"), ("", "1"), ("GPU-8b5f0a42,MIG-1c", "MIG-1c")]
)
def test_process_under_torchrun_sees_only_its_own_gpu(tmp_path, visible, seen):
    ranks = dict(RANK="1", LOCAL_RANK="1", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    variables = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    environ = prepared("cuda", LD_LIBRARY_PATH=driver(tmp_path), **ranks, **variables)
    assert environ["CUDA_VISIBLE_DEVICES"].strip() == seen


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({"init": 100}, "cuInit answered 100"),
        ({"version": 11040}, "is for CUDA 11.4 and torch needs one for 12.0 or newer"),
        ({"count": 0}, "counts no device"),
        ({"capability": 75}, "has compute capability 7.5 and SGLang's kernels are compiled for 8"),
    ],
)
def test_driver_that_cannot_be_used_means_cpu_and_says_why_to_who_asks_for_cuda(
    tmp_path, answers, why
):
    path = driver(tmp_path, **answers)
    done = python("-c", PREPARE.format(device="auto"), LD_LIBRARY_PATH=path)
    assert json.loads(done.stdout)["device"] == "cpu"
    # One that is hidden on purpose is left without a sentence.
    assert ("; the CPU is used." in done.stderr) is ("capability" in answers)
    said = refusal(PREPARE.format(device="cuda"), LD_LIBRARY_PATH=path)
    assert why in said
    assert "use device: cpu" in said


def test_driver_that_crashes_is_a_sentence(tmp_path):
    path = driver(tmp_path, init="*(volatile int *)0")
    said = refusal(PREPARE.format(device="auto"), LD_LIBRARY_PATH=path)
    assert "looking for a GPU ended with exit code -11" in said


def test_compiled_code_is_kept_in_the_private_cache(cache, monkeypatch):
    folders = {"TORCHINDUCTOR_CACHE_DIR": "torchinductor", "CUTE_DSL_CACHE_DIR": "cutlass"}
    for name in folders:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    environment._keep_compiled_code_private()
    for name, folder in folders.items():
        assert os.environ[name] == str(cache / folder)
    assert cache.stat().st_mode & 0o777 == 0o700


def test_installation_on_a_gpu_without_pythons_headers_ends_with_a_sentence(tmp_path):
    code = """
import sysconfig
sysconfig.get_path = lambda name: "/nowhere"
from _inf.backends.verl import environment
environment.install()
"""
    said = refusal(code, LD_LIBRARY_PATH=driver(tmp_path))
    assert "device: on a GPU" in said and "/nowhere/Python.h" in said
