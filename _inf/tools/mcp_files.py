"""The entry of a tools file for an MCP server: `type: mcp`, and its program or its URL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from _inf.errors import ToolError
from _inf.tools.definition import refused, validated

SECRET_CHARACTERS = 6  # a shorter value, such as "1", is part of too many words to be hidden


class McpEntry(BaseModel):
    """A program that is started as a server on its stdin and stdout, with variables in addition to
    the few that `mcp` passes on; or the URL of a streamable HTTP server, with headers of each
    request. include: all tools but `exclude` if it is empty. timeout: seconds for a call; None:
    `tool_timeout`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["mcp"]
    command: str | None = Field(None, min_length=1)
    args: list[str] = []
    env: dict[str, str] = Field({}, repr=False)
    url: str | None = None
    headers: dict[str, str] = Field({}, repr=False)
    include: list[str] = Field([], min_length=1)
    exclude: list[str] = []
    timeout: float | None = Field(None, gt=0, allow_inf_nan=False)

    @property
    def name(self) -> str:
        """For messages; without a URL's password and query."""
        if self.command is not None:
            return " ".join([Path(self.command).name, *self.args[:1]])
        parts = urlsplit(self.url or "")
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def hidden(self, text: str) -> str:
        """Return `text` without the values of `env` and `headers`, and the URL's query and
        password."""
        values, parts = [*self.env.values(), *self.headers.values()], urlsplit(self.url or "")
        secrets = [*values, parts.query, parts.password or ""]
        secrets += (value.split()[-1] for value in values if value.strip())  # Bearer TOKEN
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "***") if len(secret) >= SECRET_CHARACTERS else text
        return text

    def check(self, where: str) -> None:
        """Raise `ToolError` unless it is one program or one URL, with one choice of tools."""
        if self.include and self.exclude:
            raise ToolError(f"{where}: give include or exclude, not both.")
        if (self.command is None) == (self.url is None):
            raise ToolError(f"{where}: give either command, which starts a server, or its url.")
        of_others = ("headers",) if self.url is None else ("args", "env")
        for field in of_others:
            if field in self.model_fields_set:
                other = "url" if self.url is None else "command"
                raise ToolError(f"{where}.{field}: only a server with {other} takes it.")
        if self.url is not None:
            with refused(f"{where}.url"):
                parts = urlsplit(self.url)
                if parts.scheme not in ("http", "https") or not parts.hostname:
                    raise ValueError("it is not like http://127.0.0.1:8000/mcp")


def mcp_entry(entry: Mapping[str, object], where: str) -> McpEntry:
    """Read an entry whose variables are resolved. Raises `ToolError` with the field at fault."""
    fields = validated(McpEntry, entry, where)
    fields.check(where)
    return fields
