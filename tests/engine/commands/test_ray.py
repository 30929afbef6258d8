"""`inf batch --workers` and `InferenceWorker` on this machine's Ray: real engines, real deaths."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

import inf
from _inf.apps.batch import fingerprint
from _inf.apps.cli import main
from _inf.apps.ray import run as ray_run
from _inf.apps.ray.cluster import LOCAL, cluster
from _inf.apps.ray.run import share_of
from _inf.config import load_config
from inf import ConfigError, EngineDeadError, InferenceEngine, InferenceWorker
from tests.support.json_lines import write
from tests.support.scripts import INF, START_SECONDS, Script, alive, command_line, script, until

ROWS = 300
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


def asked(lengths: list[int]) -> list[Any]:
    """Lines of OpenAI's form, and one that is bad."""
    talks = [[{"role": "user", "content": f"Count from {index}."}] for index in range(len(lengths))]
    bodies = [
        {"messages": talk, "max_tokens": length, **GREEDY}
        for talk, length in zip(talks, lengths, strict=True)
    ]
    return [
        *({"custom_id": f"row {index}", "body": body} for index, body in enumerate(bodies)),
        "not JSON",
    ]


def actors(run: Script) -> list[psutil.Process]:
    """Ray's processes of its that have an engine's below them."""
    found = []
    for process in run.meet():
        with contextlib.suppress(psutil.NoSuchProcess):
            named, children = process.cmdline()[:1], process.children(recursive=True)
            if named and named[0].startswith("ray::") and any(map(scheduler, children)):
                found.append(process)
    return found


def scheduler(process: psutil.Process) -> bool:
    return "sglang::scheduler" in command_line(process)


# ─── The command ───


@pytest.mark.soak  # over a minute
def test_killed_actor_and_killed_engine_lose_and_double_no_row(tiny, tmp_path, monkeypatch):
    chance = random.Random(7)
    lengths = [chance.randint(10, 120) for _ in range(ROWS)]
    source, out = write(tmp_path / "in.jsonl", asked(lengths)), tmp_path / "out.jsonl"
    config = tmp_path / "tiny.yaml"
    config.write_text(json.dumps(tiny.config.to_dict()))
    arguments = ["batch", str(source), str(out), "-c", str(config), "--workers", "2"]

    def rows() -> int:
        return out.read_bytes().count(b"\n") if out.exists() else 0

    def until_rows(least: int) -> None:
        over = lambda: rows() >= least or run._popen.poll() is not None  # noqa: E731
        assert until(over, START_SECONDS), run.err
        assert rows() >= least, run.err

    with script(INF, tmp_path / "run", arguments=arguments) as run:
        until_rows(1)
        assert until(lambda: len(actors(run)) == 2, 60)
        assert rows() < ROWS / 2
        first, second = actors(run)
        first.kill()
        for child in filter(scheduler, second.children(recursive=True)):
            child.kill()
        assert run.exit_code(START_SECONDS) == 1, run.err  # for the line that is not JSON
        assert until(lambda: not alive(run.family), 30), alive(run.family)

    answers = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [row["custom_id"] for row in answers] == [*(f"row {i}" for i in range(ROWS)), None]
    error = answers.pop()["error"]
    assert "JSON" in error["message"]
    prompts = [f"Count from {index}." for index in range(ROWS)]
    wanted = tiny.generate(prompts, max_tokens=lengths, **GREEDY)
    texts = [row["response"]["body"]["choices"][0]["message"]["content"] for row in answers]
    assert texts == wanted.completions
    assert not list(Path("/tmp").glob(f"inf-ray-*/session_*_{run.pid}"))

    # The same run to one engine here: it finds nothing left to do.
    monkeypatch.setattr(inf, "InferenceEngine", lambda *_, **__: contextlib.nullcontext(tiny))
    before = out.read_bytes()
    assert main(arguments[:-2]) == 1
    assert out.read_bytes() == before


@pytest.mark.verl
def test_address_where_no_cluster_is_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConfigError, match="RAY_ADDRESS: no cluster answers at 127.0.0.1:1"):
        with cluster():
            pass


ALONE = """
import os
from pathlib import Path
from _inf.apps.ray.cluster import cluster

with cluster() as ray:
    node = ray._private.worker._global_node
    session = Path(node.get_session_dir_path())
    say("modes", [folder.stat().st_mode & 0o777 for folder in (session, *session.parents)])
    say("mode", os.environ["RAY_AUTH_MODE"])
    say("home", [str(each) for each in Path.home().rglob("*") if each.is_file()])
    say("answer", ray.get(ray.remote(lambda: 7).remote()))
"""


@pytest.mark.slow
def test_other_users_can_neither_read_its_files_nor_give_it_work(tmp_path):
    (tmp_path / "home").mkdir()
    with script(ALONE, tmp_path / "run", variables={"HOME": str(tmp_path / "home")}) as run:
        assert 0o700 in run.hear("modes")[1:]
        assert run.hear("mode") == "token"  # Ray then accepts nothing without its token,
        assert run.hear("home") == []  # which it would write where all can read it
        assert run.hear("answer") == 7
        assert run.exit_code() == 0, run.err


# ─── What an engine gets ───


