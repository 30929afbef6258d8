"""The backend on a server that takes and gives token ids in vLLM's form, with a scripted one, and
what the start finds out about it. What `inf serve` gives is in `engine/answers/test_backends.py`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from _inf.apps.batch.lines import choices
from _inf.backends.openai import SCORES, VLLM_MODE
from _inf.backends.openai.http import httpx
from _inf.errors import RequestFailure
from inf import ConfigError, PromptError
from tests.support.refusals import refused
from tests.support.scripted_server import Reply, ScriptedServer, scripted
from tests.support.scripted_tokens import (
    ANSWER,
    BEST,
    IM_END,
    OWN,
    SAMPLED,
    SECOND,
    Vllm,
    connected,
)
from tests.support.tiny import VOCABULARY, tiny_model

OWN_CODE = {"AutoTokenizer": ["own.Own", None]}


@pytest.fixture
def vllm(tokenizer: Any) -> Vllm:
    return Vllm(tokenizer)


@pytest.fixture
def server(vllm: Vllm) -> Iterator[ScriptedServer]:
    with scripted(vllm) as server:
        yield server


# Answers.


def test_ids_go_out_and_ids_come_back(server: ScriptedServer, tokenizer: Any) -> None:
    with connected(server) as engine:
        server.seen.clear()
        output = engine.generate(["Hi", {"prompt_token_ids": [5, 6]}], max_tokens=9)
        chunks = list(engine.stream("Hi"))
    assert output.token_ids == [ANSWER] * 2
    assert output.completions == [tokenizer.decode(ANSWER[:-1])] * 2
    assert output.logprobs == [[SAMPLED] * 4] * 2
    about = output.metadata[1]
    assert about["matched_stop"] == IM_END and about["finish_reason"] == "stop"
    assert (about["prompt_tokens"], about["completion_tokens"], about["cached_tokens"]) == (2, 4, 2)
    [sent] = [body for body in server.bodies if body["prompt"] == [5, 6]]
    assert sent["max_tokens"] == 9 and sent["temperature"] == 0 and sent["return_token_ids"] is True
    # vLLM's own defaults for these come from the model's generation config.
    assert (sent["top_p"], sent["top_k"], sent["min_p"]) == (1.0, -1, 0.0)
    assert sent["repetition_penalty"] == 1.0 and sent["stop_token_ids"] == [IM_END]
    assert [token for chunk in chunks for token in chunk.token_ids] == output.token_ids[0]
    assert "".join(chunk.text for chunk in chunks) == output.completions[0]
    assert chunks[-1].finish_reason == "stop"


def test_stop_string_is_cut_from_the_text_and_named(server: ScriptedServer, vllm: Vllm) -> None:
    with connected(server) as engine:
        whole = engine.tokenizer.decode(ANSWER[:-1])
        vllm.answer, vllm.stop_reason = ANSWER[:-1], whole[-1]
        [row] = engine.generate("Hi", stop=whole[-1])
    assert row.completion == whole[:-1] and row.metadata["matched_stop"] == whole[-1]


@pytest.mark.verl
@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.7}, {"presence_penalty": 1.0}, {"min_tokens": 1}, {"logit_bias": {5: 1.0}}],
    ids=str,
)
def test_raw_log_probs_are_none_where_ours_are_defined_otherwise(
    server: ScriptedServer, vllm: Vllm, params: dict[str, Any]
) -> None:
    with connected(server) as engine:
        assert engine.generate("Hi", temperature=1.0).logprobs == [[SAMPLED] * 4]
        [row] = engine.generate("Hi", **params)
        assert row.logprobs is None and row.metadata["cumulative_logprob"] is None
        assert row.token_ids == ANSWER
        with pytest.raises(ConfigError, match=r"^rollout_batch\(\): the server's log probs"):
            engine.rollout_batch("Hi", **params)


@pytest.mark.parametrize(("temperature", "known"), [(1.0, True), (0.7, False)])
def test_log_probs_in_openais_form_are_null_where_ours_are_defined_otherwise(
    server: ScriptedServer, temperature: float, known: bool
) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True}
    with connected(server) as engine, engine.serve() as served:
        output = engine.generate("Hi", temperature=temperature)
        [line] = choices(output, engine.tokenizer, likeliest=0)  # as `inf batch` writes it
        assert (line["logprobs"] is not None) == known
        for route, body in (("/chat/completions", chat), ("/completions", {"prompt": [5]})):
            asked = {"logprobs": 0, **body, "temperature": temperature}
            response = httpx.post(served.base_url + route, json=asked)
            [choice] = response.json()["choices"]
            assert (choice["logprobs"] is not None) == known
            events = httpx.post(served.base_url + route, json=asked | {"stream": True}).text
            assert '"error"' not in events and ("-1.5" in events) == known


@pytest.mark.verl
def test_trace_without_our_log_probs_has_nulls_and_makes_no_trainers_batch(
    server: ScriptedServer,
) -> None:
    with connected(server) as engine, engine.serve() as served:
        body = {"prompt": [5], "temperature": 0.7}
        httpx.post(served.session_url("one") + "/completions", json=body).raise_for_status()
        traces = served.base_url.replace("/v1", "/sessions/one/traces")
        [trace] = httpx.get(traces, timeout=60).json()["traces"]
        assert trace["token_ids"] and trace["logprobs"] == [None] * len(trace["token_ids"])
        with refused(ConfigError, "the server's log probs", key="traces[0]"):
            engine.trainer_batch(served.traces("one"))


def test_tokenizer_that_is_not_the_servers_is_refused_at_the_start(
    server: ScriptedServer, vllm: Vllm, tmp_path: Any
) -> None:
    with refused(ConfigError, "Transformers cannot load a tokenizer", key="tokenizer_path"):
        connected(server, tokenizer_path=str(tmp_path))
    vllm.prompt_ids = [1, 2, 3]
    with refused(ConfigError, r"the server reads .* \[1, 2, 3\]", key="tokenizer_path"):
        connected(server)
    server.script = lambda path, body: (  # a server of texts
        Reply({"choices": [{"text": "?"}]})
        if path == "/v1/completions"
        else Reply({"error": {"message": "Not Found"}}, status=404)
    )
    with refused(ConfigError, "leave tokenizer_path out", key="tokenizer_path"):
        connected(server)


def test_tokenizer_of_an_unknown_model_and_class_is_read_from_its_files(
    vllm: Vllm, tmp_path: Path
) -> None:
    """As Transformers 5 writes them."""
    shutil.copytree(tiny_model(), tmp_path, dirs_exist_ok=True)
    newer = {"model_type": "newer", "text_config": {"vocab_size": VOCABULARY + 8}}
    (tmp_path / "config.json").write_text(json.dumps(newer))
    about = tmp_path / "tokenizer_config.json"
    changed = {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<|im_start|>"]}
    about.write_text(json.dumps({**json.loads(about.read_text()), **changed}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [IM_END, 9]}))
    with scripted(vllm) as server, connected(server, tokenizer_path=str(tmp_path)) as engine:
        limits, tokenizer = engine.model.limits, engine.tokenizer
        assert limits.vocabulary == VOCABULARY + 8
        assert engine.model.eos_token_ids == {IM_END, 9} <= {*tokenizer.all_special_ids, 9}
        assert tokenizer.convert_tokens_to_ids("<|im_start|>") in tokenizer.all_special_ids
        [row] = engine.generate([{"role": "user", "content": "Hi"}])
        assert tokenizer.decode(row.prompt_token_ids).startswith("<|im_start|>user")
        about.write_text(json.dumps({"tokenizer_class": "Own", "auto_map": OWN_CODE}))
        with refused(ConfigError, "trust_remote_code", key="tokenizer_path"):
            connected(server, tokenizer_path=str(tmp_path))


def test_prompt_and_ids_are_checked_before_anything_is_sent(
    server: ScriptedServer, vllm: Vllm
) -> None:
    vllm.lacks = {"structured_outputs"}
    with connected(server) as engine:
        server.seen.clear()
        with refused(PromptError, index=0):
            engine.generate({"prompt_token_ids": [5] * 600})
        with refused(ConfigError, key="stop_token_ids[0]"):
            engine.generate("Hi", stop_token_ids=[VOCABULARY])
        with refused(ConfigError, key="regex"):
            engine.generate("Hi", regex="a")
    assert server.seen == []


def test_answer_without_a_log_prob_for_each_token_is_a_failure(
    server: ScriptedServer, vllm: Vllm
) -> None:
    with connected(server) as engine:
        cut = {"token_ids": ANSWER, "logprobs": {"token_logprobs": [-1]}, "finish_reason": "stop"}
        server.script = lambda path, body: Reply({"choices": [cut]})
        with pytest.raises(RequestFailure, match="unknown form"):
            engine.generate("Hi", temperature=1.0)


# What the start finds out.


def test_start_finds_out_what_a_server_offers(server: ScriptedServer, vllm: Vllm) -> None:
    everything = VLLM_MODE.supports - {"adapters", "pause", "thinking_token_budget"}
    with connected(server) as engine:
        assert engine.supports == everything
    for lacks, missing in {
        "prompt_logprobs": SCORES,
        "structured_outputs": {"regex"},
        "allowed_token_ids": {"token_masks"},
        "logprob_token_ids": {"logprob_token_ids"},
        "repetition_detection": {"repetition_detection"},
    }.items():
        for how in ("lacks", "ignores"):
            setattr(vllm, how, {lacks})
            with connected(server) as engine:
                assert engine.supports == everything - missing
            setattr(vllm, how, set())
    vllm.lacks = {"prompt_logprobs"}
    with connected(server) as engine:
        server.seen.clear()
        for call in (lambda: engine.score("a", "b"), lambda: engine.generate("a", logprobs=1)):
            with refused(ConfigError, "does not offer it; .* or openai on vLLM or inf serve does"):
                call()
    assert server.seen == []


def test_server_may_end_thoughts_if_it_does_so_by_the_marks_of_the_config(
    server: ScriptedServer, vllm: Vllm
) -> None:
    marks = {"start": "a", "end": "bc"}
    end = vllm.tokenizer("bc", add_special_tokens=False)["input_ids"]
    for forced, ends in (([9, 9, 9], False), (end, True)):
        vllm.forced = forced
        with connected(server, reasoning_parser=marks) as engine:
            assert ("thinking_token_budget" in engine.supports) is ends
    with connected(server, reasoning_parser={**marks, "start": "ab"}) as engine:
        assert "thinking_token_budget" not in engine.supports  # vLLM counts wrong there
    with connected(server, reasoning_parser=marks) as engine:
        vllm.forced = [8, *end, 9]
        start = vllm.tokenizer("a", add_special_tokens=False)["input_ids"]
        [row] = engine.generate({"prompt_token_ids": start}, thinking_token_budget=1, max_tokens=9)
        assert row.forced_at == [1, 2][: len(end)]
        assert row.logprobs == [0.0 if place in row.forced_at else SAMPLED for place in range(4)]


def test_score_is_read_from_the_log_probs_of_a_prompt(server: ScriptedServer, vllm: Vllm) -> None:
    prompts: Any = [{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": [7]}]
    with connected(server) as engine:
        server.seen.clear()
        first, empty = engine.score(prompts, [[8, 9], []], top_logprobs=2)
        assert first.logprobs == [OWN, OWN] and not first.is_greedy
        assert first.top_logprobs == [{10: BEST, 11: SECOND, i: OWN} for i in (8, 9)]
        assert [list(top) for top in first.top_logprobs] == [[10, 11, 8], [10, 11, 9]]
        assert empty.logprobs == [] and empty.is_greedy and empty.top_logprobs == []
        [sent] = [body for body in server.bodies if body["prompt"] == [5, 6, 8, 9]]
        assert (sent["max_tokens"], sent["temperature"], sent["prompt_logprobs"]) == (1, 0, 2)
        vllm.own = BEST  # as likely as the likeliest
        assert engine.score(prompts, [[8], [9]])[1].is_greedy
        vllm.own = -9999.0  # vLLM's minus infinity
        with refused(RequestFailure, "log prob -inf", row=0):
            engine.score(prompts[:1], [[8]])


def test_likeliest_tokens_are_in_their_order_and_the_sampled_one_is_among_them(
    server: ScriptedServer,
) -> None:
    with connected(server) as engine:
        server.seen.clear()
        prompt: Any = {"prompt_token_ids": [5, 6]}
        [row] = engine.generate(prompt, logprobs=2, prompt_logprobs=1, temperature=1.0)
        assert row.top_logprobs is not None and row.top_prompt_logprobs is not None
        assert [list(top.items()) for top in row.top_logprobs] == [
            [(10, BEST), (11, SECOND), (i, SAMPLED)] for i in ANSWER
        ]
        assert row.prompt_logprobs == [None, OWN]
        assert row.top_prompt_logprobs == [None, {10: BEST, 6: OWN}]
        [sent] = server.bodies
        assert (sent["logprobs"], sent["prompt_logprobs"]) == (2, 1)
        assert sent["return_tokens_as_token_ids"] is True
        server.seen.clear()
        for changed in ({"temperature": 0.7}, {"temperature": 1.0, "presence_penalty": 0.5}):
            with refused(ConfigError, "leave it out", key="logprobs"):
                engine.generate("Hi", logprobs=2, **changed)
            with refused(ConfigError, "leave it out", key="logprobs"):
                list(engine.stream("Hi", logprobs=2, **changed))
        assert server.seen == []


def test_grammar_ends_its_row_beside_ignore_eos_too(server: ScriptedServer) -> None:
    with connected(server) as engine:
        server.seen.clear()
        [row] = engine.generate("Hi", regex="7{3}", ignore_eos=True)
    assert row.completion == "777" and row.metadata["matched_stop"] == IM_END
    assert row.logprobs is None  # a grammar's
    [sent] = server.bodies
    assert sent["structured_outputs"] == {"regex": "7{3}"} and sent["ignore_eos"] is False


@pytest.mark.parametrize(
    ("sampled", "hot", "ours", "others"),
    [
        (-1.5, -1.5, {"temperature": 1.0, "top_p": 0.5}, {"temperature": 0.7}),
        (-1.5, -2.5, {"temperature": 0.7, "top_k": 3}, None),
        (-1.5, 0.0, {"temperature": 0.7}, {"temperature": 0.7, "min_p": 0.1}),
        (0.0, 0.0, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3}),
    ],
    ids=["raw", "ours", "after filters", "unknown"],
)
def test_log_probs_of_each_kind_are_ours_or_none(
    server: ScriptedServer, vllm: Vllm, sampled: float, hot: float, ours: Any, others: Any
) -> None:
    vllm.sampled, vllm.hot = sampled, hot
    with connected(server) as engine:
        assert engine.generate("Hi", **ours).logprobs == [[sampled] * 4]
        if others is not None:
            assert engine.generate("Hi", **others).logprobs == [None]


@pytest.mark.parametrize(("sampled", "own"), [(6.7, OWN), (-1.5, 3.0), (-40.0, -40.0)])
def test_logits_in_the_place_of_log_probs_are_refused_at_the_start(
    server: ScriptedServer, vllm: Vllm, sampled: float, own: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm.sampled = vllm.hot = sampled
    monkeypatch.setattr(vllm, "entry", lambda token, most: {str(token): {"logprob": own}})
    with refused(ConfigError, "do not come from a softmax", key="base_url"):
        connected(server)
