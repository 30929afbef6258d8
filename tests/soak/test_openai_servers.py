"""`rollout.name: openai` on real servers, which know nothing of this library, against Transformers:
SGLang's own, and a vLLM in an environment of its own."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config

from inf import ConfigError, InferenceEngine
from tests.support.installed import installed, ran
from tests.support.prompts import as_ids, token_prompts
from tests.support.reference import WITHIN, Transformers, assert_greedy, assert_same_rows
from tests.support.refusals import refused
from tests.support.servers import serving
from tests.support.tiny import VOCABULARY, save_tiny
from tests.support.vllm_fields import vllm_fields

pytestmark = pytest.mark.soak

OF_SGLANG = pytest.param("sglang", marks=pytest.mark.verl)  # it starts with all of its imports
SGLANG_ONLY = pytest.mark.parametrize("server", [OF_SGLANG], indirect=True)
VLLM_ONLY = pytest.mark.parametrize("server", ["vllm"], indirect=True)
PROMPTS = token_prompts(8, 200, seed=41)
IDS = as_ids(PROMPTS)
GREEDY = {"temperature": 0, "max_tokens": 32}
UNSCORED = "presence_penalty frequency_penalty repetition_penalty logit_bias min_tokens"
UNSCORED += " allowed_token_ids bad_words regex"  # vLLM's log probs are of other logits then
OF_BOTH = [
    *({}, {"stop": "e"}, {"ignore_eos": True}, {"min_tokens": 24}),
    {"presence_penalty": 1.2, "frequency_penalty": 0.6},
    {"logit_bias": {5: 8.0, 77: -30.0}},
]
OF_VLLM = [
    {"repetition_penalty": 1.3},
    {"logit_bias": {5: 8.0, 77: -30.0}, "repetition_penalty": 0.8},
    {"logit_bias": {5: 100}, "n": 2, "temperature": 1.0, "ignore_eos": True},
    {"allowed_token_ids": [*range(40, 90), 2]},
    {"bad_words": ["a", "e", "th"]},
    {"stop_token_ids": [40]},
    {"stop": "e", "min_tokens": 9},
    {"stop": ["e", "th"], "include_stop_str_in_output": True},
    {"repetition_detection": {"max_pattern_size": 4, "min_count": 2}},
    {"logprobs": 3, "prompt_logprobs": 4, "max_tokens": 8},
]
TEXTS = ["Hi", "What is the capital of France?", "She buys 12 apples.", "3.14", "half of it"]
EOS = 2
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
SGLANG = """
from _inf.backends.verl import environment

environment.prepare()  # stand-ins for CUDA's libraries

if __name__ == "__main__":
    import sys
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import ServerArgs

    launch_server(ServerArgs(
        model_path=sys.argv[1], served_model_name="tiny", port=int(sys.argv[2]),
        device="cpu", dtype="float32", attention_backend="torch_native", context_length=1024,
        sampling_backend="pytorch", grammar_backend="llguidance", disable_cuda_graph=True,
        disable_overlap_schedule=True, max_total_tokens=20000, skip_server_warmup=True,
        log_level="warning",
    ))
"""


# ─── The servers ───


def saved(folder: Path, seed: int = 0) -> Path:
    """A tiny model with heads of 64: vLLM's attention on a CPU knows none of 16."""
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64, initializer_range=0.3,
        tie_word_embeddings=False, max_position_embeddings=4096,
    )  # fmt: skip
    save_tiny(config, seed, folder, 4096)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def python():
    """The interpreter with vLLM 0.32.0; it is kept for the next run."""
    return str(installed("vllm") / "bin" / "python")


def sglang(model: Path, folder: Path) -> Any:
    script = folder / "server.py"
    script.write_text(SGLANG)
    return serving([sys.executable, str(script), str(model), "{PORT}"], folder)


