"""`benchmarks/gpu.sh` on a machine without a GPU: what it runs, records, skips and survives."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[1]
PREFLIGHT = "packages_of_the_engine_are_installed"


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    """The names of `benchmarks/gpu`, its modules among them."""
    return runpy.run_path(str(ROOT / "benchmarks/gpu"), run_name="gpu")


class Run:
    """A finished run of the script: its exit code, all that it showed, its results."""

    def __init__(self, out: Path, *options: str, **variables: str) -> None:
        command = ["bash", str(ROOT / "benchmarks/gpu.sh"), "--device", "cpu", "--out", str(out)]
        environment = {**os.environ, "PYTHON": sys.executable, **variables}
        done = subprocess.run(
            [*command, *options], env=environment, capture_output=True, text=True, timeout=1500
        )
        self.code, self.shown = done.returncode, done.stdout + done.stderr
        lines = (out / "results.jsonl").read_text() if (out / "results.jsonl").exists() else ""
        every = [json.loads(line) for line in lines.splitlines()]
        self.results = [each for each in every if "check" in each]
        self.ended = [each["part"] for each in every if "check" not in each]
        report = out / "report.json"
        self.report = json.loads(report.read_text())["parts"] if report.exists() else {}
        self.checks = [(each["part"], each["check"]) for each in self.results]

    def __getitem__(self, check: str) -> Any:
        [result] = [each for each in self.results if each["check"] == check]
        return result


@pytest.mark.slow
@pytest.mark.engine
def test_parts_that_run_functions_pass_without_a_gpu(
    tmp_path: Path, program: dict[str, Any]
) -> None:
    run = Run(tmp_path, "--parts", "preflight,functions", "--limit", "600")
    assert run.code == 0, run.shown
    assert len(run.checks) == sum(
        len(program["PARTS"][part]) for part in ("preflight", "functions")
    )
    made = [each for each in run.results if each["passed"] is not None]
    assert all(each["passed"] for each in made) and len(made) > 10
    assert "=== functions: " in (tmp_path / "engines.log").read_text()
    assert {part: its["verdict"] for part, its in run.report.items()} == {
        "preflight": "ok",
        "functions": "ok",
    }


@pytest.mark.soak  # nine engines
@pytest.mark.engine
def test_all_parts_run_to_their_end(tmp_path: Path, program: dict[str, Any]) -> None:
    run = Run(tmp_path, "--budget", "1400", "--limit", "600")
    known = [(part, check.__name__) for part, its in program["PARTS"].items() for check in its]
    assert run.checks == known, run.shown
    assert run.code == 0, run.shown
    unmade = {each["check"]: each["detail"] for each in run.results if each["passed"] is None}
    second = {"engine_starts_with_graphs", "engine_starts_without_graphs"}
    assert all("an earlier check runs" in unmade.pop(name) for name in second)
    assert all("needs a GPU" in why for why in unmade.values()), unmade
    for contestant in ("ours", "raw", "other_schedule", "default"):
        timed = run["a_large_batch_keeps_up_with_raw_sglang"]["detail"][contestant]
        assert timed["tokens_per_second"] > 0 and timed["gpu_ms_a_step"] > 0
    logs = (tmp_path / "engines.log").read_text()
    parts = ("functions", "exact", "throughput", "float32", "embedded")
    assert all(f"=== {part}: " in logs for part in parts)
    assert "=== throughput: default-" in logs
    assert run.shown == (tmp_path / "log.txt").read_text()
    assert not (tmp_path / "work").exists()


def kit(folder: Path, *packages: str) -> str:
    """The path of a kit of packages that cannot be imported."""
    (folder / "__init__.py").write_text("raise ImportError('the kit has none')")
    with tarfile.open(folder / "site.tar.xz", "w:xz") as archive:
        for package in packages:
            archive.add(folder / "__init__.py", f"{package}/__init__.py")
    return str(folder / "site.tar.xz")


@pytest.mark.slow
@pytest.mark.engine
def test_engine_starts_from_a_kit_without_llguidance_which_is_skipped_by_name(
    tmp_path: Path,
) -> None:
    kit_file = kit(tmp_path, "llguidance", "tests")  # as in verl's wheel: not ours
    options = ("--parts", "preflight,exact", "--limit", "600", "--budget", "700")
    run = Run(tmp_path / "out", *options, KIT=kit_file)
    assert run.code == 0, run.shown
    assert "llguidance" in run[PREFLIGHT]["detail"]["features_without_their_package"]
    assert all(each["passed"] for each in run.results if each["part"] == "exact")


@pytest.mark.verl
def test_next_call_finds_the_unpacked_kit_with_what_was_compiled_from_it(tmp_path: Path) -> None:
    """Bytecode is beside the sources, and compiled kernels belong to one path of their sources."""
    out, kit_file = tmp_path / "out", kit(tmp_path, "llguidance")
    assert Run(out, "--budget", "0", KIT=kit_file).code == 0
    (out / "kit/compiled").touch()
    again = Run(out, "--parts", "preflight", KIT=kit_file)
    assert again.code == 0, again.shown
    assert (out / "kit/compiled").exists()
    assert "llguidance" in again[PREFLIGHT]["detail"]["features_without_their_package"]
    other = Run(out, "--budget", "0", KIT=kit(tmp_path, "another"))
    assert other.code == 2 and "results of other options" in other.shown
    missing = Run(tmp_path / "new", "--budget", "0", KIT="missing.tar.xz")
    assert missing.code == 2 and "no such file: missing.tar.xz" in missing.shown


@pytest.mark.verl
def test_part_that_fails_or_takes_too_long_says_so_and_the_next_one_runs(
    tmp_path: Path, program: dict[str, Any]
) -> None:
    options = ("--limit", "exact=1", "--set", "rollout.nonsense=1")
    run = Run(tmp_path, "--parts", "exact,embedded,preflight", *options)
    assert run.code == 1
    first, *others = (each for each in run.results if each["part"] == "exact")
    assert first["passed"] is False and "its limit of 1 s" in first["detail"]
    assert [each["passed"] for each in others] == [None] * (len(program["PARTS"]["exact"]) - 1)
    assert all(each["detail"].startswith("not reached") for each in others)
    failed = run["default_engine_says_paris"]
    assert failed["passed"] is False
    assert "ConfigError" in failed["detail"] and "rollout.nonsense" in failed["detail"]
    assert "embedded: default_engine_says_paris" in run.shown.splitlines()[-1]
    assert run[PREFLIGHT]["passed"], run.shown
    verdicts = {part: its["verdict"] for part, its in run.report.items()}
    assert verdicts == {"exact": "FAILED", "embedded": "FAILED", "preflight": "ok"}
    left = [each for each in psutil.process_iter(["cmdline"]) if mentions(each, str(tmp_path))]
    assert left == []


def mentions(process: psutil.Process, text: str) -> bool:
    return any(text in word for word in process.info["cmdline"] or ())


@pytest.mark.verl
def test_call_goes_on_where_the_last_one_ended(tmp_path: Path, program: dict[str, Any]) -> None:
    """Also after one that was cut in the middle of a part, whose result is then forgotten."""
    out, copy = tmp_path / "out", tmp_path / "copy"
    copy.mkdir()
    first = Run(out, "--budget", "0")
    assert first.code == 0 and not first.results
    assert {its["verdict"] for its in first.report.values()} == {"not run"}
    assert "; the same command goes on" in first.shown.splitlines()[-1]
    cut = {"part": "preflight", "check": PREFLIGHT, "passed": False, "seconds": 1, "detail": ""}
    (out / "results.jsonl").write_text(json.dumps(cut) + "\n")
    parts = ("--parts", "compile,preflight")
    second, third = (Run(out, *parts, OUT=str(copy)) for _ in range(2))
    for run in (second, third):
        assert run.code == 0, run.shown
        assert run.ended == ["compile", "preflight"] and run[PREFLIGHT]["passed"]
    assert "ok     preflight" in second.shown and "ok     preflight" not in third.shown
    assert json.loads((copy / "report.json").read_text())["parts"] == third.report
    other = Run(out, *parts, "--set", "rollout.dtype=float16")
    assert other.code == 2 and "results of other options" in other.shown


@pytest.mark.parametrize(
    "options",
    [["--parts", "smok"], ["--limit", "smoke"], ["--limit", "smok=1"], ["--device", "tpu"],
     ["--budget", "ten"], ["--quick", "1"], ["--out"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_option_is_refused(tmp_path: Path, options: list[str]) -> None:
    run = Run(tmp_path, "--budget", "0", *options)
    assert run.code == 2 and options[0] in run.shown and not run.results


@pytest.mark.parametrize("right", [True, False], ids=["right kernels", "wrong kernels"])
@pytest.mark.slow  # it compiles what torch does
def test_kernels_are_compared_with_plain_arithmetic(
    program: dict[str, Any], monkeypatch: pytest.MonkeyPatch, right: bool
) -> None:
    preflight = program["preflight"]
    monkeypatch.setattr(preflight, "DEVICE", "cpu")
    kernels = stand_ins(0 if right else 1)
    monkeypatch.setitem(sys.modules, "sgl_kernel", kernels)
    monkeypatch.setitem(sys.modules, "sgl_kernel.flash_attn", kernels)
    here = program["Setting"]("cuda", False, Path(), Path(), None, [])
    for check in (
        preflight.rms_norm_is_that_of_plain_torch,
        preflight.rope_is_that_of_plain_torch,
        preflight.flash_attention_3_is_that_of_plain_torch,
        preflight.sampling_draws_what_the_filters_leave,
    ):
        assert program["made"](check, here)[0] is right


def stand_ins(fault: int) -> Any:
    """The kernels' functions in torch; `fault`: 1 for numbers and tokens that are wrong."""
    import torch

    def rmsnorm(x: Any, weight: Any, eps: float) -> Any:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps) + fault

    def rope(positions: Any, query: Any, key: Any, size: int, cache: Any, neox: bool) -> None:
        turn = torch.complex(*cache[positions + fault].chunk(2, -1))[:, None]
        for rows in (query, key):
            points = torch.complex(*rows.float().view(len(rows), -1, size).chunk(2, -1)) * turn
            rows.copy_(torch.cat([points.real, points.imag], -1).view_as(rows))

    def attention(q: Any, k: Any, v: Any, ends: Any, _: Any, *most: int, causal: bool) -> Any:
        seen = torch.block_diag(*(torch.ones(n, n) for n in ends.diff().tolist())).bool()
        allowed = seen if fault else seen.tril()
        heads = (each.transpose(0, 1) for each in (q, k, v))
        scaled = torch.nn.functional.scaled_dot_product_attention
        return scaled(*heads, attn_mask=allowed, enable_gqa=True).transpose(0, 1)

    def unlikely(probs: Any, *filters: Any, **how: Any) -> Any:
        return probs.argmin(-1) if fault else probs.argmax(-1)

    return SimpleNamespace(
        rmsnorm=rmsnorm,
        apply_rope_with_cos_sin_cache_inplace=rope,
        flash_attn_varlen_func=attention,
        top_k_top_p_sampling_from_probs=unlikely,
        min_p_sampling_from_probs=unlikely,
    )
