"""A request as it is sent to the engine: a `RenderedCall` within a server's limits, whose prompts
begin with the ids that a session has recorded."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from _inf.apps.openai_requests import UnknownKeyError
from _inf.apps.rendered_call import RenderedCall, is_chat, rendered_call
from _inf.apps.serve.sessions import Start
from _inf.errors import ConfigError
from _inf.parts.images.clients import of_request
from _inf.request.prompts import Form, LaterTurn
from _inf.request.tool_template import ToolTemplate
from _inf.types import JSON, Limits, Message, Prompt

if TYPE_CHECKING:
    from _inf.apps.serve.choice import Choice
    from _inf.apps.serve.sessions import Session
    from _inf.parts.part import Readers
    from inf import InferenceEngine

MAX_ROWS = 1024  # of a request: prompts times choices
MAX_SCORED = 4_000_000  # log probs of prompts in a response, which are held as Python's numbers
EFFORT = "reasoning_effort"
# What a prompt shows in addition to its messages.
SHOWN = ("tools", "chat_template_kwargs", "add_generation_prompt")


@dataclasses.dataclass(frozen=True)
class ServedCall(RenderedCall):
    """A checked request; its choices are the call's rows. session: the request's, if it has one;
    starts: where the answers of each prompt belong in it."""

    session: Session | None
    starts: Sequence[Start]

    def record(self, choices: Sequence[Choice]) -> None:
        """Add the finished choices to the session, if there is one."""
        if self.session is not None:
            for choice in choices:
                start = self.starts[choice.index // self.n]
                self.session.add(start, self.prompt_ids(choice.index), choice)


def served_call(
    engine: InferenceEngine, body: Any, adapter: str | None, session: Session | None
) -> ServedCall:
    """Prepare a request, as `rendered_call` does. A `top_k` of 0 is all tokens, as -1 is, and a
    `seed` of -1 is none, as in vLLM."""
    keywords = _keywords(engine, body, adapter, session)
    starts: list[Start] = []

    def recorded(forms: Sequence[Form], template: ToolTemplate) -> Sequence[Form]:
        assert session is not None
        [form], limits = forms[:1], engine.model.limits
        if not (is_chat(form) or isinstance(form, Prompt)):
            return [_turn(form, limits.prompt, session) for form in forms]
        messages = form.messages if isinstance(form, Prompt) else form
        shown = json.dumps([keywords.get(name) or None for name in SHOWN])
        context = hashlib.sha256(shown.encode()).hexdigest()
        start = session.chat(cast("list[Message]", messages), context, template)
        later = None
        if start.ids is not None and (later := _later(form, start, template, limits)) is None:
            start = dataclasses.replace(start, ids=None, answer=None)
        starts.append(start)
        return forms if later is None else [later]

    def rendered(read: Readers) -> RenderedCall:
        return rendered_call(
            engine,
            body.prompts(),
            keywords,
            body.tool_choice,
            parallel=body.parallel_tool_calls,
            fits=body.fits,
            place=recorded if session else None,
            read=read,
        )

    call = of_request(body.prompts(), engine.config, rendered)
    _check_size(call)
    if session is not None and not starts:
        starts = [session.completion(ids) for ids in call.prompts]
    return ServedCall(**vars(call), session=session, starts=starts)


def _later(form: Form, start: Start, template: ToolTemplate, limits: Limits) -> Form | None:
    """A conversation that continues `start`, by its recorded ids. None if its first prompt, which
    is rendered again for what it has besides text, is not the recorded one."""
    ids = start.ids or []
    if not isinstance(form, Prompt):
        return LaterTurn(ids)
    first = dataclasses.replace(form, messages=(form.messages or [])[: start.first])
    rendered = first.rendered(template, limits)
    same = rendered.token_ids == ids[: len(rendered.token_ids)]
    return dataclasses.replace(rendered, token_ids=ids) if same else None


def _keywords(
    engine: InferenceEngine, body: Any, adapter: str | None, session: Session | None
) -> JSON:
    keywords: JSON = body.keywords()
    if adapter is not None:
        keywords["adapter"] = adapter
    if session is not None:
        most = engine.config.rollout.response_length
        keywords = session.keywords(keywords, most, len(body.prompts()))
    if keywords.get("top_k") == 0:
        keywords["top_k"] = -1
    if keywords.get("seed") == -1:
        del keywords["seed"]
    given = keywords.get("chat_template_kwargs", {})
    if EFFORT in given and EFFORT not in str(engine.tokenizer.chat_template):
        raise UnknownKeyError.of(EFFORT, "the model's chat template does not read it; leave it out")
    return keywords


def _turn(form: Form, prompt_length: int, session: Session) -> Form:
    """Mark a long prompt of ids that continues an answer of the session."""
    if not isinstance(form, list) or len(form) <= prompt_length:
        return form
    ids = cast("list[int]", form)
    return LaterTurn(ids) if session.completion(ids).answer else ids


def _check_size(call: RenderedCall) -> None:
    if call.rows > MAX_ROWS:
        reason = f"{len(call.prompts)} prompts with {call.n} choices each are {call.rows} rows"
        raise ConfigError.of("n", f"{reason}; at most {MAX_ROWS} can be asked for at once")
    tokens = call.n * sum(map(len, call.prompts))
    if (scored := int(call.params.get("prompt_logprobs") or 0) * tokens) > MAX_SCORED:
        reason = f"{tokens} prompt tokens have {scored} likeliest tokens in all"
        raise ConfigError.of("prompt_logprobs", f"{reason}; at most {MAX_SCORED} can be asked for")
