"""Reads a trainer's config and the overrides of one, in any form, as trees of plain values.

An interpolation that has no value stays as it is written, as it may not be needed; where it is,
`load_config` names it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from _inf.config.load import over, parse_assignments
from _inf.config.source import plain, read_source
from _inf.errors import ConfigError, shown
from _inf.types import JSON

SECTION = "actor_rollout_ref"
# The keys of `data` that verl's `rollout` has its lengths from.
_LENGTHS = {"max_prompt_length": "prompt_length", "max_response_length": "response_length"}


def overrides_of(overrides: Mapping[str, object] | Iterable[str] | None) -> JSON:
    """Return overrides of either form as a mapping."""
    if isinstance(overrides, Mapping):
        return dict(plain(resolved(overrides)))
    texts = [overrides] if isinstance(overrides, str) else overrides
    try:
        return parse_assignments(_assignment(text) for text in texts or ())
    except TypeError:  # no texts
        why = f"expected a mapping or assignments, not {shown(overrides)}"
        raise ConfigError.of("overrides", why) from None


def _assignment(text: str) -> str:
    """Return an argument of Hydra's command line without what only Hydra knows."""
    text = str.strip(text).lstrip("+")
    if text.startswith(("-", "~")):
        raise ConfigError(f"{text}: an option of Hydra, not KEY=VALUE; leave it out.")
    if more := re.search(r"\s[+~]*[A-Za-z_][\w.]*\.\w+=", text):
        raise ConfigError(f"{text}: give{more[0].rstrip('=')} as an assignment of its own.")
    return text


def whole_config(source: str | os.PathLike[str] | Mapping[str, object], name: str) -> JSON:
    """Return the tree with its `actor_rollout_ref`, interpolations kept. name: for errors."""
    if source is None:
        raise ConfigError.of("from_verl()", "expected a trainer's config: a path or a mapping")
    if isinstance(source, DictConfig) and SECTION in source:
        unresolved: Any = OmegaConf.to_container(source)
        source = unresolved
    elif isinstance(source, Mapping):
        values: Any = resolved(source)
        source = values
    elif isinstance(source, str | os.PathLike) and os.path.isdir(source):  # of a run
        source = Path(source, ".hydra", "config.yaml")
    tree = read_source(source)
    whole = tree
    if SECTION not in tree:
        whole = {SECTION: {key: value for key, value in tree.items() if key != "data"}}
        whole |= {key: value for key, value in tree.items() if key == "data"}
    section = whole[SECTION]
    if not isinstance(section, dict) or not {"model", "rollout"} <= section.keys():
        why = f"no trainer's config: {SECTION} with the sections model and rollout is missing"
        if "defaults" in tree:
            why = "Hydra has not composed it yet; name the .hydra/config.yaml of a run, or write"
            why += " it: python3 -m verl.trainer.main_ppo --cfg job ARGUMENTS > config.yaml"
        raise ConfigError.of(name, why)
    return whole


def overridden(whole: JSON, overrides: JSON, own: JSON) -> JSON:
    """Return the config with the trainer's overrides over it, and over these `own`, the rollout's.

    Lengths of the rollout that are those of `data`, as in verl's files, follow overrides of it;
    as interpolations they do so of themselves.
    """
    rollout, data = (
        _keys(part) for part in (_keys(whole[SECTION]).get("rollout"), whole.get("data"))
    )
    given = _keys(overrides.get("data"))
    follow = {
        here: given[name]
        for name, here in _LENGTHS.items()
        if given.get(name) is not None
        and not isinstance(rollout.get(here), str)
        and rollout.get(here) == data.get(name, rollout.get(here))
    }
    whole = over(over(whole, {SECTION: {"rollout": follow}} if follow else {}), overrides)
    return over(whole, {SECTION: {"rollout": own}} if own else {})


def lengths_of(data: JSON) -> JSON:
    """Return the rollout's lengths that `data` has."""
    return {here: data[name] for name, here in _LENGTHS.items() if data.get(name) is not None}


def resolved(node: object) -> object:
    """Return plain values of OmegaConf's nodes."""
    if isinstance(node, ListConfig):
        return [_item(node, index) for index in range(len(node))]
    if isinstance(node, DictConfig):
        return {key: _item(node, key) for key in node}
    if isinstance(node, Mapping):
        return {key: resolved(value) for key, value in node.items()}
    return node


def _item(node: DictConfig | ListConfig, key: Any) -> object:
    if OmegaConf.is_missing(node, key):
        return "???"
    try:
        value = node[key]
    except OmegaConfBaseException:
        unresolved: Any = OmegaConf.to_container(node)
        return unresolved[key]
    return resolved(value)


def _keys(section: object) -> JSON:
    return section if isinstance(section, dict) else {}
