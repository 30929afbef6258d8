"""What the config names is what the running engine has, and what it does.

Two engines on the tiny model, with all keys away from their defaults between them; the session's
tiny engine stands at the defaults.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import warnings
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from _inf.backends.verl.server_arguments import NEVER
from inf import ConfigError, InferenceEngine
from tests.support.config_faults import at
from tests.support.refusals import refused
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.verl

ROOT = Path(__file__).resolve().parents[3]
LONG = [5 + at % 300 for at in range(100)]  # token ids


@pytest.fixture(scope="module")
def dummy():
    """The shipped config with much laid over it: random weights, no caches, no chunks. Its ports
    are taken meanwhile: they are only names, nothing listens on one."""
    over = {
        "dtype": "bfloat16",
        "load_format": "dummy",
        "prompt_length": 40,
        "response_length": 24,
        "max_model_len": 100,
        "max_num_seqs": 7,
        "max_num_batched_tokens": 96,
        "enable_chunked_prefill": False,
        "enable_prefix_caching": False,
        "gpu_memory_utilization": 0.25,
        "cudagraph_capture_sizes": [1, 2],
        "do_sample": False,
        "engine_kwargs": {"sglang": {"schedule_policy": "lpm", "decode_log_interval": 3}},
    }
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:

        def taken(count: int) -> list[int]:
            listening = [stack.enter_context(socket.socket()) for _ in range(count)]
            for each in listening:
                each.bind(("127.0.0.1", 0))
                each.listen()
            return [each.getsockname()[1] for each in listening]

        patch.setattr("_inf.backends.verl.server_arguments.free_ports", taken)
        engine = InferenceEngine(
            ROOT / "config.yaml",
            model_path=str(tiny_model()),
            pack_weights=torch.cuda.is_available(),  # false on a CPU, where it has an effect
            rollout=over,
        )
        yield stack.enter_context(engine)


@pytest.fixture(scope="module")
def real():
    """A mapping with a flat key and an override over it: real weights, in small chunks."""
    config = {
        "model_path": str(tiny_model()),
        "compiled_kernels": torch.cuda.is_available(),
        "max_prompt_length": 90,  # the older form of rollout.prompt_length
        "rollout": {
            "dtype": "float32",
            "load_format": "safetensors",
            "response_length": 30,
            "max_num_seqs": 9,
            "max_num_batched_tokens": 32,
            "enforce_eager": True,
            "free_cache_engine": True,
            "temperature": 0.0,
            "ignore_eos": True,
            "n": 2,
            "engine_kwargs": {"sglang": {"random_seed": 11, "schedule_conservativeness": 0.5}},
        },
    }
    over = {"engine_kwargs": {"sglang": {"random_seed": 7}}}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        engine = InferenceEngine(config, rollout=over)
    told = [w for w in warned if "config key" in str(w.message)]
    with engine:
        assert [(w.category, w.filename) for w in told] == [(DeprecationWarning, __file__)]
        assert (
            str(told[0].message) == "config key 'max_prompt_length' is now 'rollout.prompt_length'"
        )
        yield engine


def arguments(engine: InferenceEngine) -> Any:
    """The running engine's `ServerArgs`."""
    return engine.rollout._engine.server_args


def has(engine: InferenceEngine, **expected: Any) -> None:
    running = dataclasses.asdict(arguments(engine))
    assert {name: running[name] for name in expected} == expected


# ── server_args ──────────────────────────────────────────────────────────────────────────────────


def test_every_key_reaches_the_running_engine(dummy):
    has(
        dummy,
        model_path=str(tiny_model()),
        trust_remote_code=False,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        load_format="dummy",
        context_length=107,  # of which SGLang keeps seven
        max_running_requests=7,
        max_prefill_tokens=96,
        chunked_prefill_size=-1,
        disable_radix_cache=True,
        mem_fraction_static=0.25,
        cuda_graph_bs=[1, 2],
        schedule_policy="lpm",
        decode_log_interval=3,
        tp_size=1,
        dp_size=1,
        ep_size=1,
        pp_size=1,
    )
    if arguments(dummy).device == "cuda":  # without one SGLang has no graphs to disable
        has(dummy, disable_cuda_graph=False)


