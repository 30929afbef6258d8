"""The totals of a server in Prometheus's text form: its own and its engine's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, Metric
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from _inf.apps.serve.error_responses import ABANDONED, error_of, headers_of
from _inf.errors import InferenceError

if TYPE_CHECKING:
    from inf import InferenceEngine

# Our name, the engine's, and what it counts.
ENGINE_TOTALS = (
    ("inf_rows", "requests", "Answers that were finished"),
    ("inf_prompt_tokens", "prompt_tokens", "Tokens of prompts"),
    ("inf_completion_tokens", "completion_tokens", "Tokens that were generated"),
    ("inf_cached_tokens", "cached_tokens", "Tokens of prompts found in the prefix cache"),
    ("inf_restarts", "restarts", "Restarts of the engine"),
)


class Metrics:
    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "inf_http_requests",
            "Requests by route and status",
            ("route", "status"),
            registry=self.registry,
        )
        self.running = Gauge(
            "inf_http_requests_running",
            "Requests that are being answered or are waiting",
            registry=self.registry,
        )
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the engine's totals; called for each scrape."""
        totals = self._engine.stats()
        for name, key, text in ENGINE_TOTALS:
            yield CounterMetricFamily(name, text, value=totals[key])


class WatchRequests:
    """ASGI middleware that counts requests by route and status, and answers their exceptions. A
    handler of the application for those of bugs would raise them again, and uvicorn would log
    their messages (starlette 1.10, `errors.py`), which may have a prompt."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status: int | None = None

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            with self._metrics.running.track_inprogress():
                await self._app(scope, receive, noted)
        except Exception as failure:
            code, body = error_of(failure, scope["path"])
            if status is not None:  # the server closes the connection
                raise InferenceError("A response was cut off.") from None
            await JSONResponse(body, code, headers_of(failure, code))(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(route, str(status or ABANDONED)).inc()
