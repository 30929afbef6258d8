"""Makes the objects of agent loops, one for each row, as verl 0.6.1's workers make them
(`experimental/agent_loop/agent_loop.py`, `_run_agent_loop`)."""

from __future__ import annotations

import copy
import importlib.resources
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from _inf.config import Config
from _inf.conversation.agent_loops.loading import TARGET, AgentLoop, verl_module
from _inf.errors import ConfigError, error_text
from _inf.runtime.quiet import stdout_to
from _inf.types import ModelInfo

if TYPE_CHECKING:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase


class LoopObjects:
    """What the objects of one engine share: classes, configs and a tokenizer. Used on one thread.

    The tokenizer is a copy, because loops may set its padding side or its template, as verl does.
    """

    def __init__(self, config: Config, model: ModelInfo) -> None:
        self._config, self.model = config, model
        self.widths = config.rollout.widths
        self._tokenizer = copy.deepcopy(model.tokenizer)
        self._classes: dict[tuple[type, str, str], type] = {}
        self._trainer_configs: dict[str, DictConfig] = {}

    def make(
        self, loop: AgentLoop, template: Mapping[str, object], server_manager: object
    ) -> AgentLoopBase:
        """Return an object for one row. template: `chat_template_kwargs`.

        Raises `ConfigError` with what the constructor raises.
        """
        given = json.dumps(template, sort_keys=True, default=repr)
        if given not in self._trainer_configs:
            self._trainer_configs[given] = trainer_config(self._config, self.model, template)
        config = verl_module()._DummyConfig(config=self._trainer_configs[given])
        kwargs = loop.kwargs
        try:
            kind = self._class_of(loop, given)
            with stdout_to(sys.stderr):  # verl's `ToolAgentLoop.init_class` prints
                if TARGET in loop.text:  # objects, which verl too makes for each row
                    import hydra

                    kwargs = hydra.utils.instantiate(kwargs)
                return kind(
                    trainer_config=config,
                    server_manager=server_manager,
                    tokenizer=self._tokenizer,
                    processor=None,
                    **{name: kwargs[name] for name in kwargs},
                )
        except (Exception, SystemExit, KeyboardInterrupt) as failure:
            raise ConfigError.of(
                "agent_loop", f"{loop.name} cannot be made: {error_text(failure)}."
            ) from failure

    def _class_of(self, loop: AgentLoop, given: str) -> type[AgentLoopBase]:
        """Return a subclass for this engine, these keywords and this template: verl's
        `ToolAgentLoop` keeps tools, limits and tokenizer in its class, for the whole process
        (`tool_agent_loop.py`, `init_class`)."""
        key = (loop.kind, loop.text, given)
        if key not in self._classes:
            body = {"_class_initialized": False, "__module__": loop.kind.__module__}
            self._classes[key] = type(loop.kind)(loop.kind.__name__, (loop.kind,), body)
        return self._classes[key]


def trainer_config(config: Config, model: ModelInfo, template: Mapping[str, object]) -> DictConfig:
    """Return verl's own trainer config with this engine's rollout, model and template."""
    files = importlib.resources.files("verl.trainer.config")
    with importlib.resources.as_file(files / "_generated_ppo_trainer.yaml") as path:
        whole: object = OmegaConf.load(path)
    rollout = config.to_dict()["rollout"] | {"max_model_len": model.limits.total}
    data = {
        "max_prompt_length": config.rollout.prompt_length,
        "max_response_length": config.rollout.response_length,
        "trust_remote_code": config.trust_remote_code,
        "apply_chat_template_kwargs": dict(template),
    }
    ours = {
        "actor_rollout_ref": {
            "rollout": rollout,
            "model": {"path": str(model.folder), "trust_remote_code": config.trust_remote_code},
        },
        "data": data,
    }
    merged = OmegaConf.merge(whole, ours)
    assert isinstance(merged, DictConfig)
    return merged
