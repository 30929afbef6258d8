"""`examples/verl_client.py` against a server: what it sends, gets, and refuses.

verl's own agent loops use it in `tests/soak/test_verl09.py`.
"""

from __future__ import annotations

import asyncio
import importlib
import pickle
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import inf
from _inf.apps.serve.server import InferenceServer
from inf import InferenceEngine
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.engine

CLIENT = Path(inf.__file__).parent / "examples" / "verl_client.py"
CONFIG = SimpleNamespace(
    actor_rollout_ref=SimpleNamespace(
        rollout=SimpleNamespace(prompt_length=512, response_length=16)
    )
)
GREEDY: dict[str, Any] = {"temperature": 0, "top_p": 1.0, "top_k": -1, "logprobs": True}
PROMPT = [10, 20, 30]


@pytest.fixture(scope="module")
def module() -> Iterator[Any]:
    """The example, without the seconds of verl's imports."""
    replica = ModuleType("verl.workers.rollout.replica")
    replica.TokenOutput = SimpleNamespace  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, replica.__name__, replica)
        patch.syspath_prepend(CLIENT.parent)
        yield importlib.import_module(CLIENT.stem)
    del sys.modules[CLIENT.stem]


@pytest.fixture
def generate(module: Any, tiny_server: InferenceServer) -> Any:
    """`generate` of a client of the tiny model's server, with defaults for this page."""

    def call(**given: Any) -> Any:
        own = module.InfServerClient(given.pop("base_url", tiny_server.base_url), CONFIG)
        own.record = given.pop("record", True)
        defaults = {"request_id": "one", "prompt_ids": PROMPT, "sampling_params": GREEDY}
        return asyncio.run(own.generate(**defaults | given))

    return call


@pytest.fixture(autouse=True)
def no_sessions_stay(tiny_server: InferenceServer) -> Iterator[None]:
    yield
    for name in tiny_server.sessions():
        tiny_server._service.sessions.delete(name)


def test_a_turn_has_what_the_engine_sampled_and_its_log_probs(
    generate: Any, tiny: InferenceEngine
) -> None:
    [row] = tiny.generate({"prompt_token_ids": PROMPT}, temperature=0, max_tokens=16)
    output = generate(sampling_params={**GREEDY, "repetition_penalty": 1.0}, priority=3)
    assert output.token_ids == row.token_ids
    assert output.log_probs == pytest.approx(row.logprobs, rel=0, abs=1e-3)
    assert output.stop_reason == "completed"
    steps = {"global_steps": 0, "min_global_steps": 0, "max_global_steps": 0}
    assert output.extra_fields == {"request_id": "one", **steps}
    assert generate(sampling_params={**GREEDY, "logprobs": False}).log_probs is None


def test_a_turn_is_bounded_by_what_is_left_of_the_row(generate: Any) -> None:
    endless = {**GREEDY, "ignore_eos": True}
    prompt = [*range(10, 110)] * 5  # 500 ids of at most 528
    assert len(generate(prompt_ids=prompt, sampling_params=endless).token_ids) == 16
    given = {"max_tokens": 20}, {"max_new_tokens": 20}
    for limit in given:
        assert len(generate(prompt_ids=prompt, sampling_params=endless | limit).token_ids) == 20
    with pytest.raises(ValueError, match=r"528 leave no room .* is 528"):
        generate(prompt_ids=[10] * 528)


def test_turns_of_a_request_id_are_one_trace_that_is_taken_once(
    generate: Any, module: Any, tiny_server: InferenceServer
) -> None:
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


def test_nothing_is_recorded_where_that_is_not_wanted(
    generate: Any, tiny_server: InferenceServer
) -> None:
    generate(record=False)
    assert tiny_server.sessions() == []


def test_a_seed_from_a_rows_column_reaches_the_engine(generate: Any) -> None:
    def sampled(seed: int) -> Any:
        params = {**GREEDY, "temperature": 1.0, "seed": np.int64(seed)}
        return generate(sampling_params=params).token_ids

    assert sampled(1) == sampled(1) != sampled(2)


@pytest.mark.parametrize("name", ["image_data", "video_data", "audio_data", "mm_processor_output"])
def test_images_and_sounds_are_refused(name: str, generate: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name}: inf serve takes token ids only"):
        generate(**{name: [object()]})


@pytest.mark.parametrize("name", ["n", "prompt_logprobs", "stream", "prompt"])
def test_a_parameter_whose_answer_verl_cannot_take_is_refused(name: str, generate: Any) -> None:
    with pytest.raises(ValueError, match=rf"sampling_params\['{name}'\]"):
        generate(sampling_params={name: 2})


def test_a_parameter_that_the_server_does_not_know_is_refused_by_name(
    generate: Any, module: Any
) -> None:
    with pytest.raises(module.InfServerError, match="status 400: min_pp: unknown.*min_p"):
        generate(sampling_params={"min_pp": 0.1})
    with pytest.raises(TypeError, match="cannot be sent as JSON"):
        generate(sampling_params={"logit_bias": object()})


def test_a_request_id_that_is_no_name_of_a_session_is_refused(generate: Any, module: Any) -> None:
    with pytest.raises(module.InfServerError, match="status 4"):
        generate(request_id="../one?two")


def test_a_server_with_a_key_takes_its_key_only(module: Any, tiny: InferenceEngine) -> None:
    with tiny.serve(api_key="secret") as server:
        for key in (None, "wrong"):
            own = module.InfServerClient(server.base_url, CONFIG, api_key=key)
            with pytest.raises(module.InfServerError, match="status 401"):
                asyncio.run(own.generate("one", prompt_ids=PROMPT, sampling_params=GREEDY))
        own = module.InfServerClient(server.base_url, CONFIG, api_key="secret")
        assert asyncio.run(own.generate("one", prompt_ids=PROMPT, sampling_params=GREEDY)).token_ids


def test_a_server_that_is_not_there_or_silent_is_an_error_soon(generate: Any, module: Any) -> None:
    with pytest.raises(ValueError, match="base_url: '127.0.0.1:8000' does not begin with http"):
        module.InfServerClient("127.0.0.1:8000", CONFIG)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        own = module.InfServerClient(url, CONFIG, timeout_seconds=0.2)
        with pytest.raises(module.InfServerError, match=r"no answer within 0\.2 s"):
            asyncio.run(own.generate("one", prompt_ids=PROMPT, sampling_params=GREEDY))
    with pytest.raises(module.InfServerError, match=f"POST {url}/sessions/one/v1/completions: "):
        generate(base_url=url)


def test_a_server_that_cuts_prompts_is_an_error(module: Any) -> None:
    lengths = {"prompt_length": 2, "response_length": 8, "max_model_len": 64}
    rollout = {"name": "hf", "dtype": "float32", **lengths}
    settings = {"model_path": str(tiny_model()), "truncate_prompt": "left", "rollout": rollout}
    with InferenceEngine(settings) as engine, engine.serve() as server:
        own = module.InfServerClient(server.base_url, CONFIG)
        with pytest.raises(module.InfServerError, match="changed the prompt"):
            asyncio.run(own.generate("one", prompt_ids=PROMPT, sampling_params=GREEDY))
