"""The backend on a server that takes and gives token ids, with a scripted one.

What `inf serve` gives is in `engine/test_backends.py`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from _inf.apps.openai_format import choices
from _inf.errors import RequestFailure
from inf import ConfigError, InferenceEngine, PromptError
from tests.support import scripted_server
from tests.support.refusals import refused
from tests.support.scripted_server import USAGE, Reply, ScriptedServer, scripted
from tests.support.tiny import VOCABULARY, tiny_model

IM_END = 2
OWN_CODE = {"AutoTokenizer": ["own.Own", None]}
ANSWER = [40, 41, 42]


class VLLM:
    """Answers with `answer` as vLLM does. temperature: whether its log probs know of it."""

    def __init__(self, tokenizer: Any, *, tempered: bool = False) -> None:
        self.tokenizer, self.tempered = tokenizer, tempered
        self.answer, self.finish, self.stop_reason = [*ANSWER, IM_END], "stop", None
        self.prompt_ids: list[int] | None = None  # other ones than the tokenizer's

    def __call__(self, path: str, body: Any) -> Reply:
        if path != "/v1/completions":
            return Reply({"error": {"message": "Not Found"}}, status=404)
        ids, prompt = self.answer[: body["max_tokens"]], body["prompt"]
        heat = body["temperature"] if self.tempered and body["temperature"] else 1.0
        logprobs = {"token_logprobs": [-1.5 * heat for _ in ids]}
        choice = {
            "token_ids": ids,
            "text": "?",
            "logprobs": logprobs,
            "finish_reason": self.finish,
            "stop_reason": self.stop_reason,
        }
        own = self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        choice["prompt_token_ids"] = self.prompt_ids or own
        if not body.get("stream"):
            return Reply({"choices": [choice], "usage": USAGE})
        events: list[Any] = [
            {"choices": [{"token_ids": [each], "logprobs": {"token_logprobs": [-1.5]}}]}
            for each in ids
        ]
        last = {"token_ids": [], "finish_reason": self.finish, "stop_reason": self.stop_reason}
        return Reply(events=[*events, {"choices": [last]}, {"choices": [], "usage": USAGE}])


def sglang(path: str, body: Any) -> Reply:
    """SGLang's server: /completions gives no ids, /generate does."""
    if path == "/v1/completions":
        return Reply({"choices": [{"text": "?", "finish_reason": "stop"}]})
    assert path == "/generate"
    ids = [*ANSWER, IM_END][: body["sampling_params"]["max_new_tokens"]]

    def state(count: int) -> dict[str, Any]:
        about = {"finish_reason": None, "cached_tokens": 4}
        about["output_token_logprobs"] = [[-0.5, each, None] for each in ids[:count]]
        if count == len(ids):
            about["finish_reason"] = {"type": "stop", "matched": IM_END}
        return {"output_ids": ids[:count], "meta_info": about}

    if body.get("stream"):
        return Reply(events=[state(count + 1) for count in range(len(ids))])
    return Reply(state(len(ids)))


@pytest.fixture
def vllm(tokenizer: Any) -> VLLM:
    return VLLM(tokenizer)


@pytest.fixture
def server(vllm: VLLM) -> Iterator[ScriptedServer]:
    with scripted(vllm) as server:
        yield server


def connected(server: ScriptedServer, **config: Any) -> InferenceEngine:
    given = {"tokenizer_path": str(tiny_model()), **config}
    return scripted_server.connected(server, **given)


def test_ids_go_out_and_ids_come_back(server: ScriptedServer, tokenizer: Any) -> None:
    with connected(server) as engine:
        server.seen.clear()
        output = engine.generate(["Hi", {"prompt_token_ids": [5, 6]}], max_tokens=9)
        chunks = list(engine.stream("Hi"))
    assert output.token_ids == [[*ANSWER, IM_END]] * 2
    assert output.completions == [tokenizer.decode(ANSWER)] * 2
    assert output.logprobs == [[-1.5] * 4] * 2
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