def test_every_key_reaches_the_other_running_engine(real):
    has(
        real,
        dtype="float32",
        load_format="safetensors",
        context_length=127,
        max_running_requests=9,
        max_prefill_tokens=32,
        chunked_prefill_size=32,
        disable_radix_cache=False,
        disable_cuda_graph=True,
        watchdog_timeout=NEVER,  # hang_timeout's is the one limit
        random_seed=7,  # the override's
        schedule_conservativeness=0.5,  # the mapping's beside it
    )
    has(real, enable_memory_saver=arguments(real).device == "cuda")


def test_weights_are_packed_and_layers_computed_in_c_unless_the_keys_say_no(dummy, real):
    assert not child_settings(dummy)["pack_weights"] and child_settings(real)["pack_weights"]
    assert child_settings(real)["kernel_library"] is None
    assert child_settings(dummy)["kernel_library"].name == "kernels.so"


def child_settings(engine: InferenceEngine) -> dict[str, Any]:
    """What the scheduler's process is set up with."""
    worker = engine.rollout._engine.run_scheduler_process_func
    return dict(worker.setup_arguments)


# ── What the keys do ─────────────────────────────────────────────────────────────────────────────


def test_answers_do_not_depend_on_chunks_caches_kernels_or_the_loader(tiny, real):
    prompts = [{"prompt_token_ids": LONG[:size]} for size in (1, 31, 32, 33, 64, 90)]
    params = {"max_tokens": 24, "temperature": 0, "n": 1, "ignore_eos": True}
    expected, answered = tiny.generate(prompts, **params), real.generate(prompts, **params)
    assert answered.token_ids == expected.token_ids
    for logprobs, reference in zip(answered.logprobs, expected.logprobs, strict=True):
        assert logprobs == pytest.approx(reference, abs=1e-3)


def test_prefix_cache_serves_a_repeated_prompt_only_where_the_config_lets_it(tiny, dummy, real):
    prompt = {"prompt_token_ids": [383, *LONG[:39]]}  # nobody else's

    def cached(engine: InferenceEngine) -> list[int]:
        calls = [engine.generate(prompt, max_tokens=4, n=1) for _ in range(3)]
        return [call.metadata[0]["cached_tokens"] for call in calls]

    assert cached(dummy) == [0, 0, 0]  # enable_prefix_caching: false
    assert cached(real) == [0, 0, 0]  # free_cache_engine: true; also after streams and scores
    for ask in (lambda: [*real.stream(prompt, max_tokens=2)], lambda: real.score(prompt, [[5]])):
        ask()
        assert cached(real) == [0, 0, 0]
    assert all(count > 30 for count in cached(tiny)[1:])
    # Rows of one call compute their prompt once, here in chunks of 32, unless there is no cache.
    for engine, second in ((dummy, 0), (real, 39)):
        output = engine.generate(prompt, max_tokens=4, n=2, temperature=1.0)
        assert [about["cached_tokens"] for about in output.metadata] == [0, second]


# ── What can be known only when the engine starts ────────────────────────────────────────────────


def test_config_that_this_engine_cannot_have_is_refused_before_it_starts(tiny):
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    for key, value, says in (
        ("tensor_model_parallel_size", 2, "needs 2 processes.* torchrun --nproc-per-node"),
        ("max_model_len", 5000, "4096"),
        ("engine_kwargs.sglang.max_total_tokens", 10**12, "would not fit into memory"),
    ):
        with refused(ConfigError, f"^rollout.{key}: .*{says}"):
            InferenceEngine(model_path=str(tiny_model()), **at(f"rollout.{key}", value))
    assert {child.pid for child in psutil.Process().children(recursive=True)} == before