# Each machine's free cores and GPUs, of 8 GPUs in the cluster where one has any; the device, the
# engines, and what each gets or what is said.
SHARES: list[tuple[list[tuple[float, float]], str, int, Any]] = [
    ([(16, 8)], "auto", 8, {"num_gpus": 1}),
    ([(16, 8)], "cpu", 5, {"num_cpus": 3}),
    ([(8, 0), (8, 0)], "auto", 3, {"num_cpus": 4}),
    ([(64, 0), (2, 0)], "auto", 2, {"num_cpus": 32}),
    ([(7, 0), (4, 0)], "auto", 3, {"num_cpus": 3}),
    ([(2, 0)], "auto", 3, "3 engines .* 2 of 2 are free; lower it"),
    ([(7, 0.5)], "auto", 1, "GPUs, of which 0 of 8 are free"),
    ([(7, 0)], "cuda", 9, "0 of 8 are free"),
]


@pytest.mark.parametrize(("free", "device", "workers", "wanted"), SHARES)
def test_share_is_a_gpu_or_as_many_cores_as_each_engine_finds_on_one_machine(
    free, device, workers, wanted
):
    config = load_config(None, {"device": device, "rollout": {"max_num_seqs": 1024}})
    machines = [{"CPU": float(cores), "GPU": float(gpus)} for cores, gpus in free]
    has_gpus = device == "cuda" or any(each["GPU"] for each in machines)
    whole = {"CPU": sum(each["CPU"] for each in machines), "GPU": 8.0 * has_gpus}
    if isinstance(wanted, dict):
        assert share_of(whole, machines, config, workers) == wanted
        return
    with pytest.raises(ConfigError, match=f"--workers: .*{wanted}"):
        share_of(whole, machines, config, workers)


@pytest.fixture
def two_machines(monkeypatch):
    """Ray's own cluster for tests: two machines that say they have 8 cores each, on loopback."""
    import ray
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="inf-ray-", dir="/tmp") as folder:
        (Path(folder) / "ray").mkdir()
        for name, value in {
            **LOCAL,
            "RAY_TMPDIR": folder,
            "RAY_BACKEND_LOG_LEVEL": "fatal",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
        machine = {"num_cpus": 8, "object_store_memory": 80 * 2**20}
        head = {**machine, "include_dashboard": False}
        machines = Cluster(initialize_head=True, head_node_args=head)
        try:
            machines.second = machines.add_node(**machine)
            ray.init(machines.address, log_to_driver=False, logging_level="CRITICAL")
            yield machines
        finally:
            ray.shutdown()
            machines.shutdown()


@pytest.mark.slow
@pytest.mark.verl
def test_three_engines_on_two_machines_find_their_places_and_a_lost_one_ends_the_wait(
    two_machines, monkeypatch
):
    import ray
    from ray._private.state import available_resources_per_node

    monkeypatch.setattr(ray_run, "CHECK_SECONDS", 0.5)

    class Worker:
        def __call__(self, block: dict[str, Any]) -> dict[str, Any]:
            return {**block, "machine": ray.get_runtime_context().get_node_id()}

    def answers() -> list[dict[str, Any]]:
        return list(ray_run._answered(ray, actors, [(line, b"") for line in range(36)], 1))

    free = list(available_resources_per_node().values())
    share = share_of(ray.cluster_resources(), free, load_config(None, {}), 3)
    worker = ray.remote(max_restarts=-1, max_task_retries=-1, **share)(Worker)
    actors = [worker.remote() for _ in range(3)]
    first = answers()
    assert sorted(block["line"][0] for block in first) == list(range(36))
    assert len({block["machine"] for block in first}) == 2
    two_machines.remove_node(two_machines.second)
    monkeypatch.setattr(ray_run, "PLACE_SECONDS", 3.0)
    with pytest.raises(EngineDeadError, match="place for only 2 of 3 engines"):
        answers()


# ─── The worker ───


class Handle:
    """The session's engine, that a worker may start and stop as it likes."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine, self.starts = engine, 0

    def __call__(self, config: Any) -> Handle:
        self.starts += 1
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def shutdown(self) -> None:
        pass


@pytest.fixture
def handle(tiny, monkeypatch):
    handle = Handle(tiny)
    monkeypatch.setattr(inf, "InferenceEngine", handle)
    yield handle


def test_worker_answers_lines_beside_their_columns_from_several_threads(handle, tiny):
    worker = InferenceWorker(params={"temperature": 0, "max_tokens": 9})
    prompts = [[f"{name} {i}" for i in range(3)] for name in "abcd"]
    texts = [[*(json.dumps({"prompt": each}) for each in three), b"{"] for three in prompts]
    with concurrent.futures.ThreadPoolExecutor() as threads:
        answered = list(threads.map(worker, [{"text": four, "of": four[::-1]} for four in texts]))
    assert handle.starts == 1
    for batch, four, three in zip(answered, texts, prompts, strict=True):
        assert batch["of"] == four[::-1]
        alone = tiny.generate(three, temperature=0, max_tokens=9)
        *answers, bad = map(json.loads, batch["answer"])
        assert [answer["completion"] for answer in answers] == alone.completions
        assert batch["completion_tokens"] == [*map(len, alone.token_ids), 0]
        assert "JSON" in bad["error"]["message"]


def test_worker_refuses_wrong_parameters_and_another_model_once_and_not_by_line(handle, tiny):
    batch = {"text": ['{"prompt": "Hello"}']}
    with pytest.raises(ConfigError, match="top_p"):
        InferenceWorker(params={"top_p": 7})(batch)
    model = fingerprint.of_config(tiny.config)["model"]
    with pytest.raises(ConfigError, match="model_path: .* on a worker's machine differ from the"):
        InferenceWorker(model="other")(batch)
    assert "completion" in json.loads(InferenceWorker(model=model)(batch)["answer"][0])
    rollout = json.loads(InferenceWorker(model=model, rollouts=True)(batch)["answer"][0])
    assert len(rollout["response_ids"]) == len(rollout["logprobs"]) > 0
