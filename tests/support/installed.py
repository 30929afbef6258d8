"""Programs of tests, and environments of other packages, which are kept below `build/` for the next
run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.pages import ROOT

# An engine on SGLang settles these for this process; a program that is run settles its own.
OWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
OWN += ("ASCEND_RT_VISIBLE_DEVICES", "INF_CHOSEN_MASTER_PORT")
INSTALL_SECONDS = 3600.0  # packages of several GB, where none is cached


def ran(
    *command: object, folder: Path = ROOT, seconds: float = 600.0, says: str = "", **variables: str
) -> str:
    """What a program prints that must end well, on stdout. says: its stdin."""
    inherited = {name: value for name, value in os.environ.items() if name not in OWN}
    done = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env=inherited | variables,
        input=says,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def installed(name: str, seconds: float = INSTALL_SECONDS) -> Path:
    """Return the folder that `tests/NAME/install.sh` has filled; without one,
    `tests/support/environment.sh` does it from `tests/NAME/requirements.txt`."""
    folder, script = ROOT / "build" / name, ROOT / "tests" / name / "install.sh"
    command = ["bash", str(script)]
    if not script.exists():
        shared = ROOT / "tests" / "support" / "environment.sh"
        command = ["bash", str(shared), str(script.with_name("requirements.txt"))]
    environment = os.environ | {"PYTHON": sys.executable}
    subprocess.run([*command, str(folder)], env=environment, check=True, timeout=seconds)
    return folder
