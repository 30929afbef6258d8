"""Serves a run's page on loopback: `inf show FOLDER --serve`. The text of a row is read when the
page asks for it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import fastapi
import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse

from _inf.apps.json_lines import json_text
from _inf.apps.rollouts.page import row_data
from _inf.apps.runs.index import parsed, read_row
from _inf.apps.runs.page import run_page
from _inf.apps.runs.run import Run
from _inf.errors import ConfigError

HOST = "127.0.0.1"
MOST_ROWS = 200  # of one request


def create_app(run: Run) -> fastapi.FastAPI:
    """Return the page's application: `/`, `/rows?at=1,2` and `/search?text=`."""
    app = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # Another name for this address would let a page from elsewhere read the run (DNS rebinding).
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    page = run_page(run, served=True)

    @app.exception_handler(ConfigError)
    def changed(request: fastapi.Request, failure: ConfigError) -> PlainTextResponse:
        return PlainTextResponse(str(failure), 409)

    @app.get("/")
    def whole() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/rows")
    def rows(at: str) -> fastapi.Response:
        places = [int(place) for place in at.split(",") if place.isdecimal() and len(place) < 12]
        places = [place for place in places if place < len(run)][:MOST_ROWS]
        found = {place: row_data(run.rows[place]) for place in places}
        return fastapi.Response(json_text(found), media_type="application/json")

    @app.get("/search")
    def search(text: str) -> JSONResponse:
        return JSONResponse(list(_found(run, text)))

    return app


def serve(run: Run, port: int, tell: Callable[[str], None]) -> None:
    """Serve the page until a signal ends it. port: 0 takes a free one; tell: gets the address."""
    config = uvicorn.Config(create_app(run), log_level="warning", access_log=False)
    try:
        listening = socket.create_server((HOST, port))
    except OSError as failure:
        raise ConfigError.of("--port", f"cannot listen at {HOST}:{port}: {failure}.") from None
    with listening:
        tell(f"http://{HOST}:{listening.getsockname()[1]}")
        uvicorn.Server(config).run([listening])


def _found(run: Run, text: str) -> Iterator[int]:
    """Yield the numbers of the rows with `text` in the prompt or the answer, in any case of its
    letters from A to Z."""
    wanted = _lower(text)
    in_json = [_lower(json.dumps(text, ensure_ascii=ascii)[1:-1]) for ascii in (True, False)]
    contents: dict[Path, bytes] = {}
    for number, place in enumerate(run.index.places):
        if place.file not in contents:
            contents = {place.file: place.file.read_bytes()}
        line = contents[place.file][place.offset : place.offset + place.size]
        if any(form in line.lower() for form in in_json):
            prompt, answer, *_ = read_row(parsed(line, str(place.file)), place)
            if wanted in _lower(f"{prompt}\n{answer}"):
                yield number


def _lower(text: str) -> bytes:
    return text.encode("utf-8", "replace").lower()
