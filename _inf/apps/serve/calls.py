"""Turns a request into what is sent to the engine: token ids and keywords for each choice.

The chat template is applied here and not by `generate`, so that the response can say the prompt's
ids, and a session can put recorded ids into their place.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from _inf.apps.openai_format import NamedTool, UnknownKeyError
from _inf.apps.serve.sessions import Start
from _inf.conversation.rules import Rules, rules_for
from _inf.errors import ConfigError, shown
from _inf.request.keywords import GenerateParams, checked
from _inf.request.prompts import Form, LaterTurn, normalize
from _inf.request.seeds import prompt_seed, sample_seed
from _inf.request.tokenize import tokenize
from _inf.response.output import GenerationOutput
from _inf.response.streaming import StreamChunk
from _inf.tools.definition import shown_tools
from _inf.tools.json_schemas import strict_fault
from _inf.types import Limits, Message, Prompt, Tool, ToolCall

if TYPE_CHECKING:
    from _inf.apps.serve.sessions import Session
    from inf import InferenceEngine

MAX_ROWS = 1024  # of a request: prompts times choices
MAX_SCORED = 4_000_000  # log probs of prompts in a response, which are held as Python's numbers


@dataclasses.dataclass(frozen=True)
class ServedCall:
    """A checked request. Its choices are prompt-major: `n` for each prompt.

    prompt_ids: of each choice, within the limits. params: `generate`'s keywords for all choices;
    own: those of each. rules: the tools, and how their calls are read. forced: the grammar makes
    the answer the JSON text of a call. one_call: only the first call of an answer is kept. session:
    the request's, if it has one; starts: where each choice belongs in it.
    """

    engine: InferenceEngine
    n: int
    prompt_ids: Sequence[list[int]]
    params: Mapping[str, Any]
    own: Sequence[Mapping[str, Any]]
    rules: Rules
    forced: bool
    one_call: bool
    session: Session | None
    starts: Sequence[Start]

    def takes(self, call: ToolCall) -> bool:
        """Whether a call in an answer is one of the request's tools, with arguments as its schema
        says if that is `strict`."""
        tool = self.rules.tools.get(call.name)
        if tool is None or not _is_strict(tool):
            return tool is not None
        return call.error is None and strict_fault(tool, call.arguments) is None

    async def answer(self) -> GenerationOutput:
        """Answer all choices in one call; cancelling it aborts them in the engine."""
        prompts = [{"prompt_token_ids": LaterTurn(ids)} for ids in self.prompt_ids]
        own = {name: [each[name] for each in self.own] for name in self.own[0]}
        keywords = cast(GenerateParams, {**self.params, **own})
        return await self.engine.agenerate(prompts, **keywords)

    def streams(self) -> list[AsyncGenerator[StreamChunk, None]]:
        """Return one stream per choice; each is sent when its first chunk is read."""
        streams: list[Any] = []
        for ids, own in zip(self.prompt_ids, self.own, strict=True):
            params = cast(GenerateParams, {**self.params, **own})
            streams.append(self.engine.astream({"prompt_token_ids": LaterTurn(ids)}, **params))
        return streams


def served_call(
    engine: InferenceEngine,
    prompts: Sequence[Any],
    keywords: Mapping[str, Any],
    tool_choice: str | NamedTool | None,
    session: Session | None = None,
    *,
    parallel: bool | None = None,
) -> ServedCall:
    """Prepare a request; checks what `generate` cannot: the number of choices, lengths, a forced
    call. keywords: `generate`'s. tool_choice: "none" shows the tools, and finds no calls. parallel:
    whether an answer may have several calls; None: one that is forced has not. Raises as
    `generate` does."""
    params = dict(keywords)
    n, asked = checked("n", params.pop("n", 1)), params.pop("max_tokens", None)
    most = None if asked is None else checked("max_tokens", asked)
    tokenized, rules, starts = _prompts(engine, prompts, params, most, session)
    if (rows := len(tokenized) * n) > MAX_ROWS:
        said = f"{len(tokenized)} prompts with {n} choices each are {rows} rows"
        raise ConfigError.of("n", f"{said}; at most {MAX_ROWS} can be asked for at once")
    _check_scored(params.get("prompt_logprobs"), n * sum(len(each.token_ids) for each in tokenized))
    forced = tool_choice not in (None, "auto", "none")
    if forced:
        several = parallel is True and tool_choice == "required"
        params["json_schema"] = _call_schema(tool_choice, rules.tools, params, several=several)
    elif tool_choice == "none":
        rules = dataclasses.replace(rules, tools={})
    else:
        _check_strict(rules.tools)
    default, total = engine.config.rollout.response_length, engine.model.limits.total
    limits = [most or min(default, total - len(prompt.token_ids)) for prompt in tokenized]
    own: list[dict[str, Any]] = [{"max_tokens": each} for each in limits for _ in range(n)]
    if (seed := params.pop("seed", None)) is not None:  # each choice has the one of `generate`
        seed = checked("seed", seed)
        for row, each in enumerate(own):
            each["seed"] = sample_seed(prompt_seed(seed, row // n), row % n)
    params |= {"tools": [], "n": 1, "progress": False}
    ids = [prompt.token_ids for prompt in tokenized for _ in range(n)]
    places = [start for start in starts for _ in range(n)]
    return ServedCall(
        engine, n, ids, params, own, rules, forced, parallel is False, session, places
    )


def _prompts(
    engine: InferenceEngine,
    prompts: Sequence[Any],
    params: dict[str, Any],
    max_tokens: int | None,
    session: Session | None,
) -> tuple[list[Prompt], Rules, list[Start]]:
    """Return the prompts, which leave room for `max_tokens`, the rules with the request's tools,
    and where its answers belong in the session; takes the keywords about these out of `params`.

    `prompt_length` bounds first turns only: not messages with an answer or a tool's result, nor
    ids that go on from an answer of the session.
    """
    name = "chat_template_kwargs"
    tools, given = params.pop("tools", []), params.pop(name, {})
    kwargs = checked(name, given)
    if not params.pop("add_generation_prompt", True):
        kwargs = {**kwargs, "add_generation_prompt": False}
    rules = rules_for(shown_tools(tools), kwargs, engine.config, engine.model)
    template = rules.template
    if template is None:
        raise ConfigError.of("tool_choice", "the server takes and gives text; set tokenizer_path")
    effort = "reasoning_effort"
    if effort in given and effort not in str(engine.tokenizer.chat_template):
        raise UnknownKeyError.of(effort, "the model's chat template does not read it; leave it out")
    limits, side = engine.model.limits, params.pop("truncate_prompt", None)
    if max_tokens is None and (side or limits.truncate):  # a prompt that is cut leaves this room
        max_tokens = min(engine.config.rollout.response_length, limits.total - limits.prompt)
    forms = normalize(prompts)
    most = [max_tokens or 1] * len(forms)
    is_chat = bool(forms[0]) and isinstance(forms[0][0], Mapping)
    if not is_chat:
        forms = [_turn(form, limits, session) for form in forms]
        tokenized = tokenize(forms, template, limits, most, side)
        return tokenized, rules, [session.completion(p.token_ids) for p in tokenized if session]
    messages = cast("list[Message]", forms[0])
    start = Start(messages)
    if session is not None:
        context = hashlib.sha256(json.dumps([tools, kwargs]).encode()).hexdigest()
        start = session.chat(messages, context, template)
    form = messages if start.ids is None else start.ids
    if any(message["role"] in ("assistant", "tool") for message in messages):
        form = LaterTurn(form)
    return tokenize([form], template, limits, most, side), rules, [start]


def _turn(form: Form, limits: Limits, session: Session | None) -> Form:
    """Mark a long prompt of ids that goes on from an answer of the session."""
    if isinstance(form, str) or session is None or len(form) <= limits.prompt:
        return form
    ids = cast("list[int]", form)
    return LaterTurn(ids) if session.completion(ids).answer else ids


def _check_scored(likeliest: bool | int | None, tokens: int) -> None:
    if (scored := int(likeliest or 0) * tokens) > MAX_SCORED:
        said = f"{tokens} tokens of prompts have {scored} likeliest ones together"
        raise ConfigError.of("prompt_logprobs", f"{said}; at most {MAX_SCORED} can be asked for")


def forced_texts(text: str) -> list[str]:
    """The JSON texts of the calls that a grammar enforced: of one, or of those in a list."""
    if not text.startswith("["):
        return [text]
    try:
        return [json.dumps(call, ensure_ascii=False) for call in json.loads(text)]
    except (ValueError, RecursionError):
        return []


def _is_strict(tool: Tool) -> bool:
    return tool.schema["function"].get("strict") is True


def _check_strict(tools: Mapping[str, Tool]) -> None:
    """Refuse strict tools with schemas that answers cannot be held to."""
    for index, tool in enumerate(tools.values()):
        if _is_strict(tool):
            where = f"tools[{index}].function.parameters"
            parameters = _parameters(tool, where)
            if '"patternProperties"' in json.dumps(parameters):
                said = "a strict tool cannot have patternProperties; leave out strict"
                raise ConfigError.of(where, said)


def _parameters(tool: Tool, where: str) -> dict[str, Any]:
    """The schema of the tool's arguments, which a grammar can enforce. `strict` may stand in it by
    mistake: a grammar always is."""
    parameters = {"type": "object", **tool.parameters}
    if isinstance(parameters.get("strict"), bool):
        del parameters["strict"]
    try:
        checked("json_schema", parameters)
    except ConfigError as failure:
        said = str(failure).removeprefix("json_schema")
        raise ConfigError(f"{where}{said}", key=where) from None
    return parameters


def _call_schema(
    choice: str | NamedTool | None,
    tools: Mapping[str, Tool],
    keywords: Mapping[str, Any],
    *,
    several: bool,
) -> dict[str, Any]:
    """Return the schema of `{"name": ..., "arguments": {...}}` for the tools that may be called;
    several: of a list of them."""
    for name in ("json_schema", "regex"):
        if name in keywords:
            said = f"an answer can follow one grammar only; remove {name}"
            raise ConfigError.of("tool_choice", said)
    named = choice.function.name if isinstance(choice, NamedTool) else None
    if named is not None and named not in tools:
        raise ConfigError.of("tool_choice", f"there is no tool {shown(named)} in tools")
    if not tools:
        raise ConfigError.of("tool_choice", "it needs tools")
    definitions: dict[str, Any] = {}
    calls = []
    for index, tool in enumerate(tools.values()):
        if named not in (None, tool.name):
            continue
        parameters = _parameters(tool, f"tools[{index}].function.parameters")
        for key, value in parameters.pop("$defs", {}).items():
            if definitions.setdefault(key, value) != value:
                said = f"two tools define #/$defs/{key} differently"
                raise ConfigError.of("tool_choice", said)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": parameters},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if several:
        schema = {"type": "array", "items": schema, "minItems": 1}
    return {**schema, **({"$defs": definitions} if definitions else {})}
