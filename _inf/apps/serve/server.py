"""Runs the server on a thread of its own, for a running engine."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from _inf.apps.openai_requests import read
from _inf.apps.rollouts.traces import Trace, TraceFile
from _inf.apps.serve.access import check_address
from _inf.apps.serve.app import Service, create_app
from _inf.apps.serve.open_sessions import check_name
from _inf.apps.serve.session_settings import SessionBody
from _inf.errors import ConfigError, InferenceError

if TYPE_CHECKING:
    from inf import InferenceEngine

START_SECONDS = 30
FINISH_SECONDS = 20  # for requests that are under way when the server stops


class InferenceServer:
    """A server that `engine.serve()` started; a context manager, which stops it."""

    def __init__(
        self,
        engine: InferenceEngine,
        host: str,
        port: int,
        api_key: str | None = None,
        adapter_folder: str | Path | None = None,
        traces: str | Path | None = None,
    ) -> None:
        check_address(host, port, api_key)
        folder = None if adapter_folder is None else Path(adapter_folder).expanduser()
        if folder is not None and not folder.is_dir():
            raise ConfigError.of("adapter_folder", f"{folder} is not a folder.")
        self._file = None if traces is None else TraceFile(traces)
        self._service = Service(engine, folder, self._file)
        try:
            self._socket = _listen(host, port)
        except BaseException:
            self._close_file()
            raise
        url_host = f"[{host}]" if ":" in host else host
        self._url = f"http://{url_host}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            create_app(self._service, host, api_key),
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=FINISH_SECONDS,
        )
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._uvicorn.run, args=([self._socket],), name="inf-serve", daemon=True
        )
        self._thread.start()
        self._wait_until_started()

    def _wait_until_started(self) -> None:
        end = time.monotonic() + START_SECONDS
        while not self._uvicorn.started:
            if not self._thread.is_alive() or time.monotonic() > end:
                self.stop()
                raise InferenceError("serve: the server did not start.")
            time.sleep(0.01)

    @property
    def base_url(self) -> str:
        """The URL for the `openai` client; it ends in `/v1`."""
        return f"{self._url}/v1"

    def session_url(self, name: str) -> str:
        """The URL for a client whose conversations are recorded in a session; it ends in `/v1`.
        Raises `ConfigError` for a name that no session can have."""
        check_name(name)
        return f"{self._url}/sessions/{name}/v1"

    def session(
        self,
        name: str,
        *,
        task: str | None = None,
        rollout: str | None = None,
        sampling: Mapping[str, object] | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
    ) -> str:
        """Open a new session and return its `session_url`.

        task: a name; rollouts of one task are a group, with one `uid` in `engine.trainer_batch`.
        rollout: a name; the sessions that have it are one rollout, such as an agent's and its
            sub-agents'. By default the session is a rollout of its own.
        sampling: keywords of `generate`, such as `{"temperature": 1.0}`, which replace the ones of
            each request.
        max_turns, max_tokens: the number of answers, and of sampled tokens, after which the session
            refuses requests (400, code `length`); `max_tokens` also cuts the answer that reaches
            it.
        Raises `ConfigError` for wrong values, and `InferenceError` if the session is open already.
        """
        limits = {"max_turns": max_turns, "max_tokens": max_tokens}
        settings = {"task": task, "rollout": rollout, "sampling": sampling, **limits}
        body = read(SessionBody, {"name": name, **settings})
        checked = body.checked(self._service.engine.model.limits.vocabulary)
        self._service.sessions.of_request(name, checked)
        return self.session_url(name)

    def sessions(self) -> list[str]:
        """The names of the open sessions."""
        return self._service.sessions.names()

    def traces(self, name: str) -> list[Trace]:
        """The traces of a session, in the order in which they began."""
        return self._service.sessions.get(name).traces()

    @property
    def running(self) -> bool:
        """Whether it takes requests."""
        return self._thread.is_alive() and not self._uvicorn.should_exit

    def stop(self) -> None:
        """Reject new requests, let running ones finish (after 20 seconds they are aborted), and
        end; safe to call twice."""
        self._uvicorn.should_exit = True
        self._thread.join(2 * FINISH_SECONDS)
        self._service.keeper.stop(FINISH_SECONDS)
        self._socket.close()
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> InferenceServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at the address; port 0 takes a free one. Its connections send
    each event at once; asyncio sets this only for sockets that name their protocol, and without it
    a response waits 40 ms for the client's acknowledgement."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=1024)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        return listening
    except OSError as failure:
        raise ConfigError.of("host", f"cannot listen at {host}, port {port}: {failure}.") from None
