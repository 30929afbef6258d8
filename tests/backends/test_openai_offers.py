"""What a server of token ids offers besides answers, as the start finds it out, with scripted ones.

Their forms are those of vLLM 0.32.0 and SGLang 0.5.9; the real ones are in `tests/soak/`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from _inf.backends.openai import SCORES, TOKEN_MODE, VLLM_MODE, findings, sglang_server
from _inf.errors import InferenceError, RequestFailure
from inf import ConfigError, InferenceEngine
from tests.support import scripted_server
from tests.support.reference import Transformers
from tests.support.refusals import refused
from tests.support.scripted_server import USAGE, Reply, ScriptedServer, scripted
from tests.support.tiny import tiny_model

IM_END = 2
BEST, SECOND, OWN = -1.6, -2.0, -3.5  # log probs
ANSWER = [40, 41]


def likeliest(token: int, most: int) -> dict[int, float]:
    """As vLLM lists them: the token itself first, though it is not the likeliest."""
    return {token: OWN, **dict([(10, BEST), (11, SECOND)][:most])}


class Vllm:
    """vLLM with its other features. sampled: the log prob of an answer's tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.lacks: str | None = None  # a field that it refuses
        self.ignores: str | None = None  # or drops
        self.own, self.sampled, self.hot = OWN, -1.5, -1.5

    def __call__(self, path: str, body: Any) -> Reply:
        if path != "/v1/completions":
            return Reply({"error": {"message": "Not Found"}}, status=404)
        if self.lacks in body:
            said = {"message": f"{self.lacks} is not known", "param": self.lacks}
            return Reply({"error": said}, status=400)
        body = {name: value for name, value in body.items() if name != self.ignores}
        prompt = body["prompt"]
        read = self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        constrained = body.get("structured_outputs")
        ids = self.tokenizer("777")["input_ids"] + [IM_END] if constrained else ANSWER
        ids = ids[: body["max_tokens"]]
        own = self.hot if body["temperature"] > 1 else self.sampled
        most = body["logprobs"]
        rest = -10 if own > -0.1 else 0  # beside a token that is certain
        tops = [
            {f"token_id:{each}": value + rest for each, value in likeliest(i, most).items()}
            for i in ids
        ]
        choice = {
            "text": "?",
            "token_ids": ids,
            "logprobs": {"token_logprobs": [own for _ in ids], "top_logprobs": tops},
            "prompt_logprobs": None,
            "prompt_token_ids": read,
            "finish_reason": "stop" if constrained else "length",
            "stop_reason": None,
        }
        if (scored := body.get("prompt_logprobs")) is not None:
            choice["prompt_logprobs"] = [None, *(self.entry(i, scored) for i in read[1:])]
        return Reply({"choices": [choice], "usage": USAGE})

    def entry(self, token: int, most: int) -> dict[str, Any]:
        values = {**likeliest(token, most), token: self.own}
        return {
            str(each): {"logprob": value, "rank": 1, "decoded_token": "?"}
            for each, value in values.items()
        }


@pytest.fixture
def vllm(tokenizer: Any) -> Vllm:
    return Vllm(tokenizer)


@pytest.fixture
def server(vllm: Vllm) -> Iterator[ScriptedServer]:
    with scripted(vllm) as server:
        yield server


def connected(server: ScriptedServer) -> InferenceEngine:
    return scripted_server.connected(server, tokenizer_path=str(tiny_model()))


def test_start_finds_out_what_a_server_offers(server: ScriptedServer, vllm: Vllm) -> None:
    base, grammar = TOKEN_MODE.supports, {"regex"}
    with connected(server) as engine:
        assert engine.supports == base | SCORES | grammar == VLLM_MODE.supports - {"adapters"}
    for lacks, offered in (("prompt_logprobs", grammar), ("structured_outputs", SCORES)):
        for how in ("lacks", "ignores"):
            setattr(vllm, how, lacks)
            with connected(server) as engine:
                assert engine.supports == base | offered
            setattr(vllm, how, None)
    vllm.lacks = "prompt_logprobs"
    with connected(server) as engine:
        server.seen.clear()
        for call in (lambda: engine.score("a", "b"), lambda: engine.generate("a", logprobs=1)):
            with refused(ConfigError, "does not offer it; .* or openai on vLLM or inf serve does"):
                call()
    assert server.seen == []


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
            engine.score(prompts, [[8], [9]])


def test_likeliest_tokens_are_in_their_order_and_the_sampled_one_is_among_them(
    server: ScriptedServer,
) -> None:
    with connected(server) as engine:
        server.seen.clear()
        prompt: Any = {"prompt_token_ids": [5, 6]}
        [row] = engine.generate(prompt, logprobs=2, prompt_logprobs=1, temperature=1.0)
        assert row.top_logprobs is not None and row.top_prompt_logprobs is not None
        assert [list(top.items()) for top in row.top_logprobs] == [
            [(10, BEST), (11, SECOND), (i, -1.5)] for i in ANSWER
        ]
        assert row.prompt_logprobs == [None, OWN]
        assert row.top_prompt_logprobs == [None, {10: BEST, 6: OWN}]
        [sent] = server.bodies
        assert (sent["logprobs"], sent["prompt_logprobs"]) == (2, 1)
        assert sent["return_tokens_as_token_ids"] is True
        server.seen.clear()
        for changed in ({"temperature": 0.7}, {"temperature": 1.0, "presence_penalty": 0.5}):
            with refused(ConfigError, "leave logprobs out", key="logprobs"):
                engine.generate("Hi", logprobs=2, **changed)
            with refused(ConfigError, "leave logprobs out", key="logprobs"):
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
        assert engine.generate("Hi", **ours).logprobs == [[sampled] * 2]
        if others is not None:
            assert engine.generate("Hi", **others).logprobs == [None]


