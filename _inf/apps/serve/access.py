"""Who may send requests to the server."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Sequence

from fastapi import Request

from _inf.apps.serve.error_responses import RequestError
from _inf.errors import ConfigError, shown

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
MAX_PORT = 65535


def check_address(host: str, port: int, api_key: str | None) -> None:
    """Refuse a wrong port or key, and another host than this machine's own without a key."""
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= MAX_PORT:
        raise ConfigError.of("port", f"{shown(port)} is not a number from 0 to {MAX_PORT}.")
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key):
        raise ConfigError.of("api_key", "it must be printable ASCII text, and not empty.")
    if api_key is None and not is_loopback(host):
        raise ConfigError.of(
            "host",
            f"{shown(host)} can be reached from other machines, so requests need a key: set "
            "api_key (inf serve: --api-key-env NAME).",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def guard(api_key: str | None, own_names: Sequence[str]) -> Callable[[Request], Awaitable[None]]:
    """Refuse requests without the key. Without a key, refuse those of another site's page: a
    browser sends its POST, if the body is called plain text, without asking first; the header
    `Origin` then says whose page it is."""
    own_page = rf"https?://({'|'.join(map(re.escape, own_names))})(:\d+)?"

    async def check(request: Request) -> None:
        sent, origin = request.headers, request.headers.get("Origin")
        if api_key is not None:
            # Anthropic's clients have a header of their own for it; some send both, one a dummy.
            scheme, _, bearer = sent.get("Authorization", "").partition(" ")
            given = [sent.get("x-api-key", ""), bearer if scheme.lower() == "bearer" else ""]
            if not any([hmac.compare_digest(key.encode(), api_key.encode()) for key in given]):
                raise RequestError(401, "The API key is missing or wrong.", code="invalid_api_key")
        elif origin is not None and not re.fullmatch(own_page, origin):
            raise RequestError(403, f"A page of {shown(origin)} may not send requests.")

    return check
