"""Formats of strings that llguidance 0.7.30 does not know."""

from __future__ import annotations

from typing import Any

# RFC 3986 has more: other schemes without a host, addresses of IPv6, users. What is left out, other
# libraries may refuse (`http:a`), or it is rare.
_CHARACTER = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_LABEL = r"(?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME = rf"(?:[A-Za-z0-9]{_LABEL}\.)*[A-Za-z]{_LABEL}"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PORT = r"[1-5]?[0-9]{1,4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_HOST = rf"(?:{_NAME}|{_OCTET}(?:\.{_OCTET}){{3}})(?::(?:{_PORT}))?"
_START = rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOST}|file://|(?:data|mailto|tel|urn):{_CHARACTER}+"
_MORE = rf"(?:{_CHARACTER}|[/?])*"
URI = rf"^(?:{_START})(?:/{_CHARACTER}*)*(?:\?{_MORE})?(?:#{_MORE})?$"
# Formats that every string has. Pydantic writes them for paths, bytes and secrets.
OF_EVERY_STRING = ("binary", "directory-path", "file-path", "password", "path")


def replace_formats(schemas: list[dict[str, Any]]) -> None:
    """Write `uri` as a pattern, and leave out the formats that say nothing."""
    for part in schemas:
        if part.get("format") in OF_EVERY_STRING:
            del part["format"]
        elif part.get("format") == "uri":
            del part["format"]
            if "pattern" in part:
                part["allOf"] = [*part.get("allOf", ()), {"pattern": URI}]
            else:
                part["pattern"] = URI
