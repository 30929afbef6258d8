"""verl's builder is driven as verl's own loop drives it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from _inf.apps.check.turns_conversation import Conversation, built_in
from _inf.apps.check.turns_paths import Paths, spoken
from _inf.backends.verl.environment import prepare
from _inf.backends.verl.turn_builder import built_ids
from _inf.config import Config
from tests.support.chat_templates import FAMILIES, Family, embedded_tokenizer, model_of

pytestmark = pytest.mark.verl


def ids_of_its_loop(paths: Paths) -> list[int]:
    """Run `_async_rollout_a_request` on an engine that answers with the conversation's answers."""
    prepare("cpu")
    from sglang.srt.entrypoints.openai.protocol import Tool as Schema
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
    from verl.workers.rollout.schemas import AsyncRolloutRequest
    from verl.workers.rollout.sglang_rollout.sglang_rollout import SGLangRollout

    meta = {"finish_reason": {"type": "stop"}}
    answers = [{"output_ids": ids, "meta_info": meta} for ids in paths.answers.values()]
    tool = SimpleNamespace(
        name="multiply",
        create=AsyncMock(return_value=("id", ToolResponse())),
        execute=AsyncMock(return_value=(ToolResponse(text="84"), 0.0, {})),
        calc_reward=AsyncMock(return_value=0.0),
        release=AsyncMock(),
    )
    asks = SimpleNamespace(
        start_interaction=AsyncMock(),
        generate_response=AsyncMock(return_value=(False, "And half of that?", 0.0, {})),
    )
    rollout = SGLangRollout.__new__(SGLangRollout)
    turns = SimpleNamespace(max_assistant_turns=len(paths.answers), max_user_turns=9)
    rollout.config = SimpleNamespace(
        multi_turn=turns,
        max_model_len=9999,
        response_length=999,
        skip_tokenizer_init=True,
        calculate_log_probs=False,
    )
    rollout._tp_rank, rollout.sampling_params = 0, {}
    rollout.processing_class = paths.tokenizer
    rollout._engine = SimpleNamespace(async_generate=AsyncMock(side_effect=answers))
    rollout._tool_map, rollout.interaction_map = {"multiply": tool}, {"asks": asks}
    schemas = [OpenAIFunctionToolSchema.model_validate(each) for each in paths.schemas]
    known = [Schema.model_validate(each.model_dump()) for each in schemas]
    rollout._function_call_parser = FunctionCallParser(known, "qwen25")
    first = paths.conversation.answers[0]
    request = AsyncRolloutRequest(
        request_id="0",
        state="pending",
        messages=[dict(message) for message in paths.conversation.messages[:first]],
        tool_schemas=schemas,
        tools_kwargs={"multiply": {}},
        interaction_kwargs={"name": "asks"},
        reward_scores={},
        max_prompt_len=9999,
        use_inference_chat_template=False,
        tokenization_sanity_check_mode="disable",
        processing_class=paths.tokenizer,
    )
    done = asyncio.run(rollout._async_rollout_a_request(request))
    return list(done.input_ids[0].tolist())


@pytest.mark.engine
@pytest.mark.parametrize("name", ["Qwen2.5", "Qwen3"])
def test_builder_makes_the_ids_of_verls_own_loop(name):
    family: Family = FAMILIES[name]
    model = model_of(embedded_tokenizer(), family)
    asked: list[Conversation] = []
    conversation = built_in(asked.append)
    assert [conversation] == asked and not conversation.left_out
    paths = Paths(model, Config(), conversation)
    texts = {index: spoken(conversation.messages[index]) for index in paths.answers}
    built = built_ids(model.tokenizer, conversation.messages, paths.schemas, paths.answers, texts)
    assert [token for _, _, ids in built for token in ids] == ids_of_its_loop(paths)
