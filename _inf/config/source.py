"""One source of config (a file, a mapping, None) as plain dicts, lists and scalars.

YAML is read by OmegaConf (`1e3` is a number, a key said twice is a fault), interpolations are left
as they are. Knows no key but the few that hold the path of a file.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from _inf.config.faults import Faults, first_line, join, shown
from _inf.errors import ConfigError

MOST_VALUES = 10_000

Source: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | None


def read_source(source: Source, faults: Faults) -> dict[str, Any]:
    """The keys that `source` says, unchecked."""
    if isinstance(source, Mapping):
        return plain_mapping(source, faults)
    if source is None:
        text = resources.files("_inf").joinpath("embedded.yaml").read_text(encoding="utf-8")
        return plain_mapping(_parse_config(text, "embedded.yaml"), faults)
    if not isinstance(source, (str, os.PathLike)):
        raise ConfigError(f"config: expected a path, a mapping or None, got {shown(source)}")
    path = Path(source)
    return _found_beside(path, plain_mapping(_parse_config(_text_of(path), str(path)), faults))


def parse_yaml(text: str, name: str) -> Any:
    """The value of a YAML text; `name` says in errors where it came from."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return None
        _refuse_misread_numbers(node, name, set())
        if written_out(node, {}) > MOST_VALUES:
            raise ConfigError(f"{name}: its aliases stand for over {MOST_VALUES:,} values")
        if isinstance(node, yaml.ScalarNode):  # OmegaConf takes none alone
            return parse_yaml(f"- {text}", name)[0]
        return OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{name}{line}: not valid YAML: {error.problem}") from None
    except OmegaConfBaseException as error:
        where = name if error.full_key in (None, "", "[0]") else error.full_key
        raise ConfigError(f"{where}: {first_line(error)}") from None
    except RecursionError:
        raise ConfigError(f"{name}: a value holds itself, or lies too deep") from None
    except ConfigError:  # a ValueError too
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{name}: not valid YAML: {first_line(error)}") from None
    except Exception as error:  # PyYAML's constructors raise what they meet
        raise ConfigError(f"{name}: a value does not fit its tag: {error!r}") from None


def plain_mapping(value: Mapping[str, Any], faults: Faults) -> dict[str, Any]:
    """Dicts with string keys, lists and scalars only; Hydra's `_target_` goes."""
    return dict(_plain(value, "", faults))


def _plain(value: Any, path: str, faults: Faults) -> Any:
    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=True)
    if isinstance(value, Mapping):
        tree = {}
        for key, item in value.items():
            if not isinstance(key, str):
                faults.note(join(path, shown(key)), "a key must be a word; quote it if it is one")
            elif key != "_target_":
                tree[key] = _plain(item, join(path, key), faults)
        return tree
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{place}]", faults) for place, item in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    faults.note(path, f"expected what YAML can hold, got {type(value).__name__}")
    return None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        hint = "" if path.suffix in (".yaml", ".yml") else _as_model(path)
        raise ConfigError(
            f"{path}: no such config file (looked for {path.absolute()}){hint}"
        ) from None
    except IsADirectoryError:
        hint = _as_model(path)
        raise ConfigError(
            f"{path}: a folder, not a config file; name the file in it{hint}"
        ) from None
    except UnicodeDecodeError as error:
        hint = _as_model(path)
        raise ConfigError(f"{path}: not a text file in UTF-8 ({error.reason}){hint}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _as_model(path: Path) -> str:
    return f'; if it is a model, say model_path="{path}" (in the shell: --set model_path={path})'


def _parse_config(text: str, name: str) -> dict[str, Any]:
    document = parse_yaml(text, name)
    if document is None:
        raise ConfigError(f"{name}: empty; a config needs at least one key, such as model_path")
    if not isinstance(document, dict):
        raise ConfigError(f"{name}: expected keys and values at the top, got {shown(document)}")
    return document


_MISREAD = re.compile(r"[-+]?(0[0-9_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")


def _refuse_misread_numbers(node: yaml.Node, name: str, seen: set[int]) -> None:
    """YAML 1.1 reads 0512 as octal and 1:30 as ninety; nobody who writes them here means that."""
    if id(node) in seen:  # an anchor, perhaps of a parent
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        if node.style is None and _MISREAD.fullmatch(node.value):
            raise ConfigError(
                f"{name}, line {node.start_mark.line + 1}: YAML does not read {node.value} as it"
                " looks (a leading zero means octal, a colon base 60); quote it or write it plainly"
            )
        return
    for child in node.value:
        for part in child if isinstance(child, tuple) else (child,):
            _refuse_misread_numbers(part, name, seen)


def written_out(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values there are with each alias written out, as OmegaConf does: ten lines can stand
    for billions."""
    if id(node) not in known:
        known[id(node)] = 0  # one that holds itself is refused elsewhere
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        flat = [each for part in parts for each in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(written_out(each, known) for each in flat)
    return known[id(node)]


def _found_beside(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    """A file that a config names is looked for where the caller runs, then beside the config."""
    rollout = document.get("rollout")
    multi_turn = rollout.get("multi_turn") if isinstance(rollout, dict) else None
    for section, key in (
        (document, "model_path"),
        (multi_turn, "tool_config_path"),
        (multi_turn, "interaction_config_path"),
    ):
        value = section.get(key) if isinstance(section, dict) else None
        if not isinstance(section, dict) or not isinstance(value, str) or "${" in value:
            continue
        if key == "model_path" and not value.startswith(("./", "../")):
            continue  # without the dots it may be a Hub id
        if not os.path.exists(value) and (path.parent / value).exists():
            section[key] = str(path.parent / value)
    return document
