"""Programs of a caller's own: what they say, and the processes they leave behind.

A program is Python text. It runs in a process and a session of its own and gets, before its first
line, `engine(**rollout)` (a new engine on the tiny model) and `say(name, value)` (one line of JSON
on stdout). `SETTINGS`, of 4,096 tokens, leave room for an answer that takes many seconds: `LONG`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

import inf
from tests.support.installed import ran
from tests.support.tiny import tiny_model

START_SECONDS = 300.0  # for one engine, on a machine that does other things too
GONE_SECONDS = 10.0
HANG_SECONDS = 5.0  # the `mortal` engine's hang_timeout
TINY = {"dtype": "float32", "prompt_length": 512, "response_length": 128}
TINY |= {"do_sample": False, "enforce_eager": True, "max_num_seqs": 64}
SETTINGS = TINY | {"max_model_len": 4096}  # the tiny model's whole context
LONG = {"max_tokens": 3900, "ignore_eos": True}
QUESTION = {
    "prompts": "What is the capital of France?",
    "temperature": 0,
    "max_tokens": 8,
}

# The command `inf`, as a program.
INF = "import sys; from _inf.apps.cli import main; sys.exit(main(sys.argv[1:]))"

_PREAMBLE = """
import json as _json
from inf import InferenceEngine as _InferenceEngine

LONG, QUESTION = {long!r}, {question!r}

def say(name, value=None):
    print(_json.dumps({{name: value}}), flush=True)

def engine(**rollout):
    return _InferenceEngine(model_path={model!r}, rollout={settings!r} | rollout)

"""


def environment(**extra: str) -> dict[str, str]:
    """Ours, in which `import inf` also works where the project is not installed."""
    home = str(Path(inf.__file__).parent)
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH", "")]))
    quiet = {name: value for name, value in os.environ.items() if name != "INF_LOG"}
    return quiet | {"PYTHONPATH": path} | extra


def descendants(process: psutil.Process) -> set[psutil.Process]:
    """Its children and theirs; none where it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return set(process.children(recursive=True))
    return set()


def alive(processes: set[psutil.Process]) -> set[psutil.Process]:
    """Those that run still; one that only waits for init to collect it does not."""
    running = set()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                running.add(process)
    return running


def command_line(process: psutil.Process) -> str:
    """Of a process that may end meanwhile; empty where it has."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def two_ranks(program: str, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run it in `folder` as two processes under torchrun; return what each has written to the file
    `said` and its rank."""
    (folder / "program.py").write_text(program)
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    python_path = environment()["PYTHONPATH"]
    seconds = 2 * START_SECONDS
    ran(*launch, "program.py", *arguments, folder=folder, seconds=seconds, PYTHONPATH=python_path)
    return [json.loads((folder / f"said{rank}").read_text()) for rank in range(2)]


def until(true: Callable[[], Any], seconds: float) -> bool:
    """Whether it became true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as where a shell runs the tests with `&`
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a program would inherit it


class Script:
    """A running program; everything it starts is known by `family`, also after its end."""

    def __init__(
        self,
        text: str,
        folder: Path,
        *,
        stdin: bool = False,
        arguments: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.tmp = Path(tempfile.mkdtemp(prefix="inf-test-", dir="/tmp"))  # short for sockets
        self._spoken = 0
        file = folder / "script.py"
        file.write_text(text)
        self._out, self._err = folder / "stdout", folder / "stderr"
        with open(self._out, "wb") as out, open(self._err, "wb") as err, open(file) as source:
            self._popen = subprocess.Popen(
                [sys.executable, "-" if stdin else str(file), *arguments],
                stdin=source if stdin else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment(TMPDIR=str(self.tmp), **(variables or {})),
                cwd=folder,
                start_new_session=True,
            )
        self.process = psutil.Process(self._popen.pid)
        self.family: set[psutil.Process] = set()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def meet(self) -> set[psutil.Process]:
        """Record who belongs to it now."""
        self.family |= descendants(self.process)
        return self.family

    def hear(self, name: str, seconds: float = START_SECONDS) -> Any:
        """The value it says next under this name."""

        def line() -> str:
            self.meet()
            return "".join(self.out.splitlines()[self._spoken :][:1])

        until(lambda: line() or self._popen.poll() is not None, seconds)
        assert line(), f"it did not say {name!r}:\n{self.out}\n{self.err}"
        heard = json.loads(line())
        assert list(heard) == [name], f"it said {heard}, not {name!r}"
        self._spoken += 1
        return heard[name]

    def send(self, number: signal.Signals) -> None:
        """To this process alone, as `kill` does."""
        self._popen.send_signal(number)

    def send_group(self, number: signal.Signals) -> None:
        """To everybody in its process group, as a terminal does."""
        os.killpg(self.pid, number)

    def exit_code(self, seconds: float = 30.0) -> int:
        """Wait for its end."""
        return self._popen.wait(seconds)

    def end(self) -> None:
        """Kill it and whatever it left, each by its own id."""
        self.meet()
        for process in {self.process, *self.family}:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._popen.wait(10)


@contextlib.contextmanager
def script(text: str, folder: Path, **how: Any) -> Iterator[Script]:
    """`text` behind the preamble, as a process of its own that does not outlive the block."""
    said = {"long": LONG, "question": QUESTION, "settings": SETTINGS}
    before = _PREAMBLE.format(model=str(tiny_model()), **said)
    running = Script(before + text, folder, **how)
    try:
        yield running
    finally:
        running.end()
        shutil.rmtree(running.tmp, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class Ended:
    """A script after its end."""

    exit_code: int
    out: str
    err: str
    family: int
    survivors: list[int]
    temporary: list[str]


def ended(run: Script) -> Ended:
    """Wait for its end, and for that of its children."""
    exit_code = run.exit_code()
    until(lambda: not alive(run.family), GONE_SECONDS)
    survivors = [process.pid for process in alive(run.family)]
    left = sorted(path.name for path in run.tmp.iterdir())
    return Ended(exit_code, run.out, run.err, len(run.family), survivors, left)
