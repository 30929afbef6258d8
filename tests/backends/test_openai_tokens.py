"""The backend on a server that takes and gives token ids in vLLM's form, with a scripted one, and
what the start finds out about it. What `inf serve` gives is in `engine/answers/test_backends.py`.
"""

import json
import shutil

import pytest

from _inf.apps.batch.lines import choices
from _inf.backends.openai import SCORES, TOKEN_MODE, VLLM_MODE
from _inf.backends.openai.http import httpx
from _inf.errors import RequestFailure
from inf import ConfigError
from tests.support.refusals import refused
from tests.support.scripted_server import Reply, scripted
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
def vllm(tokenizer):
    return Vllm(tokenizer)


@pytest.fixture
def server(vllm):
    with scripted(vllm) as server:
        yield server


# Answers.


def test_ids_go_out_and_ids_come_back(server, tokenizer):
    with connected(server) as engine:
        server.seen.clear()
        output = engine.generate(["Hi", {"prompt_token_ids": [5, 6]}], max_tokens=9)
        chunks = list(engine.stream("Hi"))
        [grammar] = engine.generate("Hi", regex="7{3}", ignore_eos=True)
        server.script = lambda path, body: Reply({"choices": [{"token_ids": ANSWER} | CUT]})
        with pytest.raises(RequestFailure, match="unknown form"):
            engine.generate("Hi", temperature=1.0)
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
    assert "".join(chunk.text for chunk in chunks) == output.completions[0]
    assert chunks[-1].finish_reason == "stop"
    # The grammar ends its row, also beside ignore_eos.
    assert grammar.completion == "777" and grammar.metadata["matched_stop"] == IM_END
    assert grammar.logprobs is None
    [sent] = [body for body in server.bodies if "structured_outputs" in body]
    assert sent["structured_outputs"] == {"regex": "7{3}"} and sent["ignore_eos"] is False


CUT = {"logprobs": {"token_logprobs": [-1]}, "finish_reason": "stop"}  # not one for each token


def test_scores_and_likeliest_tokens_are_read_in_vllms_form(server, vllm):
    """The likeliest come first, and the given one is among them."""
    prompt = {"prompt_token_ids": [5, 6]}
    with connected(server) as engine:
        [row] = engine.generate(prompt, logprobs=2, prompt_logprobs=1, temperature=1.0)
        assert [list(top.items()) for top in row.top_logprobs or ()] == [
            [(10, BEST), (11, SECOND), (i, SAMPLED)] for i in ANSWER
        ]
        assert row.top_prompt_logprobs == [None, {10: BEST, 6: OWN}]
        server.seen.clear()
        engine.score(prompt, [[8, 9]], top_logprobs=2)
        [sent] = server.bodies
        assert (sent["max_tokens"], sent["temperature"], sent["prompt_logprobs"]) == (1, 0, 2)
        vllm.own = -9999.0  # vLLM's minus infinity
        with refused(RequestFailure, "log prob -inf", row=0):
            engine.score(prompt, [[8]])


def test_tokenizer_of_an_unknown_model_and_class_is_read_from_its_files(vllm, tmp_path):
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


def test_server_may_end_thoughts_if_it_does_so_by_the_marks_of_the_config(server, vllm):
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


@pytest.mark.parametrize(
    ("sampled", "hot", "ours", "others"),
    [
        (-1.5, -1.5, {"temperature": 1.0, "top_p": 0.5}, {"temperature": 0.7}),
        (-1.5, -1.5, {"temperature": 1.0}, {"presence_penalty": 1.0}),
        (-1.5, -1.5, {"temperature": 1.0}, {"min_tokens": 1}),
        (-1.5, -1.5, {"temperature": 1.0}, {"logit_bias": {5: 1.0}}),
        (-1.5, -2.5, {"temperature": 0.7, "top_k": 3}, None),
        (-1.5, 0.0, {"temperature": 0.7}, {"temperature": 0.7, "min_p": 0.1}),
        (0.0, 0.0, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3}),
        (0.0, 0.0, {"temperature": 1.0}, {"temperature": 0.7}),
    ],
    ids=str,
)
def test_log_probs_of_each_kind_are_ours_or_none(server, vllm, sampled, hot, ours, others):
    """Raw ones, ours, those after filters, and those of which nothing is known."""
    vllm.sampled, vllm.hot = sampled, hot
    with connected(server) as engine:
        assert engine.generate("Hi", **ours).logprobs == [[sampled] * 4]
        if others is not None:
            [row] = engine.generate("Hi", **others)
            assert row.logprobs is None and row.metadata["cumulative_logprob"] is None
            server.seen.clear()
            for call in (engine.generate, lambda *a, **b: list(engine.stream(*a, **b))):
                with refused(ConfigError, "leave it out", key="logprobs"):
                    call("Hi", logprobs=2, **others)
            assert server.seen == []


