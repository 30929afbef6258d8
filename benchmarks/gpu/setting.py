"""What the checks of a part share: where they run, the model, and an engine."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results import Skip

if TYPE_CHECKING:
    from throughput import Race

    from inf import InferenceEngine

ROOT = Path(__file__).parents[2]
LOG_LINES = 30
IDLE_SECONDS = 20.0
START = 300  # seconds: longer than a first call takes, at which an engine may compile kernels
GREEDY: dict[str, Any] = {
    "temperature": 0,
    "max_tokens": 16,
    "ignore_eos": True,
    "progress": False,
    "timeout": START,
}
PROMPTS = [
    "What is the capital of France?",
    "Count to ten.",
    "Write a line about rain.",
    "If she buys 12 apples and gives away 7, how many are left?",
]
KEYS = [
    f"hang_timeout={START}",
    "rollout.dtype=bfloat16",
    "rollout.prompt_length=512",
    "rollout.response_length=256",
    "rollout.max_model_len=9216",
]
# Two engines may share the GPU, so each KV cache gets a part of its memory; and each CUDA graph
# takes time, so there are few.
KEYS_OF_A_GPU = [
    "rollout.gpu_memory_utilization=0.2",
    "rollout.engine_kwargs.sglang.max_total_tokens=65536",
    "rollout.max_num_seqs=256",
    "rollout.cudagraph_capture_sizes=[1,8,64,256]",
]
# Compiled kernels that the kit leaves out are not chosen.
KEYS_OF_THE_KIT = [
    "rollout.engine_kwargs.sglang.attention_backend=triton",
    "rollout.engine_kwargs.sglang.sampling_backend=pytorch",
]


@dataclasses.dataclass
class Setting:
    """device: cuda or cpu. kit: whether the packages are those of a kit. work: a folder that is
    removed when all parts have ended; out: the folder of the results. gguf: a model's file, or
    None. own: config keys of the caller, as `key=value`. race: of
    `speeds`. server: of `commands`. report: what a check keeps for later ones. undo: what ends with
    the part."""

    device: str
    kit: bool
    work: Path
    out: Path
    gguf: str | None
    own: list[str]
    running: InferenceEngine | None = None
    race: Race | None = None
    server: subprocess.Popen[bytes] | None = None
    report: dict[str, Any] = dataclasses.field(default_factory=dict)
    undo: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)
    first: list[int] = dataclasses.field(default_factory=list)
    why_none: str = "no engine has started"

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def needs_gpu(self, why: str = "") -> None:
        if not self.on_gpu:
            raise Skip(f"needs a GPU{why and ': '}{why}")

    @functools.cached_property
    def model(self) -> Path:
        """The folder of the random model, which the first part that needs it builds: in a process
        of its own, which leaves no memory of the GPU in use."""
        folder, failure = self.work / "model", self.work / "model.failed"
        if failure.exists():
            raise Skip(f"there is no random model: {failure.read_text()}")
        if not folder.exists():
            program = Path(__file__).with_name("model.py")
            command = [sys.executable, str(program), str(folder), self.device]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(done.stderr[-1500:], flush=True)
                failure.write_text(f"{done.stderr.strip()}\n".splitlines()[-1])
                raise RuntimeError(f"no random model: {failure.read_text()}")
        return folder

    def machine_keys(self) -> list[str]:
        """What any engine needs on this machine."""
        return [f"device={self.device}", *(KEYS_OF_THE_KIT if self.kit and self.on_gpu else ())]

    def keys(self, *extra: str) -> list[str]:
        """The config keys of an engine with the random model, over those of config.yaml."""
        gpu = KEYS_OF_A_GPU if self.on_gpu else ["rollout.enforce_eager=true"]
        every = [*self.machine_keys(), f"model_path={self.model}", *KEYS, *gpu]
        return [*every, *(extra if self.on_gpu else without_eager(extra)), *self.own]

    def start(self, *extra: str) -> InferenceEngine:
        from _inf.config import parse_assignments
        from inf import InferenceEngine

        overrides = parse_assignments(self.keys(*extra))
        with contextlib.ExitStack() as undo:
            engine = undo.enter_context(InferenceEngine(str(ROOT / "config.yaml"), **overrides))
            self.first = answer(engine)
            undo.pop_all()
        self.running = engine
        return engine

    def engine(self) -> Any:
        """The `InferenceEngine` of this part, if one has started; its rows have ids and log probs,
        which their types say may be None."""
        if self.running is None:
            raise Skip(self.why_none)
        return self.running

    def recover(self) -> None:
        """After a check that failed: start the engine anew unless it answers as at first."""
        if self.running is None or not self.first:
            return
        with contextlib.suppress(Exception):
            if answer(self.running) == self.first:
                return
        try:
            self.running.restart()
        except Exception as failure:
            self.running = None
            self.why_none = f"the engine does not start again: {failure}"

    def end_of_log(self) -> str:
        if self.running is None or self.running.rollout is None:
            return ""
        with contextlib.suppress(OSError):
            lines = self.running.rollout.host.log.read_text(errors="replace").splitlines()
            return "\n".join(["The end of the engine's log:", *lines[-LOG_LINES:]])
        return ""

    def close(self) -> None:
        if self.running is not None:
            self.running.shutdown()
        self.undo.close()


def without_eager(keys: tuple[str, ...]) -> list[str]:
    """There are no CUDA graphs to switch on without a GPU."""
    return [key for key in keys if not key.startswith("rollout.enforce_eager=")]


def answer(engine: InferenceEngine, prompt: str = PROMPTS[0]) -> list[int]:
    """The greedy answer of a row alone, which is the same each time: rows of one call may be
    computed in other batches the next time, and bfloat16 then rounds otherwise."""
    ids = engine.generate(prompt, **GREEDY).token_ids[0]
    assert ids is not None
    return ids


def answers(engine: InferenceEngine) -> list[list[int]]:
    return [answer(engine, prompt) for prompt in PROMPTS]


def free_gpu_bytes() -> int:
    """Memory of the whole GPU that no process uses; 0 without one."""
    import torch

    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else 0


def goes_idle(engine: Any) -> bool:
    """Whether no request is in flight soon."""
    end = time.monotonic() + IDLE_SECONDS
    while (
        busy := engine.rollout._engine.tokenizer_manager.rid_to_state
    ) and time.monotonic() < end:
        time.sleep(0.02)
    return not busy


def absent(package: str) -> bool:
    """Whether the kit has only the stand-in for a package (benchmarks/gpu.sh writes it)."""
    return bool(getattr(importlib.import_module(package), "ABSENT", False))
