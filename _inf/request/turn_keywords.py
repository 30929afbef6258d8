"""The keywords of rows with turns: tools, interactions, environments and agent loops."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping

from _inf.errors import ConfigError, shown
from _inf.request import values
from _inf.request.keyword import Keyword

_ONE_TURN = "stream() has one turn; use generate()"
_NO_LOOP = "stream() runs no agent loop; use generate()"
_NO_LOOP_IN_CHAT = "this chat streams, and so runs no agent loop; start inf chat --json"
_NO_ENVIRONMENT = "a chat has no environments; leave it out"
_ENDED = "its state ended with the row; send the row's prompt again"


def _agent_loop(name: str, value: object) -> object:
    if isinstance(value, Mapping) and isinstance(value.get("_target_"), str):
        return dict(value)
    return values.typed(name, value, (str, type), "a name, a class, or a mapping with a _target_")


def _agent_kwargs(name: str, value: object) -> dict[str, object]:
    columns = values.mapping(name, value)
    if "raw_prompt" in columns:
        raise ConfigError.of(f"{name}.raw_prompt", "the prompt has the messages; leave it out.")
    return columns


def _factories(name: str, value: object) -> object:
    if isinstance(value, Mapping):
        if not value:
            raise ConfigError.of(name, "{} has no factory.")
        for key, factory in values.mapping(name, value).items():
            _factories(f"{name}.{key}", factory)
        return dict(value)
    if not callable(value):
        raise ConfigError.of(name, f"{shown(value)} cannot be called to make an environment.")
    return value


def _as_tools(_: str, value: object) -> object:
    return pkgutil.resolve_name("_inf.tools.definition:as_tools")(value)


TURN_KEYWORDS: Mapping[str, Keyword] = {
    "tools_kwargs": Keyword(
        values.tools_kwargs,
        'Keywords for verl\'s tools, such as `{"calculator": {"create_kwargs": {}}}`. The prompt '
        "has only the tools that it names; by default, all tools of the call (docs/tools.md).",
        typed="Mapping[str, object]",
        refused={"agent loop": "cannot be used with agent_loop; give it in agent_kwargs"},
    ),
    "interaction_kwargs": Keyword(
        values.mapping,
        'An interaction of verl\'s, such as `{"name": "gsm8k", "ground_truth": "7"}` '
        "(docs/tools.md).",
        feature="turn",
        typed="Mapping[str, object]",
        neutral={},
        refused={
            "agent loop": "cannot be used with agent_loop; give it in agent_kwargs, as "
            '{"extra_info": {"interaction_kwargs": ...}}',
            "stream": _ONE_TURN,
            "continued row": _ENDED,
            "streamed chat": "this chat streams, and so has no interactions; start inf chat --json",
        },
    ),
    "max_tokens_per_turn": Keyword(
        values.count,
        "The most tokens of each turn. At least 1.",
        typed="int",
        refused={
            "one turn": "without tools or interactions there is one turn; use max_tokens",
            "agent loop": "cannot be used with agent_loop; there, max_tokens limits each request",
            "stream": "stream() has one turn; use max_tokens",
            "streamed chat": "a message has one turn without tools; set max_tokens",
        },
    ),
    "agent_loop": Keyword(
        _agent_loop,
        'verl\'s agent loop that answers. A name, a class, or `{"_target_": ...}`; default '
        "`rollout.agent.default_agent_loop` (docs/agent_loops.md). max_tokens then limits each of "
        "its requests.",
        feature="agent_loop",
        typed="str | type | Mapping[str, object]",
        refused={
            "stream": f"{_NO_LOOP}, or pass tools=[]",
            "continued row": _ENDED,
            "streamed chat": _NO_LOOP_IN_CHAT,
        },
    ),
    "agent_kwargs": Keyword(
        _agent_kwargs,
        "Columns of the row for the agent loop's run(), as verl passes them.",
        feature="agent_loop",
        typed="Mapping[str, object]",
        neutral={},
        refused={"stream": _NO_LOOP, "streamed chat": _NO_LOOP_IN_CHAT},
    ),
    "environment_factory": Keyword(
        _factories,
        "Makes an environment for each row, whose methods are its tools. Or a dict, from which the "
        "column `environment` selects (as TRL; docs/environments.md).",
        feature="turn",
        typed="Callable[[], Any] | Mapping[str, object]",
        refused={
            "agent loop": "cannot be used with agent_loop; a loop has its own",
            "stream": _ONE_TURN,
            "chat": _NO_ENVIRONMENT,
        },
    ),
    "environment_kwargs": Keyword(
        values.mapping,
        "Columns of the row for the environment's reset(), next to `prompt`.",
        feature="turn",
        typed="Mapping[str, object]",
        neutral={},
        refused={"stream": _ONE_TURN, "chat": _NO_ENVIRONMENT},
    ),
    "tools": Keyword(
        _as_tools,
        "Python functions, verl tools or schemas. The rollout runs functions and verl tools, and "
        "a call of a schema ends the row. Default the config's; [] means none (docs/tools.md).",
        list[dict[str, object]],
        feature="turn",
        typed="Sequence[object]",
        per_prompt=False,
        neutral=[],
        of_chats=True,
        refused={
            "agent loop": "an agent loop has its own; leave tools out",
            "chat": "a chat uses the tools of its config; set rollout.multi_turn.tool_config_path",
        },
    ),
}
