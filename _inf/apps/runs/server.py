"""Serves a run's page on loopback: `inf show FOLDER --serve`. The text of a row is read when the
page asks for it; the files are read again when the page is opened and they changed."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import fastapi
import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse

from _inf.apps.json_lines import json_text
from _inf.apps.runs.files import files_of_run
from _inf.apps.runs.index import read_row
from _inf.apps.runs.page import rows_of_page, run_page
from _inf.apps.runs.run import Run
from _inf.errors import ConfigError

HOST = "127.0.0.1"
MOST_ROWS = 200  # of one request
_State: TypeAlias = list[tuple[Path, int, int]]  # files, their sizes and times


class ServedRun:
    """A run as its files were when it was last read.

    number: of the reading, from 0; a page of another reading has other numbers of rows.
    """

    def __init__(self, paths: Sequence[Path], load: Callable[[], Run]) -> None:
        self._paths, self._load, self._lock = paths, load, threading.Lock()
        self.number = -1
        self._read(self._state_of_files())

    def read_if_changed(self) -> None:
        """Read the files again if they changed, or there are others."""
        with self._lock:
            if (state := self._state_of_files()) != self._state:
                self._read(state)

    def _read(self, state: _State) -> None:
        run = self._load()
        self.page = run_page(run, served=self.number + 1)
        self.run, self.number, self._state = run, self.number + 1, state

    def _state_of_files(self) -> _State:
        stats = [(file, file.stat()) for file in files_of_run(self._paths, [])]
        return [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]


def create_app(served: ServedRun) -> fastapi.FastAPI:
    """Return the page's application: `/`, `/rows?at=1,2&reading=0`, `/search?text=&reading=0`."""
    app = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # Another name for this address would let a page from elsewhere read the run (DNS rebinding).
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])

    @app.exception_handler(ConfigError)
    def changed(request: fastapi.Request, failure: ConfigError) -> PlainTextResponse:
        return PlainTextResponse(str(failure), 409)

    @app.get("/")
    def whole() -> HTMLResponse:
        served.read_if_changed()
        return HTMLResponse(served.page)

    @app.get("/rows")
    def rows(at: str, reading: int) -> fastapi.Response:
        run = _run_of(served, reading)
        places = [int(place) for place in at.split(",") if place.isdecimal() and len(place) < 12]
        places = [place for place in places if place < len(run)][:MOST_ROWS]
        found = rows_of_page(run, places)
        return fastapi.Response(json_text(found), media_type="application/json")

    @app.get("/search")
    def search(text: str, reading: int) -> JSONResponse:
        return JSONResponse(list(_found(_run_of(served, reading), text)))

    return app


def serve(served: ServedRun, port: int, tell: Callable[[str], None]) -> None:
    """Serve the page until a signal ends it. port: 0 takes a free one; tell: gets the address."""
    config = uvicorn.Config(create_app(served), log_level="warning", access_log=False)
    try:
        listening = socket.create_server((HOST, port))
    except OSError as failure:
        raise ConfigError.of("--port", f"cannot listen at {HOST}:{port}: {failure}.") from None
    with listening:
        tell(f"http://{HOST}:{listening.getsockname()[1]}")
        uvicorn.Server(config).run([listening])


def _run_of(served: ServedRun, reading: int) -> Run:
    if reading != served.number:
        raise ConfigError("The run's files were read again since this page: reload it.")
    return served.run


def _found(run: Run, text: str) -> Iterator[int]:
    """Yield the numbers of the rows with `text` in the prompt or the answer, in any case of its
    letters from A to Z."""
    wanted = _lower(text)
    in_json = [_lower(json.dumps(text, ensure_ascii=ascii)[1:-1]) for ascii in (True, False)]
    contents: dict[Path, bytes] = {}
    for number, place in enumerate(run.index.places):
        if place.line and place.file not in contents:
            contents = {place.file: place.file.read_bytes()}
        line = place.line and contents[place.file][place.offset : place.offset + place.size]
        if not line or any(form in line.lower() for form in in_json):
            prompt, answer, _ = read_row(run.rows[number])
            if wanted in _lower(f"{prompt}\n{answer}"):
                yield number


def _lower(text: str) -> bytes:
    return text.encode("utf-8", "replace").lower()
