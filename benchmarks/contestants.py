"""The engines that `throughput.py` and `peers.py` compare, each in a child process.

Each process loads its engine, reports so with a line of JSON, and then answers one job per line
until stdin ends.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import dataclasses
import gzip
import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SAMPLING: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "ignore_eos": True}
# Our server arguments that `default` gets too; without them the comparison would be another one.
SAME = ("model_path", "dtype", "device", "mem_fraction_static", "trust_remote_code", "log_level")
# And these if the config sets them; on a CPU always, because SGLang does not choose them there.
SET = ("attention_backend", "sampling_backend", "max_total_tokens")
GPU_EVENTS = {"kernel", "gpu_memcpy", "gpu_memset"}


class Channel:
    """JSON lines on the process's own stdin and stdout, out of reach of code that prints."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def send(self, answer: Any) -> None:
        print(json.dumps(answer), file=self._out, flush=True)

    def jobs(self) -> Iterator[dict[str, Any]]:
        return map(json.loads, sys.stdin)


def ours(channel: Channel, config: str | None, assignments: list[str]) -> None:
    from _inf.config import parse_assignments
    from inf import InferenceEngine

    with InferenceEngine(config, **parse_assignments(assignments)) as engine:
        server_args = engine.rollout._engine.server_args
        own = engine.config.rollout.engine_kwargs["sglang"]
        facts = {
            "model": server_args.model_path,
            "dtype": server_args.dtype,
            "device": server_args.device,
            "max_running_requests": server_args.max_running_requests,
            "server_args": {k: str(v) for k, v in dataclasses.asdict(server_args).items()},
        }
        told = SAME + (SET if engine.on_cpu else tuple(filter(own.get, SET)))
        arguments = {
            "raw": base64.b64encode(pickle.dumps(server_args)).decode(),
            "default": {name: getattr(server_args, name) for name in told},
        }
        channel.send({"engine": facts, "server_args": arguments})
        for job in channel.jobs():
            if "texts" in job:
                channel.send(tokenized(engine.tokenizer, job["texts"], job["cut"]))
                continue
            manager, run = engine.rollout._engine.tokenizer_manager, engine.rollout.host.run_alone
            with profiled(job, manager, run) as told:
                told |= timed(engine, job)
            channel.send(told)


other_schedule = ours


def hf(channel: Channel, config: str | None, assignments: list[str]) -> None:
    from _inf.config import parse_assignments
    from inf import InferenceEngine

    with InferenceEngine(config, **parse_assignments([*assignments, "rollout.name=hf"])) as engine:
        channel.send("ready")
        for job in channel.jobs():
            channel.send(timed(engine, job))


def timed(engine: Any, job: dict[str, Any]) -> dict[str, Any]:
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    start = time.perf_counter()
    output = engine.generate(prompts, max_tokens=job["limits"], progress=False, **SAMPLING)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "tokens": [len(row) for row in output.logprobs]}


def tokenized(tokenizer: Any, texts: list[str], cut: int | None) -> list[list[int]]:
    """Tokenize messages as the engine renders them, and keep `cut` tokens of each."""
    conversations = [[{"role": "user", "content": text}] for text in texts]
    ids = tokenizer.apply_chat_template(
        conversations, add_generation_prompt=True, return_dict=False
    )
    return [row[:cut] for row in ids]


def raw(channel: Channel, server_args: str) -> None:
    prepare()
    answer_raw(channel, copy.copy(pickle.loads(base64.b64decode(server_args))))


def default(channel: Channel, server_args: dict[str, Any]) -> None:
    prepare()
    from sglang.srt.server_args import ServerArgs

    answer_raw(channel, ServerArgs(**server_args))


def prepare() -> None:
    """Prepare the process for an engine of SGLang's, whose children also need the stubs of CUDA's
    libraries, where there is no GPU; ours are forked from a process that has loaded them."""
    from _inf.backends.verl import compiled_libraries, environment

    missing = map(compiled_libraries.LIBRARIES.__getitem__, compiled_libraries.load_stubs())
    folders = [str(compiled_libraries.stub(each).parent) for each in missing]
    environment.prepare()  # it looks for a GPU, where no stub may be found
    known = filter(None, [*folders, os.environ.get("LD_LIBRARY_PATH")])
    os.environ["LD_LIBRARY_PATH"] = ":".join(known)


def answer_raw(channel: Channel, server_args: Any) -> None:
    import sglang

    server_args.host = "127.0.0.1"
    server_args.port, server_args.nccl_port = free_port(), free_port()
    engine = sglang.Engine(server_args=server_args)
    channel.send("ready")
    for job in channel.jobs():
        params = [{**SAMPLING, "max_new_tokens": limit} for limit in job["limits"]]
        with profiled(job, engine.tokenizer_manager, engine.loop.run_until_complete) as told:
            start = time.perf_counter()
            outputs = engine.generate(
                input_ids=job["prompts"], sampling_params=params, return_logprob=True
            )
            told["seconds"] = time.perf_counter() - start
        lengths = [len(output["meta_info"]["output_token_logprobs"]) for output in outputs]
        channel.send(told | {"tokens": lengths})


