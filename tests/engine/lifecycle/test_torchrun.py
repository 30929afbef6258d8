"""Two processes under torchrun, a copy of the model each: every rank serves its own share."""

import json

import pytest

from tests.support.prompts import as_ids, token_prompts
from tests.support.scripts import two_ranks
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.slow  # two ranks, each with an engine
PROMPTS = token_prompts(7, longest=60, seed=91)
CALL = {"temperature": 0, "max_tokens": 20, "n": 2}
SEEDED = {"temperature": 0.8, "seed": 11, "max_tokens": 20}

PROGRAM = """
import json, os, sys
from inf import InferenceEngine, PromptError
from transformers import AutoModelForCausalLM

asked = json.load(open(sys.argv[1]))
rank = int(os.environ["RANK"])
share = asked["prompts"][rank::2]
with InferenceEngine(model_path=asked["model"], rollout=asked["settings"]) as engine:
    said = {"rank": rank, "children": len(engine.rollout.host.children)}
    output = engine.generate(share, **asked["call"])
    said["tokens"], said["logprobs"] = output.token_ids, output.logprobs
    if rank == 1:  # a rank need not ask as often as the others
        assert len(engine.generate([])) == 0
        try:
            engine.generate("")
        except PromptError:
            said["refused"] = True
        said["seeded"] = engine.generate(share, **asked["seeded"]).token_ids
    model = AutoModelForCausalLM.from_pretrained(asked["model"])
    model.lm_head.weight.data.neg_()
    said["version"] = engine.update_weights(model)
    said["updated"] = engine.generate(share, **asked["call"]).token_ids
    with open(sys.argv[2] + str(rank), "w") as file:
        json.dump(said, file)
"""


@pytest.fixture(scope="module")
def ranks(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchrun")
    settings = {"dtype": "float32", "prompt_length": 512, "response_length": 128}
    settings |= {"enforce_eager": True, "data_parallel_size": 2}
    asked = {
        "model": str(tiny_model()),
        "settings": settings,
        "prompts": as_ids(PROMPTS),
        "call": CALL,
        "seeded": SEEDED,
    }
    (folder / "asked.json").write_text(json.dumps(asked))
    return two_ranks(PROGRAM, folder, "asked.json", "said")


def test_each_rank_gets_its_own_rows_as_one_process_would(ranks, tiny):
    alone = tiny.generate(as_ids(PROMPTS), **CALL)
    for rank, said in enumerate(ranks):
        assert said["rank"] == rank and said["children"] == 1
        mine = [row for row in alone if row.metadata["prompt_index"] % 2 == rank]
        assert said["tokens"] == [row.token_ids for row in mine]
        for ours, row in zip(said["logprobs"], mine, strict=True):
            assert ours == pytest.approx(row.logprobs, abs=1e-4)


def test_rank_may_ask_oftener_than_the_others(ranks, tiny):
    alone = tiny.generate(as_ids(PROMPTS[1::2]), **SEEDED)
    assert ranks[1]["refused"] and ranks[1]["seeded"] == alone.token_ids


def test_each_rank_takes_new_weights(ranks):
    assert [said["version"] for said in ranks] == [1, 1]
    assert all(said["updated"] != said["tokens"] for said in ranks)
