"""`rollout.name: openai` on SGLang's own HTTP server, which knows nothing of this library."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from inf import ConfigError, InferenceEngine
from tests.support.prompts import as_ids, token_prompts
from tests.support.reference import WITHIN, Transformers, assert_greedy
from tests.support.refusals import refused
from tests.support.servers import serving
from tests.support.tiny import tiny_model

pytestmark = [pytest.mark.soak, pytest.mark.verl]  # SGLang starts with all of its imports

PROMPTS = token_prompts(6, 100, seed=41)
SERVER = f"""
from _inf.backends.verl import environment

environment.prepare()  # stand-ins for CUDA's libraries

if __name__ == "__main__":
    import sys
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import ServerArgs

    launch_server(ServerArgs(
        model_path={str(tiny_model())!r}, served_model_name="tiny", port=int(sys.argv[1]),
        device="cpu", dtype="float32", attention_backend="torch_native", context_length=1024,
        sampling_backend="pytorch", grammar_backend="llguidance", disable_cuda_graph=True,
        disable_overlap_schedule=True, max_total_tokens=20000, skip_server_warmup=True,
        log_level="warning",
    ))
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("sglang")
    script = folder / "server.py"
    script.write_text(SERVER)
    with serving([sys.executable, str(script), "{PORT}"], folder) as address:
        yield address


def connected(address: str, **config: Any) -> InferenceEngine:
    rollout = {"name": "openai"}
    return InferenceEngine(model_path="tiny", base_url=address, rollout=rollout, **config)


@pytest.fixture(scope="module")
def remote(address: str) -> Iterator[InferenceEngine]:
    with connected(address, tokenizer_path=str(tiny_model())) as engine:
        yield engine


@pytest.fixture(scope="module")
def local() -> Iterator[InferenceEngine]:
    rollout = {"name": "hf", "dtype": "float32"}
    with InferenceEngine(model_path=str(tiny_model()), rollout=rollout) as engine:
        yield engine


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"presence_penalty": 1.2},
        {"logit_bias": {5: 8.0}},
        {"min_tokens": 24},
        {"stop": "e"},
        {"ignore_eos": True},
    ],
    ids=str,
)
def test_greedy_rows_are_those_of_transformers(
    remote: InferenceEngine, local: InferenceEngine, params: dict[str, Any]
) -> None:
    ours, theirs = (
        engine.generate(as_ids(PROMPTS), temperature=0, max_tokens=32, **params)
        for engine in (remote, local)
    )
    for mine, yours in zip(ours, theirs, strict=True):
        assert mine.token_ids == yours.token_ids and mine.completion == yours.completion
        assert mine.logprobs == pytest.approx(yours.logprobs, abs=WITHIN)
        for name in ("finish_reason", "matched_stop", "prompt_tokens", "completion_tokens"):
            assert mine.metadata[name] == yours.metadata[name]


def test_sampled_rows_have_log_probs_by_our_definition(
    remote: InferenceEngine, local: InferenceEngine
) -> None:
    [row] = remote.generate(as_ids(PROMPTS[:1]), temperature=0.7, top_p=0.9, max_tokens=20)
    [logits] = local.get_logits(as_ids(PROMPTS[:1]), [row.token_ids])
    table = torch.log_softmax(logits / 0.7, dim=-1)
    assert row.token_ids is not None and row.logprobs is not None
    own = [table[place, token].item() for place, token in enumerate(row.token_ids)]
    assert row.logprobs == pytest.approx(own, abs=WITHIN)


def test_stream_is_the_row_and_grammars_are_followed(remote: InferenceEngine) -> None:
    [row] = remote.generate("Hi", temperature=0, max_tokens=20)
    chunks = list(remote.stream("Hi", temperature=0, max_tokens=20))
    assert "".join(chunk.text for chunk in chunks) == row.completion and len(chunks) > 1
    assert [token for chunk in chunks for token in chunk.token_ids] == row.token_ids
    city = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}}
    [answer] = remote.generate("a", json_schema={**city, "required": ["city"]}, max_tokens=60)
    assert answer.completion in ('{"city": "Rome"}', '{"city": "Oslo"}')
    [word] = remote.generate("a", regex="[a-c]{4}", max_tokens=20).completions
    assert len(word) == 4 and set(word) <= set("abc")


def test_text_goes_in_and_out(address: str, local: InferenceEngine) -> None:
    with connected(address) as engine:
        params: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
        prompts = ["Hi", {"text": "once"}]
        ours, theirs = engine.generate(prompts, **params), local.generate(prompts, **params)
        assert ours.completions == theirs.completions
        for name in ("finish_reason", "prompt_tokens", "completion_tokens"):
            assert [row[name] for row in ours.metadata] == [row[name] for row in theirs.metadata]
        assert "".join(chunk.text for chunk in engine.stream("Hi", **params)) == ours.completions[0]


def test_new_weights_are_served_with_their_version(address: str) -> None:
    other = Transformers.of(tiny_model(seed=5))
    with connected(address, tokenizer_path=str(tiny_model())) as engine:
        assert "update_weights" in engine.supports and engine.weight_version == 0
        before = engine.generate(as_ids(PROMPTS), temperature=0, max_tokens=16)
        broken = {**other.model.state_dict(), "lm_head.weight": torch.zeros(3)}
        with refused(ConfigError, "lm_head.weight", key="weights"):
            engine.update_weights(broken)
        stream = engine.stream("a", max_tokens=400, ignore_eos=True)
        next(stream)
        stream.close()  # type: ignore[attr-defined]  # the server may be ending it yet
        assert engine.update_weights(other.model) == 1
        assert engine.update_weights(other.model, version=9) == engine.weight_version == 9
        output = engine.generate(as_ids(PROMPTS), temperature=0, max_tokens=16)
        assert output.token_ids != before.token_ids
        assert_greedy(other, PROMPTS, output, 16)
        assert {row["weight_version"] for row in output.metadata} == {9}
        with connected(address, tokenizer_path=str(tiny_model())) as second:
            assert second.weight_version == 9
            assert second.update_weights(Transformers.of(tiny_model()).model) == 10
        output = engine.generate(as_ids(PROMPTS), temperature=0, max_tokens=16)
        assert output.token_ids == before.token_ids
        assert {row["weight_version"] for row in output.metadata} == {10}