@pytest.mark.parametrize(("sampled", "own"), [(6.7, OWN), (-1.5, 3.0), (-40.0, -40.0)])
def test_logits_in_the_place_of_log_probs_are_refused_at_the_start(
    server: ScriptedServer, vllm: Vllm, sampled: float, own: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm.sampled = vllm.hot = sampled
    monkeypatch.setattr(vllm, "entry", lambda token, most: {str(token): {"logprob": own}})
    with refused(ConfigError, "cannot be those of a softmax", key="base_url"):
        connected(server)


# SGLang's server.


class Sglang:
    """SGLang's server; it is busy for as many requests to empty its cache."""

    def __init__(self) -> None:
        self.path, self.version = str(tiny_model()), "default"
        self.busy, self.fails = 0, False
        self.loaded: dict[str, torch.Tensor] = {}

    def __call__(self, path: str, body: Any) -> Reply:
        if path == "/generate":
            about = {"finish_reason": {"type": "length"}, "weight_version": self.version}
            about["output_token_logprobs"] = [[-0.5, 40, None]]
            return Reply({"output_ids": [40], "meta_info": about})
        if path == "/model_info":
            return Reply({"model_path": self.path, "weight_version": self.version})
        if path == "/flush_cache":
            self.busy -= 1
            text = {"content-type": "text/plain"}
            status = 200 if self.busy < 0 else 400
            return Reply(b"Cache flushed.", status, headers=text)
        if path == "/update_weights_from_disk":
            if self.fails:
                return Reply({"success": False, "message": "Failed to load"}, status=400)
            self.loaded = load_file(Path(body["model_path"]) / "model.safetensors")
            self.path, self.version = body["model_path"], body["weight_version"]
            return Reply({"success": True, "message": "Succeeded"})
        return Reply({"error": {"message": "Not Found"}}, status=404)


@pytest.fixture
def sglang() -> Sglang:
    return Sglang()


@pytest.fixture
def local(sglang: Sglang) -> Iterator[InferenceEngine]:
    with scripted(sglang) as server, connected(server) as engine:
        yield engine


def test_new_weights_go_through_a_folder_and_rows_have_their_version(
    local: InferenceEngine, sglang: Sglang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_server, "PAUSE_SECONDS", 0.01)
    model, sglang.busy = Transformers.of(tiny_model(seed=5)).model, 2
    assert local.generate("Hi").metadata[0]["weight_version"] == 0
    assert local.update_weights(model) == 1
    state = model.state_dict()
    assert sglang.loaded.keys() == state.keys()
    assert all(torch.equal(sglang.loaded[name], state[name]) for name in state)
    assert not Path(sglang.path).exists()
    assert local.update_weights(state, version=7) == local.weight_version == 7
    assert local.generate("Hi").metadata[0]["weight_version"] == 7
    local.restart()  # the folder that the server names is gone
    assert local.weight_version == 7 and local.update_weights(model) == 8


def test_weights_that_are_not_loaded_leave_the_version_as_it_is(
    local: InferenceEngine, sglang: Sglang, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Transformers.of(tiny_model(seed=5)).model
    with refused(ConfigError, "lm_head.weight has the shape", key="weights"):
        local.update_weights({**model.state_dict(), "lm_head.weight": torch.zeros(3)})
    sglang.fails = True
    with pytest.raises(InferenceError, match="Failed to load"):
        local.update_weights(model)
    monkeypatch.setattr(sglang_server, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(sglang_server, "PAUSE_SECONDS", 0.01)
    sglang.fails, sglang.busy = False, 10**6
    with pytest.raises(InferenceError, match="End its other clients first"):
        local.update_weights(model)
    assert local.weight_version == 0 and sglang.loaded == {}


def test_only_a_server_of_this_machine_is_given_new_weights(
    sglang: Sglang, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address, here in (
        ("http://localhost:1", True),
        ("http://127.0.0.2:1", True),
        ("http://[::1]:1", True),
        ("http://10.0.0.4:1", False),
        ("https://some.host/v1", False),
    ):
        assert findings._on_this_machine(address) == here
    monkeypatch.setattr(findings, "_on_this_machine", lambda _: False)
    with scripted(sglang) as server, connected(server) as engine:
        assert "update_weights" not in engine.supports and "regex" in engine.supports
        with refused(ConfigError, "SGLang's server of this machine does"):
            engine.update_weights({})
        assert math.isclose(engine.generate("Hi").logprobs[0][0], -0.5)