@pytest.mark.verl
def test_rows_without_our_log_probs_have_nulls_elsewhere_and_make_no_batch(server):
    how = {"prompt": [5], "temperature": 0.7}
    with connected(server) as engine, engine.serve() as served:
        [line] = choices(engine.generate("Hi", temperature=0.7), engine.tokenizer, likeliest=0)
        assert line["logprobs"] is None  # as `inf batch` writes it
        with pytest.raises(
            ConfigError, match=r"^rollout_batch\(\): .* the server computes its log probs"
        ):
            engine.rollout_batch("Hi", temperature=0.7)
        address = served.session_url("one") + "/completions"
        [choice] = httpx.post(address, json=how | {"logprobs": 0}).json()["choices"]
        assert choice["logprobs"] is None
        events = httpx.post(address, json=how | {"logprobs": 0, "stream": True}).text
        assert '"error"' not in events and str(SAMPLED) not in events
        traces = served.base_url.replace("/v1", "/sessions/one/traces")
        trace = httpx.get(traces, timeout=60).json()["traces"][0]
        assert trace["token_ids"] and trace["logprobs"] == [None] * len(trace["token_ids"])
        with refused(ConfigError, "the server computes its log probs", key="traces[0]"):
            engine.trainer_batch(served.traces("one"))


@pytest.mark.parametrize("sampled", [6.7, -40.0])
def test_logits_in_the_place_of_log_probs_are_refused_at_the_start(server, vllm, sampled):
    vllm.sampled = vllm.hot = sampled
    with refused(ConfigError, "do not come from a softmax", key="base_url"):
        connected(server)


# What the start finds out.


def test_server_that_says_what_it_is_has_what_its_kind_has(server, vllm):
    """vLLM drops a field that it does not know, so an older one is asked for none."""
    newest = VLLM_MODE.supports - {"pause", "thinking_token_budget"}
    old = TOKEN_MODE.supports | SCORES
    for version, supports in (("0.32.1.dev3", newest), ("1.0", newest), ("0.9.2", old)):
        vllm.version = version
        with connected(server) as engine:
            assert engine.supports == supports
    server.seen.clear()
    for call in (lambda: engine.pause(), lambda: engine.generate("a", bad_words=["a"])):
        with refused(ConfigError, "does not offer it; .* or openai on vLLM or inf serve does"):
            call()
    assert server.seen == []


def test_server_that_does_not_say_what_it_is_is_what_the_config_says(server, vllm):
    server.script = lambda path, body: Reply({}) if path == "/v1/models" else vllm(path, body)
    with refused(ConfigError, "owned_by None; .* set the key server_kind", key="tokenizer_path"):
        connected(server)
    with connected(server, server_kind="vllm") as engine:
        assert engine.generate("Hi").token_ids == [ANSWER]
    with refused(ConfigError, "openai with tokenizer_path does", key="server_kind"):
        connected(server, server_kind="vllm", tokenizer_path=None)


def test_tokenizer_that_is_not_the_servers_is_refused_at_the_start(server, vllm, tmp_path):
    with refused(ConfigError, "Transformers cannot load a tokenizer", key="tokenizer_path"):
        connected(server, tokenizer_path=str(tmp_path))
    vllm.prompt_ids = [1, 2, 3]
    with refused(ConfigError, r"the server reads .* \[1, 2, 3\]", key="tokenizer_path"):
        connected(server)
    server.script = lambda path, body: (  # a server of texts
        Reply({"choices": [{"text": "?"}]}) if path == "/v1/completions" else vllm(path, body)
    )
    with refused(ConfigError, "leave tokenizer_path out", key="tokenizer_path"):
        connected(server)
