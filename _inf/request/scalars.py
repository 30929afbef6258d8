"""Integers and strings of a JSON schema, as xgrammar enforces them.

In: the keywords of a schema of that one type and its path, which begins every error. Out: schemas
for xgrammar. It is wrong about ranges (0.1.27, `cpp/json_schema_converter.cc`: 1 passes for
`minimum: 5`, 110 for 115 to 132) and lets raw control characters into strings with a length, so
integers are listed and lengths become patterns.
"""

from __future__ import annotations

import json
import math
from typing import Any

from _inf.errors import ConfigError
from _inf.request.pattern import respell

Node = dict[str, Any]  # a schema as xgrammar gets it

DAY = (
    r"[1-9]\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)"
    r"|02-(0[1-9]|1\d|2[0-8]))"
)
TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
OCTET = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
FORMATS = {
    "date": DAY,
    "time": TIME,
    "date-time": f"{DAY}T{TIME}",
    "ipv4": rf"{OCTET}(\.{OCTET}){{3}}",
    "uuid": "-".join(f"[0-9a-f]{{{size}}}" for size in (8, 4, 4, 4, 12)),
}
CHARACTER = respell(".", "", in_json=True).text
MOST_LISTED = 10_000  # integers of a range, characters of a string


def key_path(path: str, *keys: str | int) -> str:
    return path + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)


def unenforced(path: str, do: str) -> ConfigError:
    return ConfigError(f"{path}: it cannot be enforced; {do}.".replace("?.", "?"))


def integers(words: Node, path: str) -> list[Node]:
    """xgrammar is right about `minimum` 0, 1 and from 10 on, and `maximum` 0 and -1: the rest of
    a range is listed."""
    low = max(
        math.ceil(words["minimum"]) if "minimum" in words else -math.inf,
        math.floor(words["exclusiveMinimum"]) + 1 if "exclusiveMinimum" in words else -math.inf,
    )
    high = min(
        math.floor(words["maximum"]) if "maximum" in words else math.inf,
        math.ceil(words["exclusiveMaximum"]) - 1 if "exclusiveMaximum" in words else math.inf,
    )
    if low > high:
        raise ConfigError(f"{path}: no integer is in its range.")
    nodes: list[Node] = []
    first, last = low, high
    if low == -math.inf and high == math.inf:
        return [{"type": "integer"}]
    if high == math.inf:
        start = low if low == 1 or low >= 10 else 0 if low <= 0 else 10
        nodes, last = [{"type": "integer", "minimum": start}], start - 1
    elif low == -math.inf:
        end = 0 if high >= 0 else -1
        nodes, first = [{"type": "integer", "maximum": end}], end + 1
        if high < -1:
            raise unenforced(f"{path}.maximum", "give a minimum too")
    if last - first >= MOST_LISTED:
        raise unenforced(path, f"a range has at most {MOST_LISTED} integers")
    listed = [*range(int(first), int(last) + 1)]
    return [{"enum": listed}, *nodes] if listed else nodes


def string(words: Node, path: str) -> Node:
    least, most = int(words.get("minLength", 0)), words.get("maxLength", math.inf)
    if least > most:
        raise ConfigError(f"{path}: minLength, {least}, is above maxLength, {most}.")
    if "format" in words and words["format"] not in FORMATS:
        do = f"give a pattern; of the formats there are {', '.join(FORMATS)}"
        raise unenforced(key_path(path, "format"), do)
    if "format" in words and "pattern" in words:
        raise unenforced(key_path(path, "pattern"), "drop the format")
    if "format" in words or "pattern" in words:
        word = "format" if "format" in words else "pattern"
        regex = FORMATS[words[word]] if word == "format" else words[word]
        pattern = respell(regex, key_path(path, word), in_json=True)
        if pattern.shortest < least or pattern.longest > most:
            length = "minLength" if pattern.shortest < least else "maxLength"
            raise unenforced(key_path(path, length), f"say it in the {word}")
        return {"type": "string", "pattern": pattern.text}
    if most == 0:
        return {"enum": [""]}
    if least or most < math.inf:
        if max(least, most if most < math.inf else 0) > MOST_LISTED:
            raise unenforced(path, f"a length is at most {MOST_LISTED}")
        times = f"{{{least},{'' if most == math.inf else int(most)}}}"
        return {"type": "string", "pattern": CHARACTER + times}
    return {"type": "string"}


def spelt(name: str) -> str:
    """A property's name as JSON has it; xgrammar pastes it into a literal of its grammar."""
    inside = json.dumps(name, ensure_ascii=False)[1:-1]
    return inside.replace("\\", "\\\\").replace('"', '\\"')
