"""TRL's `VLLMClient`: answers, chats with tools, and log probs of given sequences.

TRL is installed without PyTorch and vLLM. Its client imports the first only for the weights that it
sends, and needs to find the second only for its own server: both are stood in for here.
"""

from __future__ import annotations

import sys
from types import ModuleType

from checks import FACTS, GREETING, QUESTION, SCORED, calculator, calls, close, equal, seen
from transformers.utils import get_json_schema  # noqa: F401  (it looks for PyTorch: before this)

torch = ModuleType("torch")
torch.nn = ModuleType("torch.nn")
torch.device = torch.Tensor = torch.nn.Module = type("Unused", (), {})  # in annotations
sys.modules |= {"torch": torch, "torch.nn": torch.nn}

from trl.generation import vllm_client  # noqa: E402

vllm_client.is_vllm_available = lambda: True


def generated() -> None:
    client = vllm_client.VLLMClient(base_url=FACTS["scored_url"].removesuffix("/v1"))
    settings = {"temperature": 0, "max_tokens": len(SCORED["token_ids"])}
    for prompt in (SCORED["prompt_ids"], SCORED["prompt"]):
        found = client.generate([prompt, prompt], **settings)
        equal(found["prompt_ids"], [SCORED["prompt_ids"]] * 2)
        equal(found["completion_ids"], [SCORED["token_ids"]] * 2)
        equal(found["logprob_token_ids"], [[[each] for each in SCORED["token_ids"]]] * 2)
        for row in found["logprobs"]:
            close([value for [value] in row], SCORED["logprobs"])
    sampled = client.generate([SCORED["prompt_ids"]], n=3, logprobs=4, max_tokens=6)  # TRL's own
    equal(len(sampled["completion_ids"]), 3)
    assert all(len(each) in (4, 5) for row in sampled["logprobs"] for each in row)
    regex = {"structured_outputs_regex": FACTS["regex"]}
    found = client.generate([SCORED["prompt_ids"]], temperature=0, **regex)
    equal(found["completion_ids"], [FACTS["of_regex"]])

    sequence = SCORED["prompt_ids"] + SCORED["token_ids"]
    scored = client.get_sequence_logprobs(
        [sequence, sequence], [len(SCORED["prompt_ids"])] * 2, top_logprobs=5, chunk_size=1
    )
    equal(scored["actual_token_ids"], [[[each] for each in SCORED["token_ids"]]] * 2)
    for row in scored["actual_logprobs"]:
        close([value for [value] in row], SCORED["logprobs"])
    likeliest = [[each[0] for each in row] for row in scored["logprob_token_ids"]]
    equal(likeliest, [SCORED["token_ids"]] * 2)  # they were sampled greedily
    assert all(len(each) == 5 for row in scored["logprobs"] for each in row)
    too_long = [7] * (FACTS["prompt_length"] + 1)  # of the prompt and the answer together
    try:
        client.get_sequence_logprobs([too_long], [1])
    except Exception as refusal:
        assert "400" in str(refusal) and "context_length_exceeded" in str(refusal), refusal
    else:
        raise AssertionError("a sequence above prompt_length was scored")


def chatted() -> None:
    client = vllm_client.VLLMClient(base_url=FACTS["base_url"].removesuffix("/v1"))
    conversations = [[{"role": "user", "content": each["prompt"]}] for each in (QUESTION, GREETING)]
    found = client.chat(conversations, tools=[calculator], temperature=0, max_tokens=64)
    equal(found["prompt_ids"][0], QUESTION["prompt_ids"])
    equal(found["completion_ids"][0], QUESTION["token_ids"])
    close([value for [value] in found["logprobs"][0]], QUESTION["logprobs"])
    found = client.chat(conversations, temperature=0, max_tokens=64)
    equal(found["prompt_ids"][1], GREETING["prompt_ids"])
    equal(found["completion_ids"][1], GREETING["token_ids"])
    equal(calls, [])  # the client's caller runs the tools


generated()
chatted()
seen("trl")