def test_stop_string_is_cut_from_the_text_and_named(server: ScriptedServer, vllm: VLLM) -> None:
    with connected(server) as engine:
        whole = engine.tokenizer.decode(ANSWER)
        vllm.answer, vllm.stop_reason = ANSWER, whole[-1]
        [row] = engine.generate("Hi", stop=whole[-1])
    assert row.completion == whole[:-1] and row.metadata["matched_stop"] == whole[-1]


@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.7}, {"presence_penalty": 1.0}, {"min_tokens": 1}, {"logit_bias": {5: 1.0}}],
    ids=str,
)
def test_raw_log_probs_are_none_where_ours_are_defined_otherwise(
    server: ScriptedServer, vllm: VLLM, params: dict[str, Any]
) -> None:
    with connected(server) as engine:
        assert engine.generate("Hi", temperature=1.0).logprobs == [[-1.5] * 4]
        [row] = engine.generate("Hi", **params)
        assert row.logprobs is None and row.metadata["cumulative_logprob"] is None
        assert row.token_ids == [*ANSWER, IM_END]
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


def test_log_probs_of_a_server_with_our_definition_are_all_kept(
    server: ScriptedServer, vllm: VLLM
) -> None:
    vllm.tempered = True
    with connected(server) as engine:
        assert engine.generate("Hi", temperature=0.5).logprobs == [[-0.75] * 4]


def test_tokenizer_that_is_not_the_servers_is_refused_at_the_start(
    server: ScriptedServer, vllm: VLLM, tmp_path: Any
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
    vllm: VLLM, tmp_path: Path
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


def test_prompt_and_ids_are_checked_before_anything_is_sent(server: ScriptedServer) -> None:
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
    server: ScriptedServer, vllm: VLLM
) -> None:
    with connected(server) as engine:
        cut = {"token_ids": ANSWER, "logprobs": {"token_logprobs": [-1]}, "finish_reason": "stop"}
        server.script = lambda path, body: Reply({"choices": [cut]})
        with pytest.raises(RequestFailure, match="unknown form"):
            engine.generate("Hi", temperature=1.0)


def test_sglangs_own_route_is_found_and_used(server: ScriptedServer, tokenizer: Any) -> None:
    server.script = sglang
    with connected(server) as engine:
        server.seen.clear()
        [row] = engine.generate({"prompt_token_ids": [5, 6]}, min_p=0.1, regex="a+", stop="z")
        assert server.bodies[0]["input_ids"] == [5, 6]
        sent = server.bodies[0]["sampling_params"]
        assert (sent["min_p"], sent["regex"], sent["stop"]) == (0.1, "a+", ["z"])
        assert sent["stop_token_ids"] == [IM_END] and "json_schema" not in sent
        assert row.token_ids == [*ANSWER, IM_END] and row.logprobs == [-0.5] * 4
        assert row.metadata["matched_stop"] == IM_END and row.metadata["cached_tokens"] == 4
        chunks = list(engine.stream("Hi"))
        assert [token for chunk in chunks for token in chunk.token_ids] == row.token_ids
        assert chunks[-1].finish_reason == "stop"
        ended = {"finish_reason": {"type": "abort", "message": "Out of memory"}}
        server.script = lambda path, body: Reply({"output_ids": [], "meta_info": ended})
        with pytest.raises(RequestFailure, match="aborted the request: Out of memory"):
            engine.generate("Hi")


@pytest.mark.parametrize(
    "params",
    [{"seed": 3}, {"repetition_penalty": 1.1}, {"ignore_eos": True, "stop_token_ids": [7]}],
    ids=str,
)
def test_what_sglangs_server_ignores_is_refused_by_name(
    server: ScriptedServer, params: dict[str, Any]
) -> None:
    server.script = sglang
    with connected(server) as engine:
        server.seen.clear()
        with refused(ConfigError, key=next(iter(params))):
            engine.generate("Hi", **params)
    assert server.seen == []
