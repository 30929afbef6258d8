"""A few steps of `examples/grpo.py`, `train_agent.py` and `environment.py`, on a tiny model."""

from __future__ import annotations

import runpy
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from inf import InferenceEngine, load_run
from tests.support.pages import ROOT
from tests.support.reference import Transformers, logprobs
from tests.support.scripted_thoughts import speaking
from tests.support.tiny import tiny_model

EXAMPLES = ROOT / "examples"
PROMPT, ANSWER = [5, 6, 7], [9, 10, 11, 12]


@pytest.mark.verl
def test_three_steps_move_the_served_model_with_the_trained_one(mortal, tmp_path):
    grpo = runpy.run_path(str(EXAMPLES / "grpo.py"))
    reference = Transformers.of(tiny_model())
    model = reference.model

    def served() -> tuple[list[float], int]:
        (row,) = mortal.get_logprobs({"prompt_token_ids": PROMPT}, [ANSWER])
        return row, mortal.generate("Hi", max_tokens=1).metadata[0]["weight_version"]

    before, first = served()
    try:
        curve = grpo["train"](mortal, model, 3, 1e-2, tmp_path)
        after, last = served()
    finally:
        mortal.update_weights(Transformers.of(tiny_model()).model)  # the folder's again
    logits = reference.logits(PROMPT, ANSWER)
    expected = logprobs(logits, ANSWER)
    assert after == pytest.approx(expected, abs=1e-3)
    assert before != pytest.approx(expected, abs=1e-2)
    assert last - first == 3 and len(curve) == 3 and all(0 <= reward <= 1 for reward in curve)
    run = load_run(tmp_path)
    assert run.steps == [0, 1, 2] and run.index.unit == "tokens"
    assert run.by_step()["score_mean"].tolist() == pytest.approx(curve)
    assert all(text.startswith("<|im_start|>") for text in run.index.prompts)
    grpo["draw"](curve, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.verl
def test_adapter_that_learns_is_the_one_that_is_served():
    grpo = runpy.run_path(str(EXAMPLES / "grpo.py"))
    model = AutoModelForCausalLM.from_pretrained(tiny_model(), dtype=torch.float32)
    learning = grpo["with_lora"](model)
    rollout = {"name": "hf", "dtype": "float32", "prompt_length": 64, "response_length": 24}
    prompt: Any = {"prompt_token_ids": PROMPT}
    with InferenceEngine(model_path=str(tiny_model()), rollout=rollout) as engine:
        (base,) = engine.get_logprobs(prompt, [ANSWER])
        curve = grpo["train"](engine, learning, 3, 1e-2)
        (row,) = engine.get_logprobs(prompt, [ANSWER], adapter=grpo["ADAPTER"])
        assert engine.get_logprobs(prompt, [ANSWER]) == [base]  # its own weights stay
        assert engine.generate("Hi", adapter=grpo["ADAPTER"])[0].weight_version == 3
    merged = Transformers(learning.merge_and_unload().eval(), frozenset())
    logits = merged.logits(PROMPT, ANSWER)
    assert row == pytest.approx(logprobs(logits, ANSWER), abs=1e-4)
    assert row != pytest.approx(base, abs=1e-2) and len(curve) == 3


@pytest.mark.verl
@pytest.mark.parametrize(
    ("example", "tasks"), [("train_agent.py", "PRICES"), ("environment.py", "NUMBERS")]
)
def test_two_steps_train_on_what_was_sampled(example, tasks, mortal):
    program = runpy.run_path(str(EXAMPLES / example))
    model = AutoModelForCausalLM.from_pretrained(tiny_model(), dtype=torch.float32)
    seen = []

    def spy(trained: torch.nn.Module, optimizer: object, batch: object, worth: object) -> None:
        """Any reward will do: a random model gets none."""
        seen.append(batch)
        mask = batch.batch["response_mask"]
        learn(trained, optimizer, batch, torch.randn(len(mask), 1).expand(mask.shape))

    scope = program["train"].__globals__
    if "PROMPT" in scope:
        scope["PROMPT"] = scope["PROMPT"][-1:]  # this tokenizer has more ids for it than fit
    grpo = scope["GRPO"]
    learn, grpo["learn"] = grpo["learn"], spy
    try:
        curve = program["train"](mortal, model, 2, 1e-3)
    finally:
        mortal.update_weights(AutoModelForCausalLM.from_pretrained(tiny_model()))  # the folder's
    rows = len(program[tasks]) * program["SAMPLES"]
    assert len(curve) == 2 and all(0 <= reward <= 1 for reward in curve)
    assert [len(batch) for batch in seen] == [rows, rows]
    versions = [set(batch.non_tensor_batch["weight_version"]) for batch in seen]
    assert [len(each) for each in versions] == [1, 1] and versions[0] != versions[1]
    assert len(set(seen[0].non_tensor_batch["uid"])) == len(program[tasks])


@pytest.mark.slow
@pytest.mark.verl
def test_rows_of_older_policies_are_weighted_by_their_ratio(mortal):
    script = runpy.run_path(str(EXAMPLES / "grpo_async.py"))
    reference = Transformers.of(tiny_model())
    try:
        run = script["train"](mortal, reference.model, 3, 1e-2, overlap=True)
        (row,) = mortal.get_logprobs({"prompt_token_ids": PROMPT}, [ANSWER])
    finally:
        mortal.update_weights(Transformers.of(tiny_model()).model)  # the folder's again
    logits = reference.logits(PROMPT, ANSWER)
    assert row == pytest.approx(logprobs(logits, ANSWER, 1.0), abs=1e-3)
    assert len(run.curve) == 3 and 0 <= run.mixed <= 1


# `train_agent.py`: an agent and its sub-agent are one rollout, by scripted answers.


CALL = '<tool_call>\n{"name": "price", "arguments": {"item": "pen"}}\n</tool_call>'


@pytest.fixture(scope="module")
def program():
    found = runpy.run_path(str(ROOT / "examples" / "train_agent.py"))
    found["rollouts"].__globals__.update(PRICES={"pen": 3}, SAMPLES=1, MAX_TOKENS=200)
    return found


def rollouts(program: dict[str, Any], engine: InferenceEngine) -> tuple[Any, torch.Tensor]:
    with engine.serve() as server:
        batch, rewards = program["rollouts"](engine, server)
        return batch, rewards


@pytest.mark.verl
@pytest.mark.parametrize(
    ("said", "reward", "rows"),
    [
        ((CALL, "3", "A pen costs 3 dollars."), 1.0, 2),
        ((CALL, "4", "A pen costs 4 dollars."), 0.5, 2),
        (("It costs 3 dollars.",), 0.0, 1),
    ],
)
def test_agent_and_its_sub_agent_are_rows_of_one_rollout(program, said, reward, rows):
    with speaking() as (speaker, engine):
        speaker.says(*said)
        batch, rewards = rollouts(program, engine)
    assert rewards.tolist() == [reward] * rows
    columns = batch.non_tensor_batch
    assert [*columns["uid"]] == ["pen"] * rows and len({*columns["rollout"]}) == 1
    masked = batch.batch["response_mask"].sum(dim=1)
    assert masked.tolist()[-1] <= masked.tolist()[0]


@pytest.mark.verl
def test_advantages_count_each_rollout_once(program):
    """By hand: three rollouts of one task, of rewards 1, 0 and 0, the first of three rows. Their
    mean is 1/3 and their spread the square root of 1/3, whatever the number of rows."""
    from verl import DataProto

    names, mask = ["a", "a", "a", "b", "c"], torch.tensor([[1, 0], [1, 1], [1, 0], [1, 1], [0, 1]])
    given = {"rollout": names, "uid": ["task"] * 5}
    batch: Any = DataProto.from_dict(tensors={"response_mask": mask}, non_tensors=given)
    found = program["advantages"](batch, torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0]))
    by_hand = torch.tensor([2 / 3, 2 / 3, 2 / 3, -1 / 3, -1 / 3]) * 3**0.5
    torch.testing.assert_close(found, by_hand[:, None] * mask, atol=1e-4, rtol=0)
