"""What the server answers about its tokenizer, in vLLM's form (main at 030ea52,
`entrypoints/serve/tokenize/protocol.py`)."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from pydantic import model_validator

from _inf.apps.openai_requests import RequestBody, read, with_keywords
from _inf.apps.rendered_call import shown_rules
from _inf.apps.serve.message_bodies import CountBody
from _inf.errors import ConfigError
from _inf.parts.images.clients import of_request
from _inf.request.keywords import KEYWORDS, OF_CHATS
from _inf.request.prompts import normalize
from _inf.response.decode import decoded_text
from _inf.types import JSON, Message, Prompt

if TYPE_CHECKING:
    from _inf.parts.part import Readers
    from inf import InferenceEngine

SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template", "model_max_length")


@with_keywords({name: name for name in OF_CHATS if KEYWORDS[name].kind})
class TokenizeBody(RequestBody):
    """prompt: text, or in its place messages for the chat template. add_special_tokens: to text,
    such as a BOS; the template writes its own."""

    model: str | None = None
    prompt: str | None = None
    messages: list[JSON] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _refuse_two_prompts(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ConfigError.of("prompt", "give either prompt or messages")
        if self.prompt is not None:
            of_chats = self.of_chats | {"add_generation_prompt": not self.add_generation_prompt}
            for name, value in of_chats.items():
                if value is not False:
                    raise ConfigError.of(name, "only messages have it")
        return self

    @property
    def of_chats(self) -> JSON:
        """Return `generate`'s keywords, which only messages have."""
        return {name: value for name, value in self if name in OF_CHATS and value is not None}


class DetokenizeBody(RequestBody):
    model: str | None = None
    tokens: list[int]


def tokenized(engine: InferenceEngine, body: TokenizeBody) -> JSON:
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        ids = engine.tokenizer(body.prompt, add_special_tokens=special)["input_ids"]
    else:
        ids = of_request([body.messages], engine.config, partial(_of_chat, engine, body))
    texts = engine.tokenizer.convert_ids_to_tokens(ids) if body.return_token_strs else None
    limit = engine.model.limits.total
    return {"tokens": ids, "count": len(ids), "max_model_len": limit, "token_strs": texts}


def _of_chat(engine: InferenceEngine, body: TokenizeBody, read: Readers) -> list[int]:
    [form] = normalize([body.messages], read)
    asked = {"tools": [], "add_generation_prompt": body.add_generation_prompt, **body.of_chats}
    rules = shown_rules(engine, asked)
    assert rules.template is not None  # an engine without a tokenizer is not served
    if body.add_special_tokens and engine.tokenizer("")["input_ids"]:
        raise ConfigError.of("add_special_tokens", "the chat template writes its own")
    if isinstance(form, Prompt):
        every = replace(engine.model.limits, prompt=sys.maxsize)
        return form.rendered(rules.template, every).token_ids
    return rules.template.prompt(cast("list[Message]", form), 0)


def counted(engine: InferenceEngine, sent: CountBody) -> JSON:
    """The size of the prompt that Messages say."""
    body = read(TokenizeBody, sent.asked(str(engine.tokenizer.chat_template)))
    return {"input_tokens": tokenized(engine, body)["count"]}


def detokenized(engine: InferenceEngine, body: DetokenizeBody) -> JSON:
    """The text of token ids, with special tokens."""
    vocabulary = engine.model.limits.vocabulary
    for index, token in enumerate(body.tokens):
        if not 0 <= token < vocabulary:
            reason = f"{token} is outside the model's vocabulary of {vocabulary} tokens"
            raise ConfigError.of(f"tokens[{index}]", reason)
    return {"prompt": decoded_text(body.tokens, engine.tokenizer, skip_special_tokens=False)}


def tokenizer_info(engine: InferenceEngine) -> JSON:
    tokenizer = engine.tokenizer
    names = {name: getattr(tokenizer, name, None) for name in SPECIAL}
    return {"tokenizer_class": type(tokenizer).__name__, **names}