@contextlib.contextmanager
def profiled(job: dict[str, Any], manager: Any, run: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield a dict for the answer. If the job names a folder for SGLang's profile, it gets the
    `share` of the time in which the GPU was busy; on a CPU, in which an operator ran."""
    told: dict[str, Any] = {}
    if (folder := job.get("profile")) is None:
        yield told
        return
    on_gpu = manager.server_args.device == "cuda"
    plain = {"with_stack": False, "record_shapes": False}
    activities = ["GPU" if on_gpu else "CPU"]
    run(manager.start_profile(output_dir=folder, activities=activities, **plain))
    yield told
    run(manager.stop_profile())
    told["share"] = busy_share(Path(folder), GPU_EVENTS if on_gpu else {"cpu_op"})


def busy_share(folder: Path, categories: set[str]) -> float:
    """The share of the time between the first and the last event of a profile in which one ran."""
    [file] = folder.glob("*.trace.json.gz")
    with gzip.open(file, "rt") as trace:
        events = json.load(trace)["traceEvents"]
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in categories)
    start = end = spans[0][0]
    busy = 0.0
    for begins, ends in spans:
        busy += max(0.0, ends - max(begins, end))
        end = max(end, ends)
    return float(busy / (end - start))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def transformers(channel: Channel, model: str, dtype: str, device: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).to(device).eval()
    network.generation_config.eos_token_id = None  # like ignore_eos
    tied = network.get_input_embeddings().weight is network.get_output_embeddings().weight
    looked_up = 0 if tied else network.get_input_embeddings().weight.nbytes
    bytes_a_step = sum(each.nbytes for each in network.parameters()) - looked_up
    channel.send("ready")
    for job in channel.jobs():
        if "bandwidth" in job:
            copied = copy_bandwidth(torch, device)
            channel.send({"bytes_a_second": copied, "bytes_a_step": bytes_a_step})
            continue
        width = max(map(len, job["prompts"]))
        start = time.perf_counter()
        ids = torch.tensor([[0] * (width - len(row)) + row for row in job["prompts"]])
        mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in job["prompts"]])
        with torch.inference_mode():
            answers = network.generate(
                ids.to(device),
                attention_mask=mask.to(device),
                max_new_tokens=max(job["limits"]),
                do_sample=True,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                pad_token_id=0,
            )[:, width:].tolist()
        seconds = time.perf_counter() - start
        lengths = [len(row[:limit]) for row, limit in zip(answers, job["limits"], strict=True)]
        channel.send({"seconds": seconds, "tokens": lengths})


def vllm(channel: Channel, model: str, dtype: str) -> None:
    """vLLM, in an environment of its own, with log probs like the other engines."""
    # Otherwise it takes most of the memory, which the others need, and perhaps only one thread.
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "2", "OMP_NUM_THREADS": str(cores())}
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    from vllm import LLM, SamplingParams

    engine = LLM(model, dtype=dtype, max_model_len=2048, max_num_seqs=64)
    channel.send("ready")
    for job in channel.jobs():
        prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
        params = [
            SamplingParams(temperature=1.0, ignore_eos=True, max_tokens=limit, logprobs=0)
            for limit in job["limits"]
        ]
        start = time.perf_counter()
        outputs = engine.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        lengths = [len(output.outputs[0].token_ids) for output in outputs]
        channel.send({"seconds": seconds, "tokens": lengths})


def llama_cpp(channel: Channel, programs: str, gguf: str, scratch: str) -> None:
    """llama.cpp's own batch benchmark, which reads prompts of any tokens and samples none."""
    model = os.path.join(scratch, "float32.gguf")
    quantize = [f"{programs}/llama-quantize", "--allow-requantize", gguf, model, "F32"]
    subprocess.run(quantize, check=True, stdout=sys.stderr, timeout=600)
    channel.send("ready")
    for job in channel.jobs():
        [prompt], [limit] = set(map(len, job["prompts"])), set(job["limits"])
        rows = len(job["limits"])
        command = [f"{programs}/llama-batched-bench", "--model", model]
        command += ["--threads", str(cores()), "--ctx-size", str(rows * (prompt + limit))]
        command += ["-npp", str(prompt), "-ntg", str(limit), "-npl", str(rows)]
        command += ["--output-format", "jsonl"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
        [figures] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        times = {"seconds": figures["t"], "decoding": figures["t_tg"]}
        channel.send(times | {"tokens": [figures["tg"]] * figures["pl"]})


def cores() -> int:
    return len(os.sched_getaffinity(0))


def copy_bandwidth(torch: Any, device: str) -> float:
    """Return bytes read plus written per second: the best of ten copies of half a gigabyte."""
    source = torch.ones(1 << 27, device=device)
    target, best = torch.empty_like(source), float("inf")
    for _ in range(10):
        start = time.perf_counter()
        target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return float(2 * source.nbytes / best)


if __name__ == "__main__":
    globals()[sys.argv[2]](Channel(), **json.loads(sys.argv[3]))
