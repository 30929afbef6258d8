"""OpenAI's chat completions: a request's keys to `generate`'s keywords, its rows to choices.

In: a request as JSON has it; the rows of its answer. Out: keywords, or a `BadRequest` that names
the key; plain JSON. The values of keywords are `generate`'s to check.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from _inf.errors import did_you_mean, shown
from _inf.response.output import GenerationOutput, GenerationRow

# OpenAI's names, and what SGLang's and vLLM's servers take beside them.
PARAMS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "do_sample", "seed", "n")},
    **{name: name for name in ("max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos")},
    **{name: name for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")},
    **{name: name for name in ("logit_bias", "regex", "json_schema", "skip_special_tokens")},
    **{name: name for name in ("chat_template_kwargs", "truncate_prompt")},
    "max_completion_tokens": "max_tokens",
}
READ = ("tools", "tool_choice", "response_format", "logprobs", "top_logprobs")
MOST_TOP_LOGPROBS = 20  # OpenAI's
# They change no answer.
LABELS = (
    *("model", "user", "metadata", "store", "service_tier"),
    *("safety_identifier", "prompt_cache_key"),
)
# What is not offered, and the values that ask for nothing; null does too.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "stream": (False,),
    "stream_options": (),
    "parallel_tool_calls": (True,),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    **{name: () for name in ("audio", "prediction", "reasoning_effort")},
    **{name: () for name in ("verbosity", "web_search_options")},
}


class BadRequest(ValueError):
    """What is wrong with a request; it begins with the key."""


def keywords(request: Mapping[str, Any], others: Collection[str]) -> dict[str, Any]:
    """`generate`'s keywords for the keys of `request`; `others` are read elsewhere."""
    known = (*others, *PARAMS, *READ, *NEUTRAL)
    params: dict[str, Any] = {}
    for name, value in request.items():
        if name not in known:
            raise BadRequest(f"{name}: unknown{did_you_mean(name, known)}")
        if value is None:
            continue
        if name in NEUTRAL and value not in NEUTRAL[name]:
            only = "".join(f"; only {json.dumps(each)}" for each in NEUTRAL[name])
            raise BadRequest(f"{name}: {shown(value)} is not offered here{only}")
        if name in PARAMS:
            if isinstance(value, list) and not name.startswith("stop"):
                raise BadRequest(f"{name}: {shown(value)} is a list")
            if PARAMS[name] in params:
                raise BadRequest("max_completion_tokens: max_tokens is there too; drop one of them")
            params[PARAMS[name]] = value
    if not isinstance(request.get("logprobs"), bool | None):
        raise BadRequest(f"logprobs: {shown(request['logprobs'])} is neither true nor false")
    return {**params, **_top_logprobs(request), **_tools(request), **_grammar(request, params)}


def _top_logprobs(request: Mapping[str, Any]) -> dict[str, Any]:
    most = request.get("top_logprobs")
    if not most and not isinstance(most, bool):
        return {}
    if isinstance(most, bool) or not isinstance(most, int) or not 0 < most <= MOST_TOP_LOGPROBS:
        raise BadRequest(f"top_logprobs: {shown(most)} is no int from 0 to {MOST_TOP_LOGPROBS}")
    if not request.get("logprobs"):
        raise BadRequest('top_logprobs: it goes with "logprobs": true')
    return {"logprobs": most}


def _tools(request: Mapping[str, Any]) -> dict[str, Any]:
    """Schemas: their calls are left to the caller."""
    choice, tools = request.get("tool_choice"), request.get("tools")
    if choice not in (None, "auto", "none"):
        raise BadRequest(f'tool_choice: {shown(choice)} is not offered here; only "auto" or "none"')
    if choice == "none":
        return {"tools": []}
    return {} if tools is None else {"tools": tools}


def _grammar(request: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    match request.get("response_format"):
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            schema: Any = {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            pass
        case wanted:
            raise BadRequest(
                f"response_format: {shown(wanted)} is none of text, json_object and "
                '{"type": "json_schema", "json_schema": {"schema": ...}}'
            )
    if "json_schema" in params:
        raise BadRequest("response_format: json_schema is there too; drop one of them")
    return {"json_schema": schema}


def message(row: GenerationRow) -> dict[str, Any]:
    """The assistant's, with the tool calls that are left to the caller."""
    if not row.tool_calls:
        return {"role": "assistant", "content": row.completion}
    content = row.messages[-1]["content"] if row.messages else row.completion
    calls = [
        {
            "name": call.name,
            "arguments": call.raw_text if call.error else json.dumps(call.arguments),
        }
        for call in row.tool_calls
    ]
    return {
        "role": "assistant",
        "content": content or None,
        "tool_calls": [
            {"id": f"call_{place}", "type": "function", "function": call}
            for place, call in enumerate(calls)
        ],
    }


def choices(
    output: GenerationOutput, tokenizer: Any, *, likeliest: int | None
) -> list[dict[str, Any]]:
    """`likeliest`: how many tokens to tell of each place beside its own; None: no log probs."""
    return [
        {
            "index": index,
            "message": message(row),
            "finish_reason": row.metadata["finish_reason"],
            "logprobs": None if likeliest is None else _logprobs(row, tokenizer, likeliest),
        }
        for index, row in enumerate(output)
    ]


def _logprobs(row: GenerationRow, tokenizer: Any, likeliest: int) -> dict[str, Any]:
    """An entry for every generated token, the one that it stopped at included."""
    tops = row.top_logprobs or [{} for _ in row.token_ids]
    content = [
        {
            **_token(token, logprob, tokenizer),
            "top_logprobs": [_token(*each, tokenizer) for each in list(top.items())[:likeliest]],
        }
        for token, logprob, top in zip(row.token_ids, row.logprobs, tops, strict=True)
    ]
    return {"content": content, "refusal": None}


def _token(token: int, logprob: float, tokenizer: Any) -> dict[str, Any]:
    text = tokenizer.decode([token], clean_up_tokenization_spaces=False)
    part = "\N{REPLACEMENT CHARACTER}" in text  # of a character
    return {"token": text, "logprob": logprob, "bytes": None if part else list(text.encode())}


def usage(output: GenerationOutput) -> dict[str, Any]:
    """The prompt counts once, however many answers it got."""
    prompt = output.metadata[0]["prompt_tokens"]
    completion = sum(row["completion_tokens"] for row in output.metadata)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": output.metadata[0]["cached_tokens"]},
    }