def vllm(python: str, model: Path, folder: Path, *options: str, **more: str) -> Any:
    """more: variables of its environment."""
    command = [
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--served-model-name", "tiny", "--dtype", "float32", "--host", "127.0.0.1"),
        *("--port", "{PORT}", "--max-model-len", "1024", "--enforce-eager", *options),
    ]
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "auto"}
    variables |= {"OMP_NUM_THREADS": "2", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": ""}
    variables |= {"VLLM_SERVER_DEV_MODE": "1"}  # with the routes that pause it
    return serving(command, folder, variables | more)


@pytest.fixture(scope="module", params=[OF_SGLANG, "vllm"])
def server(request):
    return str(request.param)


@pytest.fixture(scope="module")
def address(server, model, tmp_path_factory, request):
    folder = tmp_path_factory.mktemp(server)
    of_vllm = server == "vllm"
    started = (
        vllm(request.getfixturevalue("python"), model, folder) if of_vllm else sglang(model, folder)
    )
    with started as address:
        yield address


def connected(address: str, **config: Any) -> InferenceEngine:
    rollout = {"name": "openai"}
    return InferenceEngine(model_path="tiny", base_url=address, rollout=rollout, **config)


@pytest.fixture(scope="module")
def remote(address, model):
    with connected(address, tokenizer_path=str(model)) as engine:
        yield engine


@pytest.fixture(scope="module")
def local(model):
    rollout = {"name": "hf", "dtype": "float32"}
    with InferenceEngine(model_path=str(model), rollout=rollout) as engine:
        yield engine


def near(ours: Any, theirs: Any) -> bool:
    """Whether two lists of log probs are the same but for the last bits."""
    return bool(ours == pytest.approx(theirs, rel=0, abs=WITHIN))


def assert_same(
    engines: Sequence[InferenceEngine], prompts: Any, *, scored: bool = True, **keywords: Any
) -> float:
    """A call gives the rows of Transformers; the largest difference of two log probs.

    scored: whether the rows have log probs.
    """
    ours, theirs = (each.generate(prompts, **keywords).rows for each in engines)
    if not scored:
        assert [row.logprobs for row in ours] == [None] * len(ours)
        theirs = [dataclasses.replace(row, logprobs=None) for row in theirs]
    assert_same_rows(ours, theirs)
    far = [0.0]
    for one, other in zip(ours, theirs, strict=True):
        far += [abs(a - b) for a, b in zip(one.logprobs or (), other.logprobs or (), strict=True)]
    return max(far)


# ─── Both ───


def test_rows_are_those_of_transformers(server, remote, local):
    of_vllm, far = server == "vllm", 0.0
    for params in (*OF_BOTH, *(OF_VLLM if of_vllm else ())):
        # Where ids end inside a character, vLLM looks for stop strings in the prompt's end too.
        prompts = TEXTS if "stop" in params else IDS
        scored = not of_vllm or not set(UNSCORED.split()) & set(params)
        far = max(far, assert_same((remote, local), prompts, scored=scored, **GREEDY | params))


def sampled_row(remote: InferenceEngine, local: InferenceEngine, params: dict[str, Any]) -> Any:
    """A sampled row, whose log probs, if it has any, are those of the model's logits."""
    [row] = remote.generate(IDS[:1], max_tokens=20, **params)
    [logits] = local.get_logits(IDS[:1], [row.token_ids])
    table = torch.log_softmax(logits / params["temperature"], dim=-1)
    if row.logprobs is not None:
        assert near(row.logprobs, table[range(len(row.token_ids)), row.token_ids].tolist())
    return row


def test_sampled_rows_have_log_probs_by_our_definition_or_none(server, remote, local):
    filtered = {"temperature": 1.0, "top_p": 0.8, "min_p": 0.02}
    for params in ({"temperature": 1.0}, filtered):
        assert sampled_row(remote, local, params).logprobs is not None
    hot = {"temperature": 0.7, "top_p": 0.9}
    assert (sampled_row(remote, local, hot).logprobs is None) is (server == "vllm")
    if server == "vllm":
        batch = remote.rollout_batch(IDS[:2], n=2, temperature=1.0, max_tokens=8)
        assert batch.batch["rollout_log_probs"].isfinite().all()
        with refused(ConfigError, r"^rollout_batch\(\): .* the server computes its log probs"):
            remote.rollout_batch(IDS[:2], n=2, temperature=0.7, max_tokens=8)


def test_answers_follow_their_grammar_beside_free_rows(server, remote, local):
    sampled = {"temperature": 1.0, "max_tokens": 400}  # greedily it would write blanks for ever
    output = remote.generate(["a", "b", "c"], json_schema=[CITY, None, CITY], **sampled)
    for row in (output[0], output[2]):
        assert json.loads(row.completion)["city"] in ("Rome", "Oslo")
    # A grammar ends SGLang's answers with an EOS, which it would then ignore.
    asked = {"regex": "[a-c]{4}", "ignore_eos": server == "vllm", "max_tokens": 30}
    for row in remote.generate(["a", "b"], **asked):
        assert len(row.completion) == 4 and set(row.completion) <= set("abc")
        assert (row.finish_reason, row.matched_stop) == ("stop", EOS)
    date = {"regex": "[0-9]{4}-[0-9]{2}", **GREEDY}
    ours, theirs = (engine.generate("a", **date) for engine in (remote, local))
    assert ours.completions == theirs.completions
    assert (ours.logprobs == [None]) is (server == "vllm")


# ─── SGLang's ───


@SGLANG_ONLY
def test_new_weights_are_served_with_their_version(address, model, tmp_path):
    other, tokenizer = Transformers.of(saved(tmp_path / "other", seed=5)), str(model)
    asked: dict[str, Any] = {"prompts": as_ids(PROMPTS), "temperature": 0, "max_tokens": 16}
    with connected(address, tokenizer_path=tokenizer) as engine:
        assert "update_weights" in engine.supports and engine.weight_version == 0
        before = engine.generate(**asked)
        broken = {**other.model.state_dict(), "lm_head.weight": torch.zeros(3)}
        with refused(ConfigError, "lm_head.weight", key="weights"):
            engine.update_weights(broken)
        stream = engine.stream("a", max_tokens=400, ignore_eos=True)
        next(stream)
        stream.close()  # type: ignore[attr-defined]  # the server may be ending it yet
        assert engine.update_weights(other.model) == 1
        assert engine.update_weights(other.model, version=9) == engine.weight_version == 9
        output = engine.generate(**asked)
        assert output.token_ids != before.token_ids
        assert_greedy(other, PROMPTS, output, 16)
        assert {row["weight_version"] for row in output.metadata} == {9}
        with connected(address, tokenizer_path=tokenizer) as second:
            assert second.weight_version == 9
            assert second.update_weights(Transformers.of(model).model) == 10
        output = engine.generate(**asked)
        assert output.token_ids == before.token_ids
        assert {row["weight_version"] for row in output.metadata} == {10}


# ─── vLLM's ───


def test_page_of_backends_has_each_field_of_its_sampling_params(python):
    program = "from vllm import SamplingParams; print(*SamplingParams.__struct_fields__)"
    fields = {name for name in ran(python, "-c", program).split() if not name.startswith("_")}
    assert vllm_fields().keys() == fields - {"output_text_buffer_length"}  # its own


@VLLM_ONLY
def test_scores_are_those_of_transformers(remote, local):
    answers = [ids[: 1 + 5 * row] for row, ids in enumerate(reversed(PROMPTS))]
    answers[4], answers[5] = [], local.generate(as_ids(PROMPTS[5:6]), **GREEDY).token_ids[0]
    ours, theirs = (engine.score(IDS, answers, top_logprobs=3) for engine in (remote, local))
    for mine, yours in zip(ours, theirs, strict=True):
        assert mine.token_ids == yours.token_ids and mine.is_greedy == yours.is_greedy
        assert near(mine.logprobs, yours.logprobs)
        for own, other in zip(mine.top_logprobs, yours.top_logprobs, strict=True):
            assert list(own) == list(other) and near(own, other)
    assert [each.is_greedy for each in ours] == [row in (4, 5) for row in range(len(PROMPTS))]
    plain = remote.get_logprobs(IDS, answers)
    assert all(near(one, row.logprobs) for one, row in zip(plain, theirs, strict=True))
    assert remote.score([], []) == []
