"""Reads the config of a verl trainer, for `InferenceEngine.from_verl` and `--verl`.

In: a file as Hydra composes it, a mapping or an OmegaConf node; the whole, or its
`actor_rollout_ref`. Out: what `load_config` reads, what was left out because only the trainer reads
it, and a fault for each key that would change an answer and has no equal here. The keys are those
of `verl/trainer/config/` in verl 0.6.1 to 0.9.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from omegaconf import OmegaConf

from _inf.config.load import KEYS, over, placed, resolving
from _inf.config.schema import Config
from _inf.config.source import ABSENT, at, plain
from _inf.config.trainer_source import (
    SECTION,
    lengths_of,
    overridden,
    overrides_of,
    resolved,
    whole_config,
)
from _inf.config.verl_keys import ONE_VALUE
from _inf.errors import ConfigError, did_you_mean, shown
from _inf.types import JSON

# Keys of `ONE_VALUE` whose other values would change an answer.
_CHANGE_ANSWERS = (
    "skip_tokenizer_init",
    "agent.custom_async_server",
    "agent.custom_async_server.path",
    "agent.custom_async_server.name",
    "multi_turn.use_inference_chat_template",
)
# Keys under `rollout` that say where and when a trainer's engine runs, how it gets its weights, and
# what the trainer does with its answers.
LEFT_OUT = (
    *("name", "mode", "free_cache_engine", "nnodes", "n_gpus_per_node", "checkpoint_engine"),
    *("tensor_model_parallel_size", "data_parallel_size", "expert_parallel_size"),
    *("disaggregation", "router_config_path", "scheduling_policy", "full_determinism", "seed"),
    *("engine_kwargs.trtllm", "logprobs_mode", "mtp", "enable_rollout_routing_replay"),
    "moe_load_balance_metrics_interval",
    *(name for name in ONE_VALUE if name not in _CHANGE_ANSWERS),
)
# Engine arguments of vLLM that would change an answer.
_OF_VLLM = tuple(
    f"engine_kwargs.vllm.{name}"
    for name in (
        *("quantization", "hf_overrides", "kv_cache_dtype", "rope_scaling", "rope_theta", "dtype"),
        *("tokenizer", "logits_processors", "mm_processor_kwargs"),
    )
)
_READ = ("rollout", "model", "data", SECTION)  # other sections are the trainer's
_TRAINERS = ("actor", "ref", "hybrid_engine", "nccl_timeout")
_DEFAULTS = Config().to_dict()
_ARGUMENTS = "engine_kwargs.sglang."
# Keys of `model.override_config` that change no answer.
_NEUTRAL = ("attn_implementation", "moe_config.freeze_moe_router")
_TO_A_CALL = "give it to each call as {}, and set it to null in the overrides"
_NO_EQUAL = "it has no equal here; if you can do without, set it to null in the overrides"
# Keys that would change an answer, with what to do. Each may also be the model's own path.
_MODEL_FAULTS: Mapping[str, str] = {
    "custom_chat_template": _TO_A_CALL.format("chat_template"),
    "override_config": "write it into the model's config.json, and set it to null in the overrides",
    "external_lib": "import it before the engine starts, and set it to null in the overrides",
    "tokenizer_path": _NO_EQUAL,
    "hf_config_path": _NO_EQUAL,
}
_OF_MODEL = ("path", "trust_remote_code", "lora_adapter_path", "lora", *_MODEL_FAULTS)
_DATA_FAULTS: Mapping[str, str] = {
    "apply_chat_template_kwargs": _TO_A_CALL.format("chat_template_kwargs"),
    "tokenizer": _NO_EQUAL,
}
_OF_DATA = ("max_prompt_length", "max_response_length", "truncation", *_DATA_FAULTS)


@dataclass
class TrainerConfig:
    """What was read. `document`: keys for `load_config`; `left_out`: keys of the trainer, with
    their values, and its sections; `faults`: lines of an error."""

    name: str
    document: JSON = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        without = ", without what only the trainer reads: " if self.left_out else ""
        return f"{self.name}{without}{', '.join(self.left_out)}"

    def take(self, path: str, value: object) -> None:
        self.document = over(self.document, placed(path, plain(value)))

    def leave_out(self, path: str, value: object) -> None:
        if _is_set(value) and value != "???":
            self.left_out.append(f"{path}: {shown(value)}")

    def refuse(self, path: str, value: object, what_to_do: str) -> None:
        self.faults.append(f"{path}: {shown(value)} would change the answers; {what_to_do}")


def read_trainer(
    source: str | os.PathLike[str] | Mapping[str, object],
    overrides: Mapping[str, object] | Iterable[str] | None = None,
    unread_by: Callable[[object], Collection[str]] = lambda name: (),
) -> TrainerConfig:
    """Read a trainer's config, with `overrides` over it. unread_by: as for `load_config`.

    overrides: deep, or as assignments. Keys of this library (`rollout.n=4`) are always taken; keys
        of the trainer (`actor_rollout_ref.rollout.n=4`, `data.max_prompt_length=1024`, also with
        Hydra's `+`) are read as if they stood in the file.
    """
    asked = overrides_of(overrides)
    name = "a mapping" if isinstance(source, Mapping) else str(source)
    whole = whole_config(source, name)
    mine = [*_DEFAULTS, SECTION, "data"]
    trainers = {
        key: asked.pop(key)
        for key in [*asked]
        if key not in _DEFAULTS and (key in {*whole, *mine} or not _unknown(key, mine))
    }
    said = _section(asked.pop("rollout", None), "rollout")
    whole = overridden(whole, trainers, said)
    section = _section(whole[SECTION], SECTION)
    rollout, model, data = _parts(whole)
    rollout |= {name: n for name, n in lengths_of(data).items() if rollout.get(name) is None}
    read = TrainerConfig(name)
    _read_sections(read, section)
    _read_model(read, model, data, asked)
    unread = unread_by(said.get("name", _DEFAULTS["rollout"]["name"]))
    _read_rollout(read, rollout, {path for path, _ in _leaves(said)}, (*LEFT_OUT, *unread))
    read.left_out += [key for key in (*section, *whole) if key not in _READ]
    if data.keys() - set(_OF_DATA):
        read.left_out.append("the rest of data")
    read.document = over(read.document, asked)
    if read.document["model_path"] is None:
        read.faults.append(f"{SECTION}.model.path: must be set")
    return read


def _read_sections(read: TrainerConfig, section: JSON) -> None:
    """Note keys that would be read if they were spelt or placed as verl has them."""
    for key in (key for key in section if key not in {*_READ, *_TRAINERS}):
        if f"rollout.{key}" in KEYS:
            read.faults.append(
                f"{SECTION}.{key}: unknown key; it belongs at {SECTION}.rollout.{key}"
            )
        elif near := _unknown(key, ("model", "rollout")):
            read.faults.append(f"{SECTION}.{key}: unknown key{near}")


def _unknown(key: str, known: Iterable[str]) -> str:
    return did_you_mean(key.lower(), known)


def _parts(whole: JSON) -> Iterator[JSON]:
    """Yield the sections of rollout, model and data, with interpolations resolved."""
    with resolving():
        tree = OmegaConf.create(whole)
        for path in (f"{SECTION}.rollout", f"{SECTION}.model", "data"):
            yield _section(plain(resolved(OmegaConf.select(tree, path))), path)


def _section(value: object, path: str) -> JSON:
    """Return a section; null is an empty one."""
    if not isinstance(value, dict | None):
        raise ConfigError.of(path, f"must be a section with keys, not {shown(value)}")
    return value or {}


def _read_model(read: TrainerConfig, model: JSON, data: JSON, asked: JSON) -> None:
    """Take the model, how its prompts are cut, and note what would change them. asked: keys of this
    library in the overrides."""
    path = model.get("path")
    read.take("model_path", path)
    trusted = model.get("trust_remote_code") or data.get("trust_remote_code") or False
    read.take("trust_remote_code", trusted)  # verl's trainer reads data's for the tokenizer
    lora = model.get("lora")
    adapter = model.get("lora_adapter_path") or (
        isinstance(lora, dict) and lora.get("adapter_path")
    )
    read.take("adapter_path", adapter or None)
    for section, keys, known, faults in (
        (f"{SECTION}.model", model, _OF_MODEL, _MODEL_FAULTS),
        ("data", data, _OF_DATA, _DATA_FAULTS),
    ):
        for key, value in keys.items():
            if key == "override_config" and isinstance(value, dict):
                value = {p: leaf for p, leaf in _leaves(value) if leaf != {} and p not in _NEUTRAL}
            if key in faults and _is_set(value) and value != path:
                read.refuse(f"{section}.{key}", value, faults[key])
            elif key not in known and (near := did_you_mean(key, known)):
                read.faults.append(f"{section}.{key}: unknown key{near}")
    if (side := data.get("truncation")) in ("left", "right"):
        read.take("truncate_prompt", side)
    elif side not in (None, "error") and "truncate_prompt" not in asked:
        read.refuse("data.truncation", side, "here it is left, right or error")
    for key, value in model.items():
        if key not in _OF_MODEL:
            read.leave_out(f"model.{key}", value)


def _read_rollout(
    read: TrainerConfig, rollout: JSON, said: set[str], left_out: Collection[str]
) -> None:
    """Sort the keys of `rollout`. said: those of the overrides, which are taken."""
    for path, value in _leaves(rollout):
        place = f"rollout.{path}"
        ours = place in KEYS or path.startswith(_ARGUMENTS)
        if path == "top_k" and value == 0:
            value = -1  # all, as verl's `hf` rollout has it
        if path in said and (ours or value is not None):
            read.take(place, value)
        elif _is_below(path, _OF_VLLM) and _is_set(value) and value != "auto":
            read.refuse(f"{SECTION}.{place}", value, _NO_EQUAL)
        elif _is_below(path, left_out) or (path == "load_format" and value == "dummy"):
            neutral, _ = ONE_VALUE.get(path, (at(_DEFAULTS, place), ""))
            if value not in (neutral if isinstance(neutral, tuple) else (neutral,)):
                read.leave_out(place, value)
        elif ours or path in ONE_VALUE:
            read.take(place, value)
        elif value is not None and (near := _nearest(place)):
            read.faults.append(f"{SECTION}.{place}: unknown key{near}")
        elif _is_set(value):
            read.refuse(f"{SECTION}.{place}", value, _NO_EQUAL)
        elif value is False:
            read.left_out.append(f"{place}: False")


def _nearest(place: str) -> str:
    """Return `"; did you mean 'x'?"` for the nearest key in the section of `place`."""
    section, _, key = place.rpartition(".")
    known = [*KEYS, *(f"rollout.{name}" for name in LEFT_OUT)]
    return did_you_mean(key, [k[len(section) + 1 :] for k in known if k.startswith(f"{section}.")])


def _leaves(tree: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            off = False in (value.get("enable"), value.get("enabled"))
            if off and at(_DEFAULTS, f"rollout.{above}{key}") is ABSENT:
                continue  # a section that is switched off, and not read here
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(f"{path}.".startswith(f"{place}.") for place in places)


def _is_set(value: object) -> bool:
    return value not in (None, False, "", [], {})
