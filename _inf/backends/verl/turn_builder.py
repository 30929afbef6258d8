"""The ids that verl's own builder makes of a conversation: what `inf check turns` compares with.

Needs verl and torch, and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from _inf.types import Message, Tokenizer

if TYPE_CHECKING:
    from verl.tools.schemas import OpenAIFunctionToolCall
    from verl.workers.rollout.schemas import AsyncRolloutRequest


def builder_name() -> str:
    """verl's name and version. Raises `ImportError` if its builder cannot be imported."""
    import verl.workers.rollout.schemas  # noqa: F401

    return f"verl {version('verl')}"


def built_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    schemas: Sequence[Mapping[str, object]],
    answers: Mapping[int, Sequence[int]],
    spoken: Mapping[int, str],
) -> list[tuple[str, int, list[int]]]:
    """Return the ids as (kind, index, ids), in order: "prompt", "answer" or "after" an answer.

    answers: the sampled ids of each assistant's message by its index; spoken: its text outside its
    calls. Drives `AsyncRolloutRequest` as verl 0.6.1 does (`sglang_rollout.py`,
    `_async_rollout_a_request`): an answer without calls keeps its sampled ids, and one with calls
    is rendered again from its text and the parsed calls. The parser is taken to find exactly the
    message's calls. Raises what the builder, or the template in it, raises.
    """
    import torch

    places = sorted(answers)
    request = _request(tokenizer, messages[: places[0]], schemas)
    request.get_generation_prompt_ids(tokenizer)
    made = [("prompt", places[0], request.input_ids.shape[-1])]
    for index, following in zip(places, [*places[1:], len(messages)], strict=True):
        if calls := _calls(messages[index]):
            request.add_assistant_message(tokenizer, spoken[index], tool_calls=calls)
        else:
            sampled = torch.tensor([list(answers[index])], dtype=request.input_ids.dtype)
            request.add_assistant_message(tokenizer, spoken[index], content_ids=sampled)
        made.append(("answer", index, request.input_ids.shape[-1]))
        if index + 1 < len(messages):
            _add(request, tokenizer, messages[index + 1 : following])
            request.get_generation_prompt_ids(tokenizer)
            made.append(("after", index, request.input_ids.shape[-1]))
    ids, ends = request.input_ids[0].tolist(), [0, *(end for _, _, end in made)]
    starts = zip(made, ends, strict=False)
    return [(kind, index, ids[start:end]) for (kind, index, end), start in starts]


def _request(
    tokenizer: Tokenizer, messages: Sequence[Message], schemas: Sequence[Mapping[str, object]]
) -> AsyncRolloutRequest:
    from verl.tools.schemas import OpenAIFunctionToolSchema
    from verl.workers.rollout.schemas import AsyncRolloutRequest

    return AsyncRolloutRequest(
        request_id="turns",
        state="pending",
        messages=[dict(message) for message in messages],
        tool_schemas=[*map(OpenAIFunctionToolSchema.model_validate, schemas)] or None,
        reward_scores={},
        max_prompt_len=1 << 30,
        use_inference_chat_template=False,
        tokenization_sanity_check_mode="disable",
        processing_class=tokenizer,
    )


def _add(request: AsyncRolloutRequest, tokenizer: Tokenizer, messages: Sequence[Message]) -> None:
    """Add what follows an answer: the tools' results at once, then users' messages."""
    from verl.tools.schemas import ToolResponse

    roles = [message["role"] for message in messages]
    if other := [role for role in roles if role not in ("tool", "user")]:
        raise ValueError(f"it adds no message of the role {other[0]!r} after an answer")
    results = [ToolResponse(text=m["content"]) for m in messages if m["role"] == "tool"]
    if results:
        request.add_tool_response_messages(tokenizer, results)
    for message in [turn for turn in messages if turn["role"] == "user"]:
        request.add_user_message(tokenizer, message["content"])


def _calls(message: Message) -> list[OpenAIFunctionToolCall]:
    """The calls as verl's parser gives them; one whose arguments are no object is dropped there."""
    from verl.tools.schemas import OpenAIFunctionToolCall

    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [
        OpenAIFunctionToolCall(id=str(number), function=function)
        for number, function in enumerate(functions)
        if isinstance(function["arguments"], dict)
    ]
