"""The temporary folder of an engine: its log, and the sockets between its processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from _inf.errors import InferenceError

PREFIX = "inf-engine-"
LOG_TAIL_LINES = 15
SOCKET, MAX_SOCKET_BYTES = "tmp12345678", 107  # as upstream names them; Linux, unix(7)


class EngineFolder:
    """Creates the folder, which only its user can read. sockets: whether it will have some, whose
    paths must be short enough for the kernel."""

    def __init__(self, *, sockets: bool) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        excess = len(os.fsencode(self.path / SOCKET)) - MAX_SOCKET_BYTES
        if sockets and excess > 0:
            self.path.rmdir()
            raise InferenceError(
                f"{tempfile.gettempdir()}: the path of the temporary folder is {excess} bytes too "
                "long for the engine's sockets; set TMPDIR to a shorter one."
            )
        self.log = self.path / "engine.log"
        self.log.touch(mode=0o600)

    def read_log(self) -> str:
        """The whole log; "" if it is gone."""
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace")
        return ""

    def end_of_log(self) -> str:
        """The last lines of the log, below a line that names its path."""
        tail = "\n".join(self.read_log().splitlines()[-LOG_TAIL_LINES:])
        return f"The end of its log, {self.log}:\n{tail or '(empty)'}"

    def remove(self, *, keep_log: bool) -> None:
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path != self.log:
                path.unlink(missing_ok=True)
        if not keep_log:
            shutil.rmtree(self.path, ignore_errors=True)
