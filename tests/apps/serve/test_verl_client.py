"""`examples/verl_client.py` against a server: what it sends, gets, and refuses.

verl's own agent loops use it in `tests/soak/test_verl09.py`.
"""

from __future__ import annotations

import asyncio
import importlib
import pickle
import socket
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import inf

CLIENT = Path(inf.__file__).parent / "examples" / "verl_client.py"
ROLLOUT = SimpleNamespace(prompt_length=512, response_length=16)
CONFIG = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=ROLLOUT))
GREEDY = {"temperature": 0, "top_p": 1.0, "top_k": -1, "logprobs": True}
PROMPT = [10, 20, 30]


@pytest.fixture(scope="module")
def module():
    """The example, without the seconds of verl's imports."""
    replica = ModuleType("verl.workers.rollout.replica")
    replica.TokenOutput = SimpleNamespace
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, replica.__name__, replica)
        patch.syspath_prepend(CLIENT.parent)
        yield importlib.import_module(CLIENT.stem)
    del sys.modules[CLIENT.stem]


@pytest.fixture
def generate(module, tiny_server):
    """`generate` of a client of the tiny model's server, with defaults for this page."""

    def call(**given: Any) -> Any:
        url = given.pop("base_url", tiny_server.base_url)
        own = module.InfServerClient(url, CONFIG, **given.pop("client", {}))
        own.record = given.pop("record", True)
        defaults = {"request_id": "one", "prompt_ids": PROMPT, "sampling_params": GREEDY}
        return asyncio.run(own.generate(**defaults | given))

    return call


def test_a_turn_has_what_the_engine_sampled_and_its_log_probs(generate, tiny, tiny_server):
    [row] = tiny.generate({"prompt_token_ids": PROMPT}, temperature=0, max_tokens=16)
    params = {**GREEDY, "repetition_penalty": 1.0}
    output = generate(sampling_params=params, priority=3, record=False)
    assert tiny_server.sessions() == []
    assert output.token_ids == row.token_ids
    assert output.log_probs == pytest.approx(row.logprobs, rel=0, abs=1e-3)
    assert output.stop_reason == "completed"
    steps = {"global_steps": 0, "min_global_steps": 0, "max_global_steps": 0}
    assert output.extra_fields == {"request_id": "one", **steps}
    seeded = [{**GREEDY, "temperature": 1.0, "seed": np.int64(seed)} for seed in (1, 1, 2)]
    one, same, other = (generate(sampling_params=params).token_ids for params in seeded)
    assert one == same != other


def test_a_turn_is_bounded_by_what_is_left_of_the_row(generate):
    endless = {**GREEDY, "ignore_eos": True}
    prompt = [*range(10, 110)] * 5  # 500 ids of at most 528
    for limit, size in (({}, 16), ({"max_tokens": 20}, 20), ({"max_new_tokens": 20}, 20)):
        ids = generate(prompt_ids=prompt, sampling_params=endless | limit).token_ids
        assert len(ids) == size


def test_turns_of_a_request_id_are_one_trace_that_is_taken_once(generate, module, tiny_server):
    first = generate()
    second = generate(prompt_ids=np.array([*PROMPT, *first.token_ids, 40]))
    own = pickle.loads(pickle.dumps(module.InfServerClient(tiny_server.base_url, CONFIG)))
    [trace] = asyncio.run(own.take_traces("one"))
    assert trace["prompt_token_ids"] == PROMPT
    assert trace["token_ids"] == [*first.token_ids, 40, *second.token_ids]
    mask = [1] * len(first.token_ids) + [0] + [1] * len(second.token_ids)
    assert trace["response_mask"] == mask
    assert trace["logprobs"] == [*first.log_probs, 0.0, *second.log_probs]
    with pytest.raises(module.InfServerError, match="404.*there is no session"):
        asyncio.run(own.take_traces("one"))


MEDIA = ("image_data", "video_data", "audio_data", "mm_processor_output")
REFUSED = [
    *(({name: [object()]}, rf"{name}: inf serve takes token ids only") for name in MEDIA),
    ({"sampling_params": {"stream": 2}}, r"sampling_params\['stream'\]"),
    ({"sampling_params": {"min_pp": 0.1}}, "status 400: min_pp: unknown.*min_p"),
    ({"sampling_params": {"logit_bias": object()}}, "cannot be sent as JSON"),
    ({"request_id": "../one?two"}, "status 4"),
    ({"prompt_ids": [10] * 528}, r"528 leave no room .* is 528"),
    (
        {"prompt_ids": [10] * 520, "sampling_params": {**GREEDY, "truncate_prompt": "left"}},
        "changed the prompt",
    ),
]


def test_what_cannot_be_sent_or_taken_is_refused_by_name(generate, module):
    for given, says in REFUSED:
        with pytest.raises((ValueError, TypeError, module.InfServerError), match=says):
            generate(**given)


def test_a_server_with_a_key_takes_its_key_only(generate, module, tiny):
    with tiny.serve(api_key="secret") as server:
        for key in (None, "wrong"):
            with pytest.raises(module.InfServerError, match="status 401"):
                generate(base_url=server.base_url, client={"api_key": key})
        assert generate(base_url=server.base_url, client={"api_key": "secret"}).token_ids


def test_a_server_that_is_not_there_or_silent_is_an_error_soon(generate, module):
    with pytest.raises(ValueError, match="base_url: '127.0.0.1:8000' does not begin with http"):
        module.InfServerClient("127.0.0.1:8000", CONFIG)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(module.InfServerError, match=r"no answer within 0\.2 s"):
            generate(base_url=url, client={"timeout_seconds": 0.2})
    with pytest.raises(module.InfServerError, match=f"POST {url}/sessions/one/v1/completions: "):
        generate(base_url=url)
