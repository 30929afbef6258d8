"""Rows in the form of OpenAI's chat completions: messages, calls, log probs and token counts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from _inf.parts.found import ROW_FIELDS
from _inf.parts.reasoning import reasoning_tokens
from _inf.response.json_values import json_value
from _inf.response.row import GenerationRow
from _inf.response.streaming import StreamChunk
from _inf.response.token_texts import TokenText, TokenTexts
from _inf.types import JSON, RequestOutput, ToolCall


def assistant(
    content: str, calls: Sequence[ToolCall], ids: Sequence[str], thought: str = ""
) -> JSON:
    """Return the assistant's message; ids: of its calls. A thought has the names that clients read:
    vLLM's and OpenRouter's, and the older one of DeepSeek, SGLang and vLLM."""
    thoughts = dict.fromkeys(("reasoning", "reasoning_content"), thought) if thought else {}
    if not calls:
        return {"role": "assistant", "content": content, **thoughts}
    named = []
    for call, call_id in zip(calls, ids, strict=True):
        function = {"name": call.name, "arguments": _arguments(call)}
        named.append({"id": call_id, "type": "function", "function": function})
    return {"role": "assistant", "content": content or None, **thoughts, "tool_calls": named}


def _arguments(call: ToolCall) -> str:
    """A call's arguments as JSON; its text if JSON has no such value, as of one with an error."""
    try:
        return call.raw_text if call.error else json.dumps(call.arguments, allow_nan=False)
    except (ValueError, RecursionError):  # an infinite number, or nested too deeply to be written
        return call.raw_text


def of_parts(row: GenerationRow) -> JSON:
    """What parts add to a row, for its choice; OpenAI's form has other places for log probs."""
    fields = {name: value for part in row.parts for name, value in part.fields.items()}
    return {name: json_value(v) for name, v in fields.items() if ROW_FIELDS[name].in_choices}


def token_logprobs(
    row: GenerationRow | StreamChunk,
    texts: TokenTexts,
    likeliest: int | None,
    *,
    as_ids: bool = False,
) -> JSON | None:
    """Return an entry for every generated token, including the stop token. texts: of the answer,
    which it adds the tokens to; `likeliest` as in `ChatRequest`, as_ids as in `token_name`. None
    if a server gives no log probs by our definition."""
    if likeliest is None or row.logprobs is None or any(map(math.isnan, row.logprobs)):
        return None
    places = texts.add(row.token_ids or [])
    tops = row.top_logprobs or [{} for _ in places]
    content = []
    for place, logprob, top in zip(places, row.logprobs, tops, strict=True):
        named = [
            _token(texts.other(token, place), value, as_ids=as_ids)
            for token, value in list(top.items())[:likeliest]
        ]
        content.append({**_token(place, logprob, as_ids=as_ids), "top_logprobs": named})
    return {"content": content, "refusal": None}


def token_name(token: TokenText, *, as_ids: bool) -> str:
    """Return how log probs name a token: by its text, or by its id in vLLM's form
    (`return_tokens_as_token_ids`), because texts are not unique."""
    return f"token_id:{token.token}" if as_ids else token.text


def _token(token: TokenText, logprob: float, *, as_ids: bool) -> JSON:
    name = token_name(token, as_ids=as_ids)
    entry = {"token": name, "logprob": logprob, "bytes": token.bytes}
    # Newer releases of vLLM have the number too.
    return entry | ({"token_id": token.token} if as_ids else {})


def usage(rows: Sequence[GenerationRow | RequestOutput], n: int) -> JSON:
    """Return the token counts of `n` rows per prompt, which counts once for all of them."""
    prompt = sum(row.prompt_tokens for row in rows[::n])
    completion = sum(row.completion_tokens for row in rows)
    thoughts = sum(map(reasoning_tokens, rows))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(row.cached_tokens for row in rows[::n])},
        **({"completion_tokens_details": {"reasoning_tokens": thoughts}} if thoughts else {}),
    }
