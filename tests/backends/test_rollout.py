"""Batches that `engine.rollout` refuses without an engine, and verl's own rollout beside ours."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from _inf.backends.verl import environment
from _inf.errors import ConfigError
from _inf.request.prompts import object_array

pytestmark = [pytest.mark.engine, pytest.mark.verl]  # it imports the whole stack


@pytest.fixture(scope="module")
def upstream():
    """verl's module, which can be imported once the environment is prepared."""
    environment.prepare("auto")

    from _inf.backends.verl import corrected_rollout

    return corrected_rollout


@pytest.mark.parametrize("name", ["tools_kwargs", "interaction_kwargs"])
@pytest.mark.parametrize("value", [np.zeros(1), [0], {"a": 1}], ids=repr)
def test_column_of_any_kind_that_one_turn_cannot_serve_is_refused(upstream, name, value):
    empty = [None, {}, [], np.array([])]
    batch = upstream.DataProto(non_tensor_batch={name: object_array([*empty, value])})
    says = rf"^non_tensor_batch\['{name}'\]\[4\]: .*(generate\(\) or rollout_batch\(\)|text only)"
    with pytest.raises(ConfigError, match=says):
        upstream.CorrectedRollout.generate_sequences(SimpleNamespace(), batch)


@pytest.mark.parametrize(
    ("do_sample", "meta_info", "kwargs", "greedy"),
    [
        (True, {}, {}, False),
        (False, {}, {}, True),
        (False, {"do_sample": True}, {}, False),
        (False, {"validate": True}, {}, False),  # `val_kwargs` say it
        (False, {}, {"temperature": 0.5}, False),
    ],
)
def test_do_sample_of_the_config_holds_where_the_batch_does_not_say(
    upstream, do_sample, meta_info, kwargs, greedy
):
    seen = {}
    rollout = SimpleNamespace(
        config=SimpleNamespace(do_sample=do_sample),
        host=None,
        run=lambda prompts, call, **kwargs: seen.update(kwargs),
    )
    batch = upstream.DataProto(meta_info=meta_info)
    upstream.CorrectedRollout.generate_sequences(rollout, batch, **kwargs)
    assert (seen.get("temperature") == 0) is greedy
    assert seen.get("temperature") == (0 if greedy else kwargs.get("temperature"))


DEVICES = """
import os, sys
from types import SimpleNamespace
from _inf.backends.verl.environment import prepare
NAME = "ASCEND_RT_VISIBLE_DEVICES"  # verl's for devices without CUDA
os.environ[NAME] = sys.argv[1]
prepare("cpu")
from _inf.backends.verl.corrected_rollout import CorrectedRollout
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for os.environ[NAME] in sys.argv[1:]:
    rollout = object.__new__(CorrectedRollout)
    rollout.config, rollout.host = {}, SimpleNamespace(on_stop=[])
    rollout._init_distributed_env(device_mesh_cpu=None)
    print(os.environ[NAME])
"""


@pytest.mark.slow
def test_engine_sees_the_devices_of_its_caller_in_their_order():
    """verl sorts them as numbers."""
    devices = ["1,0", "GPU-8b5f0a42,MIG-1c"]
    command = [sys.executable, "-c", DEVICES, *devices]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-2:] == devices, done.stderr[-2000:]


def test_rollout_of_verls_own_in_the_same_process_finds_its_own_modules(upstream, monkeypatch):
    """Where no call of ours runs and no engine of ours starts."""
    import asyncio
    import multiprocessing

    import torch
    from sglang.srt.entrypoints import engine
    from sglang.srt.managers import tokenizer_manager
    from verl.workers.rollout.sglang_rollout import sglang_rollout

    met = []

    async def running() -> None:
        assert sglang_rollout.asyncio.get_event_loop() is asyncio.get_running_loop()
        await tokenizer_manager.print_exception_wrapper(works)

    async def works() -> None:
        met.append("done")

    asyncio.run(running())
    monkeypatch.setattr(torch.distributed, "barrier", lambda *args: met.append(args))
    sglang_rollout.dist.barrier()
    monkeypatch.setattr(multiprocessing, "set_start_method", lambda *a, **k: met.append((a, k)))
    sglang_rollout.mp.set_start_method("spawn", force=True)
    assert met == ["done", (), (("spawn",), {"force": True})]
    assert type(engine.mp.Process(target=print, args=("x",))) is multiprocessing.Process
