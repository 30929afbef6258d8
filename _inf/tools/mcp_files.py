"""What a tools file says of MCP servers: entries of `type: mcp`, and entries of verl's own form.

verl 0.6.1's form names a JSON file of servers, and `MCPBaseTool` or a subclass
(`tools/utils/tool_registry.py`, `tools/mcp_base_tool.py`; the wheel lacks their `mcp_clients`).
There each call opens a connection and `timeout` has no effect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from _inf.errors import ToolError, shown
from _inf.tools.definition import refused, validated
from _inf.types import JSON

VERLS_CLASS = "verl.tools.mcp_base_tool.MCPBaseTool"
SECRET_CHARACTERS = 6  # a shorter value, such as "1", is part of too many words to be hidden


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Address(_Fields):
    """A program that is started as a server on its stdin and stdout, with variables in addition to
    the few that `mcp` passes on; or the URL of a streamable HTTP server, with headers of each
    request."""

    command: str | None = Field(None, min_length=1)
    args: list[str] = []
    env: dict[str, str] = Field({}, repr=False)
    url: str | None = None
    headers: dict[str, str] = Field({}, repr=False)

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
        """Raise `ToolError` unless it is exactly one program or one URL."""
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


class _Entry(Address):
    type: Literal["mcp"]
    include: list[str] | None = Field(None, min_length=1)
    exclude: list[str] = []
    timeout: float | None = Field(None, gt=0, allow_inf_nan=False)


class _VerlEntry(_Fields):
    class_name: str
    config: JSON
    mcp: JSON


class _VerlConfig(_Fields):
    type: Literal["mcp"]
    timeout: float = Field(30.0, gt=0, allow_inf_nan=False)
    rate_limit: float | None = Field(None, gt=0, allow_inf_nan=False)


class _VerlServers(_Fields):
    mcp_servers_config_path: str
    tool_selected_list: list[str] | dict[str, None] = []  # verl's page writes {} for all


class _VerlAddress(Address):
    auth_token: str | None = Field(None, repr=False)


@dataclass(frozen=True)
class McpEntry:
    """The servers of an entry and which of their tools are used. addresses: each with what is put
    before the names of its tools. include: all but `exclude` if it is empty. chosen: the field that
    has these names. timeout: seconds for a call; None: `tool_timeout`. rate_limit: calls a second.
    """

    addresses: Sequence[tuple[str, Address]]
    include: Sequence[str]
    exclude: Sequence[str]
    chosen: str
    timeout: float | None = None
    rate_limit: float | None = None


def is_mcp(entry: Mapping[str, object]) -> bool:
    """Whether an entry is of this module, in either form."""
    config = entry.get("config")
    return entry.get("type") == "mcp" or (
        isinstance(config, Mapping) and config.get("type") == "mcp"
    )


def mcp_entry(entry: Mapping[str, object], where: str) -> McpEntry:
    """Read an entry whose variables are resolved. Raises `ToolError` with the field at fault."""
    if entry.get("type") != "mcp":
        return _of_verl(entry, where)
    fields = validated(_Entry, entry, where)
    fields.check(where)
    if fields.include is not None and fields.exclude:
        raise ToolError(f"{where}: give include or exclude, not both.")
    chosen = f"{where}.{'exclude' if fields.exclude else 'include'}"
    return McpEntry([("", fields)], fields.include or (), fields.exclude, chosen, fields.timeout)


def _of_verl(entry: Mapping[str, object], where: str) -> McpEntry:
    fields = validated(_VerlEntry, entry, where)
    if fields.class_name != VERLS_CLASS:
        raise ToolError(
            f"{where}.class_name: {shown(fields.class_name)} reads results with code of its own, "
            f"which is not run here; write {VERLS_CLASS}, which gives the server's text."
        )
    config = validated(_VerlConfig, fields.config, f"{where}.config")
    servers = validated(_VerlServers, fields.mcp, f"{where}.mcp")
    file = servers.mcp_servers_config_path
    with refused(f"{where}.mcp.mcp_servers_config_path: {file} cannot be read as JSON"):
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    named = content.get("mcpServers") if isinstance(content, Mapping) else None
    if not isinstance(named, Mapping) or not named:
        raise ToolError(f"{file}: it lists no servers under mcpServers.")
    addresses: list[tuple[str, _VerlAddress]] = []
    for name, each in named.items():
        at = f"{file}: mcpServers.{name}"
        if not isinstance(each, Mapping):
            raise ToolError(f"{at}: {shown(each)} is not a mapping.")
        address = validated(_VerlAddress, each, at)
        address.check(at)
        if address.auth_token is not None:
            address.headers["Authorization"] = f"Bearer {address.auth_token}"
        addresses.append((f"{name}_", address))
    # verl gives fastmcp the servers without a token together; of several it prefixes the tools.
    together = [address for _, address in addresses if address.auth_token is None]
    prefixed = together if len(together) > 1 else []
    addresses = [(name if each in prefixed else "", each) for name, each in addresses]
    chosen = f"{where}.mcp.tool_selected_list"
    include = [*servers.tool_selected_list]
    return McpEntry(addresses, include, (), chosen, config.timeout, config.rate_limit)
