"""litellm: as its vLLM provider and as its OpenAI one, with a tool, streamed, and by a schema."""

from __future__ import annotations

import litellm
from checks import (
    CALL,
    FACTS,
    KEY,
    QUESTION,
    SCORED,
    Color,
    calculator,
    called_once,
    close,
    equal,
    seen,
)

ASK = [{"role": "user", "content": QUESTION["prompt"]}]


def arguments(provider: str) -> dict[str, object]:
    where = {"api_base": FACTS["base_url"], "api_key": KEY}
    return {"model": f"{provider}/{FACTS['model']}", "temperature": 0, "max_retries": 0, **where}


for provider in ("hosted_vllm", "openai"):
    about = arguments(provider)
    asked = {"tools": [FACTS["tool"]], "parallel_tool_calls": False, **about}
    message = litellm.completion(messages=ASK, **asked).choices[0].message
    [call] = message.tool_calls
    equal((call.function.name, call.function.arguments), CALL)
    result = calculator("12 * 7")
    called_once()
    later = [*ASK, message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    equal(litellm.completion(messages=later, **asked).choices[0].message.content, QUESTION["text"])

    chunks = list(litellm.completion(messages=ASK, stream=True, **asked))
    joined = litellm.stream_chunk_builder(chunks, messages=ASK).choices[0]
    [call] = joined.message.tool_calls
    equal((call.function.name, call.function.arguments), CALL)
    equal(joined.finish_reason, "tool_calls")
    chunks = litellm.completion(messages=later, stream=True, **asked)
    equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), QUESTION["text"])

    whole = litellm.completion(messages=ASK, response_format=Color, **about)
    Color.model_validate_json(whole.choices[0].message.content)

about = arguments("text-completion-openai") | {"api_base": FACTS["scored_url"]}
about["model"] = f"text-completion-openai/{FACTS['scored_model']}"
settings = {"max_tokens": len(SCORED["token_ids"]), "logprobs": 1}
[choice] = litellm.text_completion(prompt=SCORED["prompt"], **settings, **about).choices
equal(choice.text, SCORED["text"])
close(choice.logprobs.token_logprobs, SCORED["logprobs"])

seen("litellm")
