"""A call whose prompts are rendered before `generate` gets them as token ids.

For `generate` tools make a row of several turns. Here the model is only shown them, and the caller
runs its calls; a response can say its prompt's ids, and a session can put recorded ids in their
place. The number of rows, their seeds and everything else about sampling are `generate`'s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from _inf.apps.openai_requests import NamedTool
from _inf.apps.tool_choice import call_schema, check_strict, forces
from _inf.conversation.rules import Rules, rules_for
from _inf.errors import ConfigError
from _inf.parts.found import readers
from _inf.parts.typed import GenerateParams
from _inf.request.keywords import KEYWORDS, OF_CHATS
from _inf.request.prompts import Form, LaterTurn, normalize
from _inf.request.sampling import Sampling
from _inf.request.seeds import prompt_seed, sample_seed
from _inf.request.tokenize import tokenize
from _inf.request.tool_template import ToolTemplate
from _inf.response.output import GenerationOutput
from _inf.response.streaming import StreamChunk
from _inf.runtime import quiet
from _inf.tools.definition import shown_tools
from _inf.types import JSON, Prompt, Side

if TYPE_CHECKING:
    from _inf.parts.part import Readers
    from inf import InferenceEngine

Place: TypeAlias = Callable[[Sequence[Form], ToolTemplate], Sequence[Form]]


@dataclasses.dataclass(frozen=True)
class RenderedCall:
    """A checked call. Its rows are prompt-major, `n` for each prompt.

    rendered: the prompts as ids within the limits, with what their content asks of parts. params:
    `generate`'s keywords, with `n`, `seed` and a list of `max_tokens`. rules: the tools, and how
    their calls are read. forced: the grammar makes the answer the JSON text of a call. one_call:
    only the first call of an answer is kept.
    """

    engine: InferenceEngine
    rendered: Sequence[Prompt]
    params: Mapping[str, Any]
    rules: Rules
    forced: bool
    one_call: bool

    @property
    def n(self) -> int:
        return int(self.params["n"])

    @property
    def prompts(self) -> list[list[int]]:
        return [prompt.token_ids for prompt in self.rendered]

    @property
    def rows(self) -> int:
        return len(self.rendered) * self.n

    def prompt_ids(self, row: int) -> list[int]:
        return self.rendered[row // self.n].token_ids

    async def answer(self) -> GenerationOutput:
        """Answer all rows in one call; cancelling it aborts them in the engine."""
        prompts = [*map(_sent, self.rendered)]
        with quiet.no_warnings("n: "):  # the client may want equal rows
            return await self.engine.agenerate(prompts, **cast(GenerateParams, self.params))

    def streams(self) -> list[AsyncGenerator[StreamChunk, None]]:
        """Return one stream per row; each is sent when its first chunk is read."""
        streams: list[Any] = []
        for row in range(self.rows):
            index, sample = divmod(row, self.n)
            prompt = _sent(self.rendered[index])
            seed = sample_seed(prompt_seed(self.params["seed"], index), sample)
            of_row = {"n": 1, "seed": seed, "max_tokens": self.params["max_tokens"][index]}
            params = cast(GenerateParams, {**self.params, **of_row})
            streams.append(self.engine.astream(prompt, **params))
        return streams


def _sent(prompt: Prompt) -> object:
    """What `generate` gets. Ids that a session has recorded may be longer than `prompt_length`."""
    return prompt if prompt.parts else {"prompt_token_ids": LaterTurn(prompt.token_ids)}


def is_chat(form: Form) -> bool:
    return isinstance(form, list) and bool(form) and isinstance(form[0], Mapping)


def _marked(form: Any) -> Form:
    """Mark a conversation with an answer or a tool's result: `prompt_length` bounds first turns
    only."""
    later = is_chat(form) and any(message["role"] in ("assistant", "tool") for message in form)
    return LaterTurn(form) if later else cast(Form, form)


def rendered_call(
    engine: InferenceEngine,
    prompts: object,
    keywords: Mapping[str, Any],
    tool_choice: str | NamedTool | None,
    *,
    parallel: bool | None = None,
    fits: bool = False,
    place: Place | None = None,
    read: Readers | None = None,
) -> RenderedCall:
    """Prepare a call. keywords: `generate`'s, and `add_generation_prompt`; tools are schemas.
    tool_choice: "none" shows the tools, and finds no calls. parallel: whether an answer may have
    several calls; None: one that is forced has not. fits: `max_tokens` above the room that the
    prompt leaves are cut to it. place: puts recorded ids in the place of messages. read: what
    reads the messages; None: what reads `generate`'s. Raises as `generate` does."""
    params = {"n": 1, "seed": None, **keywords, "progress": False}
    for name in ("n", "seed", "max_tokens"):
        if params.get(name) is not None:
            params[name] = KEYWORDS[name].checked(name, params[name])
    rules = shown_rules(engine, params)
    template = cast(ToolTemplate, rules.template)
    most, side = params.pop("max_tokens", None), params.pop("truncate_prompt", None)
    forms = normalize(prompts, read or readers(engine.config))
    forms = [*forms] if place is None else [*place(forms, template)]
    room = None if fits else most
    rendered = _tokenized(engine, [*map(_marked, forms)], template, room, side)
    if forced := forces(tool_choice):
        several = parallel is True and tool_choice == "required"
        params["json_schema"] = call_schema(tool_choice, rules.tools, params, several=several)
    elif tool_choice == "none":
        rules = dataclasses.replace(rules, tools={})
    else:
        check_strict(rules.tools)
    default, total = engine.config.rollout.response_length, engine.model.limits.total
    default = most if fits and most else default
    params["max_tokens"] = [
        room or min(default, total - len(prompt.token_ids)) for prompt in rendered
    ]
    # Messages may have images, which are sent as the model's inputs.
    rendered = [dataclasses.replace(prompt, messages=None) for prompt in rendered]
    return RenderedCall(engine, rendered, params | {"tools": []}, rules, forced, parallel is False)


def shown_rules(engine: InferenceEngine, params: JSON) -> Rules:
    """Return the rules with the call's tools; takes the keywords of its template out of
    `params`."""
    tools = shown_tools(params.pop("tools", []))
    names = [name for name in OF_CHATS if name in params]
    given = {name: KEYWORDS[name].checked(name, params.pop(name)) for name in names}
    kwargs = Sampling(n=1, params=[], **given).template_kwargs
    if not params.pop("add_generation_prompt", True):
        kwargs = {**kwargs, "add_generation_prompt": False}
    rules = rules_for(tools, kwargs, engine.config, engine.model)
    if rules.template is None:
        raise ConfigError.of("tool_choice", "the server works with text; set tokenizer_path")
    return rules


def _tokenized(
    engine: InferenceEngine,
    forms: Sequence[Form],
    template: ToolTemplate,
    max_tokens: int | None,
    side: Side | None,
) -> list[Prompt]:
    """Return the prompts as ids, which leave room for `max_tokens`."""
    limits = engine.model.limits
    if max_tokens is None and (side or limits.truncate):  # a prompt that is cut leaves this room
        max_tokens = min(engine.config.rollout.response_length, limits.total - limits.prompt)
    most = [max_tokens or 1] * len(forms)
    return tokenize(forms, template, limits, most, side)
