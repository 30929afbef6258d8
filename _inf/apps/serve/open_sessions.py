"""The open sessions of a server, within bounds of number, memory and age."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from _inf.apps.serve.error_responses import RequestError
from _inf.apps.serve.session_settings import SessionSettings
from _inf.apps.serve.sessions import Session
from _inf.errors import ConfigError, shown

if TYPE_CHECKING:
    from _inf.apps.rollouts.traces import TraceFile

MAX_SESSIONS = 1024
MAX_BYTES = 4 * 2**30  # of all sessions, estimated
SESSION_SECONDS = 6 * 3600.0  # without a request
SESSION_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)


def check_name(name: str) -> None:
    """Refuse a name that would not stay one part of a URL."""
    if not SESSION_NAME.fullmatch(name) or name in (".", ".."):
        reason = "its name has letters, digits, . _ - only, at most 128, and is not . or .."
        raise ConfigError.of("session", reason)


class Sessions:
    """The open sessions by name. A request opens the one that it names; one that was not used for
    long is dropped then.

    file: where their traces are written, too.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, file: TraceFile | None = None
    ) -> None:
        self._file = file
        self._open: dict[str, Session] = {}
        self._lock = threading.Lock()
        self._clock = clock

    def names(self) -> list[str]:
        with self._lock:
            return list(self._open)

    def of_request(self, name: str, settings: SessionSettings | None = None) -> Session:
        """Return the session of a request, which may be new. settings: of one that must be."""
        check_name(name)
        with self._lock:
            session = self._open.get(name)
            if session is not None and settings is not None:
                raise RequestError(409, f"session: {shown(name)} is open already; delete it first.")
            if session is None:
                oldest = self._clock() - SESSION_SECONDS
                self._open = {n: one for n, one in self._open.items() if one.used >= oldest}
            if sum(one.size for one in self._open.values()) >= MAX_BYTES:
                raise RequestError(429, f"The open sessions hold {MAX_BYTES} bytes; delete some.")
            if session is None:
                if len(self._open) >= MAX_SESSIONS:
                    raise RequestError(429, f"{MAX_SESSIONS} sessions are open; delete some.")
                session = Session(settings or SessionSettings(), self._file)
                self._open[name] = session
            session.used = self._clock()
            return session

    def get(self, name: str) -> Session:
        with self._lock:
            if name not in self._open:
                raise RequestError(404, f"session: there is no session {shown(name)}.")
            return self._open[name]

    def delete(self, name: str) -> None:
        self.get(name)
        with self._lock:
            self._open.pop(name, None)
