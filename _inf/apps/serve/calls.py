"""Turns a request's body into what is sent to the engine: token ids and keywords for each choice.

In: a checked body and an engine. Out: a `ServedCall`. The chat template is applied here and not by
`generate`, so that the response can say the prompt's ids, and a session can put recorded ids into
their place. Every refusal is one of `generate`'s exceptions, or a `BadRequest`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from _inf.apps.openai_format import BadRequest, NamedTool
from _inf.apps.serve.bodies import MAX_ROWS, ChatBody, CompletionBody
from _inf.apps.serve.sessions import Session, Start
from _inf.conversation.rules import Rules, rules_for
from _inf.errors import PromptTooLongError, shown
from _inf.request.keywords import GenerateParams
from _inf.request.prompts import normalize
from _inf.request.seeds import MAX_SEED, derived_seed, prompt_seed
from _inf.request.tokenize import check_total_length, tokenize
from _inf.request.values import count, template_kwargs
from _inf.response.output import GenerationOutput
from _inf.response.streaming import StreamChunk
from _inf.tools.definition import as_tools
from _inf.types import Message, Prompt, Tool

if TYPE_CHECKING:
    from _inf.apps.serve.choice import Choice
    from inf import InferenceEngine


@dataclasses.dataclass(frozen=True)
class ServedCall:
    """A checked request. Its choices are prompt-major: `n` for each prompt.

    params: `generate`'s keywords for all choices. rules: the tools, and how their calls are read.
    forced: the grammar makes the answer the JSON text of a call. session: the request's, if it has
    one. starts: where the answers to each prompt belong in it.
    """

    engine: InferenceEngine
    prompts: list[Prompt]
    n: int
    params: Mapping[str, Any]
    max_tokens: list[int]
    seed: int | None
    rules: Rules
    forced: bool
    session: Session | None
    starts: Sequence[Start]

    @property
    def rows(self) -> int:
        """The number of choices."""
        return len(self.prompts) * self.n

    def prompt_ids(self, row: int) -> list[int]:
        """The token ids of a choice's prompt."""
        return self.prompts[row // self.n].token_ids

    def _keywords(self, rows: Sequence[int]) -> dict[str, Any]:
        """The keywords of some choices, each with the seed that `generate` would give it."""
        keywords = {**self.params, "max_tokens": [self.max_tokens[row // self.n] for row in rows]}
        if self.seed is not None:
            keywords["seed"] = [
                derived_seed(prompt_seed(self.seed, row // self.n), row % self.n) for row in rows
            ]
        return keywords

    async def answer(self) -> GenerationOutput:
        """Answer all choices in one call; cancelling it aborts them in the engine."""
        rows = range(self.rows)
        prompts = [{"prompt_token_ids": self.prompt_ids(row)} for row in rows]
        keywords = cast(GenerateParams, self._keywords(rows) | {"progress": False})
        return await self.engine.agenerate(prompts, **keywords)

    def record(self, choices: Sequence[Choice]) -> None:
        """Add the finished choices to the session, if there is one."""
        if self.session is None:
            return
        for choice in choices:
            start = self.starts[choice.index // self.n]
            self.session.add(start, self.prompt_ids(choice.index), choice)

    def streams(self) -> list[AsyncGenerator[StreamChunk, None]]:
        """Return one stream per choice; each is sent when its first chunk is read."""
        streams = [
            self.engine.astream(
                [{"prompt_token_ids": self.prompt_ids(row)}],
                **cast(GenerateParams, self._keywords([row])),
            )
            for row in range(self.rows)
        ]
        return cast("list[AsyncGenerator[StreamChunk, None]]", streams)


def served_call(
    engine: InferenceEngine, body: ChatBody | CompletionBody, session: Session | None
) -> ServedCall:
    """Prepare a request; checks what `generate` cannot: the number of choices, lengths, a forced
    call."""
    keywords, n = body.keywords(), body.n or 1
    prompts, rules, starts = _prompts(engine, body, keywords, session)
    if len(prompts) * n > MAX_ROWS:
        raise BadRequest(
            f"n: {len(prompts)} prompts with {n} choices each are {len(prompts) * n} rows; at "
            f"most {MAX_ROWS} can be asked for at once"
        )
    forced = body.tool_choice if body.tool_choice not in ("auto", "none") else None
    if forced is not None:
        keywords["json_schema"] = call_schema(forced, list(rules.tools.values()), keywords)
    seed = keywords.pop("seed", None)
    if seed is not None:
        seed = count("seed", seed, least=0, most=MAX_SEED - 1)
    return ServedCall(
        engine=engine,
        prompts=prompts,
        n=n,
        max_tokens=_max_tokens(engine, prompts, keywords.pop("max_tokens", None)),
        params={**keywords, "tools": []},
        seed=seed,
        rules=rules,
        forced=forced is not None,
        session=session,
        starts=starts,
    )


def _prompts(
    engine: InferenceEngine,
    body: ChatBody | CompletionBody,
    keywords: dict[str, Any],
    session: Session | None,
) -> tuple[list[Prompt], Rules, list[Start]]:
    """Return the prompts, the rules with the request's tools, and where its answers belong in the
    session; takes the keywords about these out of `keywords`."""
    name = "chat_template_kwargs"
    tools, given = keywords.pop("tools", []), keywords.pop(name, None)
    kwargs = template_kwargs(name, {} if given is None else given)
    rules = rules_for(as_tools(tools), kwargs, engine.config, engine.model)
    template = rules.template
    assert template is not None  # a server of texts is not served
    limits = engine.model.limits.truncating(keywords.pop("truncate_prompt", None))
    forms = normalize(body.prompts())
    if session is None or isinstance(body, CompletionBody):
        prompts = tokenize(forms, template, limits)
        return prompts, rules, [session.completion(each.token_ids) for each in prompts if session]
    messages = cast("list[Message]", forms[0])
    context = hashlib.sha256(json.dumps([tools, given]).encode()).hexdigest()
    start = session.chat(messages, context, template)
    prompts = tokenize([messages if start.ids is None else start.ids], template, limits)
    return prompts, rules, [start.rendered() if prompts[0].truncated_tokens else start]


def _max_tokens(engine: InferenceEngine, prompts: list[Prompt], asked: int | None) -> list[int]:
    """Return the most tokens of each answer: what was asked for, else `rollout.response_length`, or
    less where the context ends before."""
    limits = engine.model.limits
    if asked is not None:
        each = [count("max_tokens", asked)] * len(prompts)
        check_total_length(prompts, each, limits)
        return each
    left = [limits.total - len(prompt.token_ids) for prompt in prompts]
    if min(left, default=1) < 1:
        raise PromptTooLongError(
            f"prompt {left.index(min(left))} leaves no token for an answer within "
            f"{limits.total} (rollout.max_model_len)."
        )
    return [min(engine.config.rollout.response_length, each) for each in left]


def call_schema(
    choice: str | NamedTool, tools: Sequence[Tool], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the schema of `{"name": ..., "arguments": {...}}` for the tools that may be called."""
    for name in ("json_schema", "regex"):
        if name in keywords:
            raise BadRequest(f"tool_choice: an answer can follow one grammar only; remove {name}")
    if isinstance(choice, NamedTool):
        named = choice.function.name
        tools = [tool for tool in tools if tool.name == named]
        if not tools:
            raise BadRequest(f"tool_choice: there is no tool {shown(named)} in tools")
    if not tools:
        raise BadRequest("tool_choice: it needs tools")
    definitions: dict[str, Any] = {}
    calls = []
    for tool in tools:
        parameters = dict(tool.parameters)
        for key, value in parameters.pop("$defs", {}).items():
            if definitions.setdefault(key, value) != value:
                raise BadRequest(f"tool_choice: two tools define #/$defs/{key} differently")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": parameters},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**schema, **({"$defs": definitions} if definitions else {})}
