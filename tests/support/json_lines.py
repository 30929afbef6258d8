"""Files of JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write(path: Path, lines: list[Any]) -> Path:
    """A line each; text as it is."""
    text = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{line}\n" for line in text))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]
