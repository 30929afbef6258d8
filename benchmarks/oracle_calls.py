"""The calls that `oracle.py` compares: draws them, makes them, and writes what each one gave.

    python benchmarks/oracle_calls.py MODELS.json OUT.jsonl [--only KIND]

It runs against the `inf` that Python finds, of any commit, so it uses nothing but the public API. A
call is known by its name, and drawn from that name alone: `sglang keywords 17` is the same call
whatever else runs. MODELS.json has the folders of the models: `tiny`, `tools` and `adapter`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import httpx

import inf

Engine: TypeAlias = Any  # inf.InferenceEngine, of whatever commit
Call: TypeAlias = Callable[[Engine, random.Random], Any]

VOCABULARY = 384
LENGTHS = {"prompt_length": 512, "response_length": 64, "dtype": "float32", "do_sample": False}
SGLANG = {**LENGTHS, "name": "sglang", "enforce_eager": True, "max_num_seqs": 64}
HF = {**LENGTHS, "name": "hf"}
LORA = {"sglang": {"enable_lora": True, "max_lora_rank": 8, "max_loras_per_batch": 2}}
THOUGHTS = {"reasoning_parser": {"start": "<think>", "end": "</think>"}}
TEXTS = ["What is the capital of France?", "def main(args):", "Say 🍎, ∑ and π.", "7", "a b " * 40]

# ─── What is drawn ───

VALUES: dict[str, list[Any]] = {
    "temperature": [0, 0.7, 1.3],
    "top_k": [1, 5, 40],
    "top_p": [0.5, 0.9],
    "min_p": [0.02, 0.2],
    "min_tokens": [3, 6],
    "stop": [["e"], ["th", "a"], "is"],
    "stop_token_ids": [[40, 41], [65]],
    "ignore_eos": [True],
    "presence_penalty": [1.2, -0.5],
    "frequency_penalty": [0.6],
    "repetition_penalty": [1.3, 0.8],
    "logit_bias": [{5: 3.0, 77: -30.0}],
    "allowed_token_ids": [[*range(30, 140)]],
    "bad_words": [["a", "the"], ["ab", "e"]],
    "logprob_token_ids": [[9, 300]],
    "thinking_token_budget": [0, 3],
    "repetition_detection": [{"max_pattern_size": 3, "min_count": 2}],
    "regex": ["[a-f]{2,9}", "(yes|no), [a-z]+"],
    "json_schema": [{"type": "boolean"}, {"type": "array", "items": {"enum": ["a", 1]}}],
    "include_stop_str_in_output": [True],
    "skip_special_tokens": [False],
    "logprobs": [0, 3],
    "prompt_logprobs": [True, 2],
    "sampling_mask": [True],
    "chat_template_kwargs": [{"enable_thinking": False}],
    "n": [1, 3],
}
APART = ["regex", "json_schema", "thinking_token_budget", "allowed_token_ids", "bad_words"]
APART_TOO = ["logprobs", "logprob_token_ids"]
OF_STREAMS = sorted(set(VALUES) - {"n", "prompt_logprobs", "sampling_mask"})
WRONG: list[dict[str, Any]] = [
    {"temperature": -1}, {"temperature": math.nan}, {"top_p": 0}, {"top_p": 2}, {"top_k": 0},
    {"min_p": 1.5}, {"max_tokens": 0}, {"max_tokens": 2.5}, {"max_tokens": 10**7}, {"n": 0},
    {"min_tokens": 99}, {"stop": [""]}, {"stop": 5}, {"stop_token_ids": [-1]}, {"seed": -1},
    {"stop_token_ids": [VOCABULARY]}, {"seed": 2**63}, {"seed": [1, 2, 3]}, {"logprobs": -2},
    {"presence_penalty": 3}, {"repetition_penalty": 0}, {"logit_bias": {"x": 1}},
    {"logit_bias": {5: 200}}, {"allowed_token_ids": []}, {"bad_words": [""]},
    {"logprob_token_ids": [*range(200)]}, {"thinking_token_budget": -2},
    {"repetition_detection": {"max_pattern_size": 0}}, {"repetition_detection": {"size": 1}},
    {"regex": "("}, {"regex": "a", "json_schema": {}}, {"json_schema": {"type": "text"}},
    {"json_schema": "{"}, {"do_sample": False, "temperature": 1}, {"do_sample": "no"},
    {"tools": [5]}, {"tools": [{"type": "function"}]}, {"tools_kwargs": {"x": {}}},
    {"interaction_kwargs": {"name": "x"}}, {"agent_loop": "x"}, {"agent_kwargs": {"a": 1}},
    {"adapter": "x"}, {"num_beams": 0}, {"num_beams": 2, "temperature": 1},
    {"chat_template": "{% if %}"}, {"chat_template_kwargs": {"messages": 1}},
    {"continue_final_message": True}, {"truncate_prompt": "middle"}, {"timeout": 0},
    {"on_error": "skip"}, {"progress": 1}, {"skip_special_tokens": 1}, {"sampling_mask": 2},
    {"prompt_logprobs": "all"}, {"return_routed_experts": True}, {"temprature": 1},
    {"environment_factory": 5}, {"environment_kwargs": {"a": 1}}, {"max_tokens_per_turn": 0},
]  # fmt: skip
WRONG_PROMPTS: list[Any] = [
    5, "", [""], None, ["a", 5], {"prompt_token_ids": []}, {"prompt_token_ids": [VOCABULARY]},
    {"prompt_token_ids": [1.5]}, {"text": 5}, {"prompt": "a"}, [{"role": "user"}], [[]],
    [{"role": "king", "content": "a"}], [{"role": "user", "content": 5}], ["a", [{}]],
    ["a " * 2000, "b"], "\ud800", [{"role": "tool", "content": "a", "tool_call_id": 5}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
]  # fmt: skip
WRONG_CONFIGS: list[dict[str, Any]] = [
    {"rollout": {"temprature": 1}}, {"rollout": {"name": "vllm"}}, {"rollout": {"mode": "sync"}},
    {"rollout": {"n": 0}}, {"rollout": {"dtype": "int8"}}, {"rollout": {"max_model_len": 10}},
    {"rollout": {"prompt_length": -1}}, {"rollout": {"top_p": 0}}, {"device": "tpu"},
    {"rollout": {"engine_kwargs": {"sglang": {"tp_size": 2}}}}, {"truncate_prompt": "middle"},
    {"rollout": {"engine_kwargs": {"sglang": {"atention_backend": "x"}}}}, {"hang_timeout": 0},
    {"rollout": {"multi_turn": {"format": "x"}}}, {"model_path": "/nowhere"}, {"model": "x"},
    {"rollout": {"pipeline_model_parallel_size": 2}}, {"reasoning_parser": "x"}, {"base_url": "x"},
    {"rollout": {"name": "hf", "tensor_model_parallel_size": 2}}, {"adapter_path": "/nowhere"},
]  # fmt: skip


def keywords(random_: random.Random, names: list[str]) -> dict[str, Any]:
    """A drawn set of keywords that go together, with a seed and at most 12 tokens."""
    drawn = random_.sample(names, random_.randint(1, 6))
    for apart in (APART, APART_TOO):
        found = [name for name in drawn if name in apart]
        drawn = [name for name in drawn if name not in found[1:]]
    own = {name: random_.choice(VALUES[name]) for name in drawn}
    if "sampling_mask" in own:  # it needs a filter, and excludes the likeliest tokens
        own = {name: value for name, value in own.items() if name not in APART_TOO}
        own |= {"temperature": 0.9, "top_p": 0.9}
    return {"seed": random_.randrange(10**6), "max_tokens": random_.randint(7, 12), **own}


def token_prompt(random_: random.Random, most: int = 60) -> dict[str, Any]:
    ids = [random_.randrange(4, VOCABULARY) for _ in range(random_.randint(1, most))]
    return {"prompt_token_ids": ids}


def messages(random_: random.Random) -> list[dict[str, Any]]:
    chat = [{"role": "system", "content": "You are an assistant."}] * random_.randint(0, 1)
    for _ in range(random_.randint(0, 2)):
        chat += [{"role": "user", "content": random_.choice(TEXTS)}]
        chat += [{"role": "assistant", "content": random_.choice(TEXTS)}]
    content: Any = random_.choice(TEXTS)
    if random_.random() < 0.3:
        content = [{"type": "text", "text": content}, {"type": "text", "text": "And 8?"}]
    return [*chat, {"role": "user", "content": content}]


def prompt(random_: random.Random) -> Any:
    kinds: list[Callable[[random.Random], Any]] = [token_prompt, messages]
    kinds += [lambda r: r.choice(TEXTS), lambda r: {"text": r.choice(TEXTS)}]
    return random_.choice(kinds)(random_)


# ─── What is called ───


def of_output(output: Any) -> list[dict[str, Any]]:
    return [of_row(row) for row in output]


def of_row(row: Any) -> dict[str, Any]:
    """What a row says of its answer, but for times and what a cache held."""
    names = "completion reasoning token_ids logprobs prompt_token_ids prompt_logprobs top_logprobs"
    names += " top_prompt_logprobs sampling_mask sampling_logprobs messages"
    said = {name: getattr(row, name) for name in names.split()}
    metadata = {key: value for key, value in row.metadata.items() if key != "cached_tokens"}
    calls = [
        {key: value for key, value in call.items() if key != "seconds"}
        for call in metadata.pop("tool_calls", [])
    ]
    return {**said, "metadata": metadata, "executed": calls}


def batch(engine: Engine, random_: random.Random) -> Any:
    prompts = [prompt(random_) for _ in range(random_.randint(1, 4))]
    return of_output(engine.generate(prompts, **keywords(random_, list(VALUES))))


def keywords_each(engine: Engine, random_: random.Random) -> Any:
    """A value for each prompt."""
    name = random_.choice(["temperature", "stop", "max_tokens", "top_k", "seed", "regex"])
    values: dict[str, list[Any]] = {**VALUES, "max_tokens": [3, 9], "seed": [4, 5, 6]}
    values["stop"] = [["e"], ["th", "a"]]
    prompts = [token_prompt(random_) for _ in range(3)]
    each = [random_.choice(values[name]) for _ in prompts]
    if name != "seed":  # a row without one is drawn anew each time
        each[random_.randrange(3)] = None
    more = {"seed": 7, "max_tokens": 8, "temperature": 0.8} | {name: each}
    return of_output(engine.generate(prompts, **more))


def stream(engine: Engine, random_: random.Random) -> Any:
    chunks = list(engine.stream(prompt(random_), **keywords(random_, OF_STREAMS)))
    last = chunks[-1]
    return {
        "text": "".join(chunk.text for chunk in chunks),
        "token_ids": [each for chunk in chunks for each in chunk.token_ids or []],
        "finish_reason": last.finish_reason,
    }


def score(engine: Engine, random_: random.Random) -> Any:
    prompts = [prompt(random_) for _ in range(random_.randint(1, 3))]
    answers = [random_.choice([" Paris.", [5, 70, 9], "x"]) for _ in prompts]
    scores = engine.score(prompts, answers, top_logprobs=random_.choice([None, 2]))
    return [dataclasses.asdict(each) for each in scores]


def logits(engine: Engine, random_: random.Random) -> Any:
    return engine.get_logits([token_prompt(random_)], [[7, 8, 9]]).sum(dim=-1).tolist()


def beams(engine: Engine, random_: random.Random) -> Any:
    prompts = [token_prompt(random_) for _ in range(2)]
    more = {"num_beams": random_.choice([2, 4]), "n": random_.choice([1, 2])}
    return of_output(engine.generate(prompts, max_tokens=8, **more))


def trainer(engine: Engine, random_: random.Random) -> Any:
    prompts = [token_prompt(random_) for _ in range(2)]
    batch = engine.rollout_batch(prompts, n=2, seed=3, max_tokens=8, temperature=1, uid=["a", "b"])
    tensors = {name: value.tolist() for name, value in sorted(batch.batch.items())}
    return tensors | {"uid": list(batch.non_tensor_batch["uid"])}


def continued(engine: Engine, random_: random.Random) -> Any:
    """A row that is ended after some tokens and continued is the same as one that was not."""
    first = engine.generate(token_prompt(random_), seed=5, temperature=1, max_tokens=5)[0]
    cut = dataclasses.replace(first, finish_reason="abort")
    return of_output(engine.generate([cut], temperature=1, max_tokens=12))


def with_adapter(engine: Engine, random_: random.Random) -> Any:
    prompts = [token_prompt(random_) for _ in range(3)]
    names = [random_.choice(["one", None]) for _ in prompts]
    return of_output(engine.generate(prompts, adapter=names, temperature=0, max_tokens=8))


def failures_as_rows(engine: Engine, random_: random.Random) -> Any:
    prompts = [token_prompt(random_), random_.choice(["", {"text": "a " * 900}]), "7"]
    more = {"on_error": "row", "max_tokens": 6, "temperature": 0}
    return of_output(engine.generate(prompts, **more))


def wrong(calls: list[dict[str, Any]]) -> Call:
    return lambda engine, random_: of_output(
        engine.generate(["a", "b"], **{"max_tokens": 2, "seed": 1, **calls.pop(0)})
    )


def wrong_prompt(prompts: list[Any]) -> Call:
    return lambda engine, random_: of_output(engine.generate(prompts.pop(0), max_tokens=2, seed=1))


def wrong_config(configs: list[dict[str, Any]]) -> Call:
    def make(engine: None, random_: random.Random) -> str:
        with inf.InferenceEngine(configs.pop(0)):
            return "started"

    return make


def calculator(expression: str) -> str:
    """Calculates.

    Args:
        expression: The expression.
    """
    one, operator, other = expression.split()
    return str(int(one) + int(other) if operator == "+" else int(one) * int(other))


class Sums:
    """An environment with one tool."""

    def reset(self, **row: Any) -> None:
        self.calls = 0

    def calculator(self, expression: str) -> str:
        """Calculates.

        Args:
            expression: The expression.
        """
        self.calls += 1
        return calculator(expression)

    def get_reward(self) -> float:
        return float(self.calls)


SUFFIXES = ["", " Use the abacus.", " Write broken JSON.", " Use the wrong key.", " Think aloud."]


def question(random_: random.Random) -> str:
    one, other = random_.randint(2, 99), random_.randint(2, 99)
    return f"What is {one} {random_.choice('+*')} {other}?{random_.choice(SUFFIXES)}"


def turns(engine: Engine, random_: random.Random) -> Any:
    function: dict[str, Any] = {"name": "calculator", "description": "The calculator."}
    text = {"type": "string", "description": "The expression."}
    function["parameters"] = {"type": "object", "properties": {"expression": text}}
    function["parameters"]["required"] = ["expression"]
    tools = random_.choice([[calculator], [{"type": "function", "function": function}]])
    prompts = [question(random_) for _ in range(random_.randint(1, 3))]
    more = random_.choice([{}, {"max_tokens": 20}, {"max_tokens_per_turn": 12}, {"n": 2}])
    return of_output(engine.generate(prompts, tools=tools, temperature=0, **more))


def environment(engine: Engine, random_: random.Random) -> Any:
    more = {"environment_factory": Sums, "temperature": 0}
    return of_output(engine.generate([question(random_)], **more))


# ─── Over HTTP ───

IDS: tuple[str, ...] = (
    "id",
    "created",
    "created_at",
    "completed_at",
    "item_id",
    "system_fingerprint",
    "call_id",
)
IDS += ("cached_tokens", "cache_read_input_tokens", "e2e_latency", "encrypted_content")


def without_ids(value: Any) -> Any:
    """A body without what each request has anew."""
    if isinstance(value, dict):
        return {key: without_ids(each) for key, each in value.items() if key not in IDS}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


def written(value: Any) -> str:
    """All text of an event that is an increment."""
    if isinstance(value, dict):
        texts = [value[key] for key in ("content", "text", "delta") if key in value]
        found = [each if isinstance(each, str) else written(each) for each in texts]
        return "".join([*found, *map(written, value.get("choices", []))])
    return "".join(map(written, value)) if isinstance(value, list) else ""


def of_stream(events: list[Any]) -> dict[str, Any]:
    """What does not depend on how many tokens came with each event."""
    return {"text": written(events), "last": events[-1]}


def body(random_: random.Random) -> tuple[str, dict[str, Any]]:
    """A route and what it is asked."""
    seeded = {"seed": random_.randrange(99), "temperature": random_.choice([0, 0.9])}
    chat = [{"role": "user", "content": random_.choice(TEXTS)}]
    extras: list[dict[str, Any]] = [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}]
    more, stream = random_.choice([*extras, {"stop": "e"}]), {"stream": random_.random() < 0.5}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/chat/completions", {"messages": chat, "max_tokens": 8, **seeded, **more}),
        ("/chat/completions", {"messages": chat, "max_tokens": 8, **seeded, **stream}),
        ("/chat/completions", {"messages": chat, "max_tokens": 8, "temprature": 1}),
        ("/completions", {"prompt": chat[0]["content"], "max_tokens": 6, **seeded, **stream}),
        ("/completions", {"prompt": [5, 6, 7], "max_tokens": 6, "logprobs": 2, **seeded}),
        ("/messages", {"messages": chat, "max_tokens": 8, "temperature": 0, **stream}),
        ("/responses", {"input": chat, "max_output_tokens": 16, "temperature": 0, **stream}),
        ("/responses", {"input": "a", "previous_response_id": "x"}),
    ]
    return random_.choice(asked)


def over_http(address: str) -> Call:
    model = httpx.get(address + "/models").json()["data"][0]["id"]

    def send(engine: Engine, random_: random.Random) -> Any:
        route, asked = body(random_)
        answer = httpx.post(address + route, json={"model": model, **asked}, timeout=120)
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
        events = [json.loads(line) for line in lines if line.startswith("{")]
        found = without_ids(events)
        one = len(found) == 1
        return {"status": answer.status_code, "body": found[0] if one else of_stream(found)}

    return send


# ─── What runs ───

SAME: dict[str, tuple[Call, int]] = {
    "keywords": (batch, 45),
    "keywords of each": (keywords_each, 10),
    "stream": (stream, 14),
    "score": (score, 8),
    "continued": (continued, 3),
    "failures": (failures_as_rows, 3),
}
TURNS: dict[str, tuple[Call, int]] = {"turns": (turns, 12), "environment": (environment, 3)}
REFUSED: dict[str, tuple[Call, int]] = {
    "wrong keyword": (wrong([*WRONG]), len(WRONG)),
    "wrong prompt": (wrong_prompt([*WRONG_PROMPTS]), len(WRONG_PROMPTS)),
}
HF_ONLY: dict[str, tuple[Call, int]] = {"beams": (beams, 4), "logits": (logits, 3)}


def suites(models: dict[str, str]) -> Iterator[tuple[str, dict[str, tuple[Call, int]], Any]]:
    """The kinds of calls of each engine, and what starts it."""
    tiny, with_tools = {"model_path": models["tiny"], **THOUGHTS}, {"model_path": models["tools"]}
    long = {"prompt_length": 1024, "response_length": 256}
    adapters = {"adapter": (with_adapter, 4)}
    hf: dict[str, Any] = {**tiny, "rollout": HF}
    yield "hf", {**SAME, **HF_ONLY, **REFUSED, **adapters}, hf
    yield "hf tools", TURNS, {**with_tools, "rollout": {**HF, **long}}
    yield "http", {}, hf
    yield "config", {"wrong": (wrong_config([*WRONG_CONFIGS]), len(WRONG_CONFIGS))}, None
    sglang: dict[str, Any] = {**tiny, "rollout": {**SGLANG, "engine_kwargs": LORA}}
    batches: dict[str, tuple[Call, int]] = {"trainer batch": (trainer, 3)}
    yield "sglang", {**SAME, **batches, **adapters}, sglang
    yield "sglang tools", TURNS, {**with_tools, "rollout": {**SGLANG, **long}}


@contextlib.contextmanager
def started(config: Any, adapter: str | None) -> Iterator[Engine]:
    if config is None:
        yield None
        return
    with inf.InferenceEngine(config) as engine:
        if adapter is not None:
            engine.load_adapter("one", adapter)
        yield engine


def result(call: Call, engine: Engine, name: str) -> dict[str, Any]:
    """What the call gave, what it warned of, or its exception."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            given: dict[str, Any] = {"gave": call(engine, random.Random(name))}
        except Exception as error:
            about = {key: getattr(error, key, None) for key in ("key", "index", "row")}
            given = {"raised": type(error).__name__, "says": str(error), **about}
    return given | {"warned": [str(each.message) for each in warned]}


def main(models: Path, out: Path, only: str = "") -> None:
    folders = json.loads(models.read_text())
    with out.open("w") as file:
        for engine_name, kinds, config in suites(folders):
            if only not in engine_name:
                continue
            adapter = folders["adapter"] if "adapter" in kinds else None
            with started(config, adapter) as engine, contextlib.ExitStack() as stack:
                if engine_name == "http":
                    server = stack.enter_context(engine.serve())
                    kinds = {"requests": (over_http(server.base_url), 40)}
                for kind, (call, count) in kinds.items():
                    for number in range(count):
                        name = f"{engine_name} {kind} {number}"
                        given = {"name": name, **result(call, engine, name)}
                        file.write(json.dumps(given, default=str) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
