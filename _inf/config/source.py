"""Gives `load.py` one form to merge, whichever form the user wrote: a file, a mapping or nothing.

The result is plain, unchecked values with interpolations kept. OmegaConf reads the YAML (`1e3` is a
number, a repeated key is a fault).
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from omegaconf import OmegaConf

from _inf.errors import ConfigError, shown
from _inf.types import JSON

ABSENT: object = object()
# Keys that name a file, which is searched in the working folder, then in the config's.
_NAMED_FILES = (
    "model_path",
    "rollout.multi_turn.tool_config_path",
    "rollout.multi_turn.interaction_config_path",
    "rollout.agent.agent_loop_config_path",
)

Source: TypeAlias = str | os.PathLike[str] | Mapping[str, object] | None


def at(tree: object, path: str) -> Any:
    """Return the value at a dotted path, or `ABSENT`."""
    for key in path.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return ABSENT
        tree = tree[key]
    return tree


def read_source(source: Source) -> JSON:
    """Return the plain values of a source; None has none."""
    if source is None:
        return {}
    if isinstance(source, Mapping):
        return dict(plain(source))
    if not isinstance(source, (str, os.PathLike)):
        raise ConfigError.of("config", f"expected a path, a mapping or None, got {shown(source)}")
    path = Path(source)
    document = _parse(_text_of(path), str(path))
    for name in _NAMED_FILES:
        _look_beside(path, document, name)
        _look_beside(path, document, f"actor_rollout_ref.{name}")  # of a trainer's config
    return document


def embedded_rollout() -> JSON:
    """Return the keys under `rollout` whose defaults are others for the embedded model."""
    text = resources.files("_inf").joinpath("embedded.yaml").read_text(encoding="utf-8")
    return dict(_parse(text, "embedded.yaml")["rollout"])


def plain(value: object) -> Any:
    """Convert mappings, tuples and paths to dicts, lists and text; drop Hydra's `_target_`."""
    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=True)
    if isinstance(value, Mapping):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise ConfigError.of("config", f"a key must be text, not {shown(odd[0])}; quote it")
        if "" in value:
            raise ConfigError.of("config", "a key is empty; give it a name")
        return {key: plain(item) for key, item in value.items() if key != "_target_"}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return os.fsdecode(value) if isinstance(value, os.PathLike) else value


def not_yaml(name: str, error: Exception) -> ConfigError:
    """Turn an error of PyYAML or OmegaConf into a `ConfigError` with its line or key."""
    name = getattr(error, "full_key", None) or name
    mark = getattr(error, "problem_mark", None)
    line = f", line {mark.line + 1}" if mark else ""
    reason = getattr(error, "problem", None) or f"{type(error).__name__}: {first_line(error)}"
    return ConfigError(f"{name}{line}: not valid YAML: {reason}")


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _parse(text: str, name: str) -> JSON:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise ConfigError(f"{name}: empty; a config needs at least one key, such as model_path")
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{name}: expected keys and values at the top")
        document: JSON = plain(OmegaConf.to_container(OmegaConf.load(io.StringIO(text))))
    except ConfigError:
        raise
    except Exception as error:  # PyYAML's constructors may raise anything
        raise not_yaml(name, error) from None
    return document


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        why = "no such config file" if missing else "not a config file that can be read"
        why += f" ({getattr(error, 'strerror', None) or error}; looked for {path.absolute()})"
        if path.suffix not in (".yaml", ".yml"):
            why += f'; if it is a model, use model_path="{path}" (in the shell: --set'
            why += f" model_path={path})"
        raise ConfigError(f"{path}: {why}") from None


def _look_beside(config: Path, document: JSON, name: str) -> None:
    value = at(document, name)
    if not isinstance(value, str) or os.path.exists(value):
        return
    if name == "model_path" and not value.startswith(("./", "../")):
        return  # without the dots it may be a Hub id
    beside = config.parent / value
    if os.path.exists(beside):  # False for a name that is too long, where Path.exists() raises
        section, _, key = name.rpartition(".")
        (at(document, section) if section else document)[key] = str(beside)
