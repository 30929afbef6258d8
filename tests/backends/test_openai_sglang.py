"""The backend on SGLang's own server, with a scripted one."""

import pytest

from _inf.errors import RequestFailure
from inf import ConfigError
from tests.support.refusals import refused
from tests.support.scripted_server import scripted
from tests.support.scripted_tokens import ANSWER, IM_END, Sglang, connected


@pytest.fixture
def sglang(tokenizer):
    return Sglang(tokenizer)


@pytest.fixture
def server(sglang):
    with scripted(sglang) as server:
        yield server


def test_its_own_route_is_found_and_used(server, sglang):
    with connected(server) as engine:
        server.seen.clear()
        [row] = engine.generate({"prompt_token_ids": [5, 6]}, min_p=0.1, regex="a+", stop="z")
        assert server.bodies[0]["input_ids"] == [5, 6]
        sent = server.bodies[0]["sampling_params"]
        assert (sent["min_p"], sent["regex"], sent["stop"]) == (0.1, "a+", ["z"])
        assert sent["stop_token_ids"] == [IM_END] and "json_schema" not in sent
        assert row.token_ids == ANSWER and row.logprobs == [-0.5] * 4
        assert row.metadata["matched_stop"] == IM_END and row.metadata["cached_tokens"] == 4
        sglang.version = "7"
        assert row.weight_version == 0 and engine.generate("Hi")[0].weight_version == 7
        chunks = list(engine.stream("Hi"))
        assert [token for chunk in chunks for token in chunk.token_ids] == row.token_ids
        assert chunks[-1].finish_reason == "stop"
        sglang.aborts = True
        with pytest.raises(RequestFailure, match="aborted the request: Out of memory"):
            engine.generate("Hi")


@pytest.mark.parametrize(
    "params",
    [{"seed": 3}, {"repetition_penalty": 1.1}, {"ignore_eos": True, "stop_token_ids": [7]}],
    ids=str,
)
def test_what_sglangs_server_ignores_is_refused_by_name(server, params):
    with connected(server) as engine:
        server.seen.clear()
        with refused(ConfigError, key=next(iter(params))):
            engine.generate("Hi", **params)
    assert server.seen == []
