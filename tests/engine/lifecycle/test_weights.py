"""New weights in a running engine are exactly the new weights, for whole calls, or not there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from _inf.runtime.extras import has_verl
from inf import ConfigError, EngineDeadError, InferenceEngine, InferenceError
from tests.support.prompts import as_ids, token_prompts
from tests.support.reference import Reference, assert_same_answers, logprobs
from tests.support.schedulers import in_flight
from tests.support.scripts import until
from tests.support.tiny import tiny_model
from tests.support.tool_calling import schema

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "prompt_length": 256,
    "response_length": 64,
    "max_model_len": 2000,
    "enforce_eager": True,
}
if has_verl():
    SETTINGS["update_weights_bucket_megabytes"] = 1
PROMPTS = token_prompts(6, longest=40, seed=71)
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
DOWN = "model.layers.3.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def served() -> Iterator[InferenceEngine]:
    """Twelve layers, 2 MB: several buckets. Its head is its embeddings."""
    folder = tiny_model(layers=12, tied=True, initializer_range=0.15)
    with InferenceEngine(model_path=str(folder), rollout=SETTINGS) as engine:
        yield engine


def trained(engine: InferenceEngine, seed: int) -> Any:
    """Another model of the same shape."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        folder = engine.config.model_path
        model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder), dtype=torch.float32
        )
    model.generation_config = GenerationConfig.from_pretrained(folder)
    return model.eval()


@pytest.fixture(scope="module")
def models(served: InferenceEngine) -> dict[int, Any]:
    """By the parity of the version that serves it."""
    return {0: trained(served, 100), 1: trained(served, 101)}


def answers(engine: InferenceEngine) -> list[list[int]]:
    return engine.generate(as_ids(PROMPTS), **GREEDY).token_ids


FORMS: dict[str, Callable[[Any], Any]] = {
    "a module": lambda model: model,
    "a state dict with both names of a tied weight": lambda model: model.state_dict(),
    "an iterator without the head": lambda model: (
        (name, tensor) for name, tensor in model.named_parameters()
    ),
    "pairs without the embeddings, in float64, with an old buffer": lambda model: [
        ("model.rotary_emb.inv_freq", torch.ones(8)),
        *((n, t.double()) for n, t in model.state_dict().items() if n != EMBEDDINGS),
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_served_model_is_the_one_given(served: InferenceEngine, form: str) -> None:
    model = trained(served, seed=len(form))
    before = answers(served)
    cached = served.generate(as_ids(PROMPTS), **GREEDY).metadata[-1]["cached_tokens"]
    assert (cached > 0) == has_verl()  # hf keeps nothing between calls
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    version = served.update_weights(FORMS[form](model))
    output = served.generate(as_ids(PROMPTS), **GREEDY)
    assert output.token_ids != before
    reference = Reference.of(served, model)
    assert_same_answers(reference, PROMPTS, output.token_ids, reference.greedy(PROMPTS, 24))
    for prompt, answer, ours in zip(PROMPTS, output.token_ids, output.logprobs, strict=True):
        theirs = logprobs(reference.logits(prompt, answer), answer)
        assert ours == pytest.approx(theirs, abs=1e-3)
    assert {about["cached_tokens"] for about in output.metadata} == {0}
    assert {about["weight_version"] for about in output.metadata} == {version}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, kept[name]) and not tensor.is_shared(), name


def test_version_counts_up_or_is_the_callers(served: InferenceEngine, models: Any) -> None:
    first = served.update_weights(models[0])
    assert served.update_weights(models[0]) == first + 1
    assert served.update_weights(models[0], version=1000) == 1000
    assert served.update_weights(models[0]) == 1001
    chunks = list(served.stream("Hi", max_tokens=2))
    assert chunks and served.generate("Hi", max_tokens=1).metadata[0]["weight_version"] == 1001
    with pytest.raises(ConfigError, match="version: -1 is out of range"):
        served.update_weights(models[0], version=-1)


def buckets(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What goes out to the engine from now on; nothing does where its model is in this process."""
    if not has_verl():
        return []
    sent: list[Any] = []
    upstream = engine.rollout._engine.update_weights_from_tensor

    async def counted(request: Any) -> Any:
        sent.append(request)
        return await upstream(request)

    monkeypatch.setattr(engine.rollout._engine, "update_weights_from_tensor", counted)
    return sent


@pytest.mark.verl
def test_bucket_size_is_the_configs(
    served: InferenceEngine, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = buckets(served, monkeypatch)
    size = sum(p.numel() * 4 for p in models[0].parameters())
    served.update_weights(models[0])
    assert 1 < size / 2**20 <= len(sent) <= size / 2**20 + 2


State = dict[str, Any]


def cut_short(state: State) -> Iterator[Any]:
    yield from state.items()
    raise OSError("the file ended")


ADAPTER = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"
# By what is wrong: what makes it of a model's state, and what is said of it.
BROKEN: dict[str, tuple[Callable[[State], Any], str]] = {
    "unknown": (
        lambda s: s | {"model.layers.3.mlp.dwon_proj.weight": s[DOWN]},
        r"no model.layers.3.mlp.dwon_proj.weight \(did you mean '" + DOWN + r"'\?\)",
    ),
    "ddp": (
        lambda s: {f"module.{name}": tensor for name, tensor in s.items()},
        r"no module\.model.* look like those of DistributedDataParallel: .*ddp\.module",
    ),
    "shape": (lambda s: s | {DOWN: s[DOWN].T}, DOWN + r" has the shape \(128, 64\), and"),
    "missing": (
        lambda s: {n: t for n, t in s.items() if n != DOWN},
        "1 of 134 are missing, first " + DOWN,
    ),
    "nan": (lambda s: s | {DOWN: s[DOWN] * float("nan")}, DOWN + " holds NaN"),
    "meta": (lambda s: s | {DOWN: s[DOWN].to("meta")}, DOWN + " must be .* got .* on meta"),
    "integers": (lambda s: s | {DOWN: s[DOWN].long()}, DOWN + " must be .* got torch.int64"),
    "no tensor": (lambda s: s | {DOWN: s[DOWN].tolist()}, DOWN + r" must be .* got \[\["),
    "tie": (lambda s: s | {HEAD: s[HEAD] + 1}, HEAD + " differs from " + EMBEDDINGS),
    "twice": (lambda s: [*s.items(), (DOWN, s[DOWN])], DOWN + " comes twice"),
    "adapter": (lambda s: s | {ADAPTER: s[DOWN]}, "merge_and_unload"),
    "late": (lambda s: iter([*s.items(), ("model.norm.bias", s[DOWN])]), "no model.norm.bias"),
    "no pairs": (list, r"\[0\]: expected \(name, tensor\)"),
    "nothing": (lambda s: None, "expected a module"),
    "failing": (cut_short, "the file ended"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_wrong_weights_leave_the_old_ones_serving(
    served: InferenceEngine, models: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    change, words = BROKEN[what]
    version = served.update_weights(models[0])
    before = answers(served)
    sent = buckets(served, monkeypatch)
    with pytest.raises((ConfigError, OSError), match=words) as caught:
        served.update_weights(change(dict(models[1].state_dict())))
    assert caught.type is OSError or str(caught.value).startswith("weights")
    assert not sent and answers(served) == before
    assert served.generate("Hi", max_tokens=1).metadata[0]["weight_version"] == version


@pytest.mark.verl
def test_call_in_flight_ends_on_the_old_weights_and_a_later_one_waits_for_the_new(
    served: InferenceEngine, models: Any
) -> None:
    old = served.update_weights(models[0])
    early: dict[str, Any] = {"max_tokens": 1500, "ignore_eos": True, "temperature": 0}
    done: dict[str, Any] = {}

    def calls(name: str, *work: Any) -> threading.Thread:
        thread = threading.Thread(target=lambda: done.update({name: work[0](*work[1:])}))
        thread.start()
        return thread

    prompt = as_ids(PROMPTS)[0]
    first = calls("early", lambda: served.generate(prompt, **early))
    assert until(lambda: in_flight(served), 30)
    update = calls("update", served.update_weights, models[1])
    assert until(lambda: not served.rollout.host.lock._no_writer.is_set(), 30)
    late = [
        calls("late", lambda: served.generate(prompt, **GREEDY)),
        calls("stream", lambda: list(served.stream(prompt, **GREEDY))),
        calls("score", served.get_logprobs, prompt, [5, 6, 7]),
    ]
    time.sleep(0.1)
    assert in_flight(served) == 1 and not done
    for thread in (first, update, *late):
        thread.join(120)
    assert done["early"].metadata[0]["weight_version"] == old
    assert done["late"].metadata[0]["weight_version"] == done["update"] == old + 1
    before, after = (Reference.of(served, models[parity]) for parity in (0, 1))
    ids = done["early"].token_ids[0]
    theirs = logprobs(before.logits(PROMPTS[0], ids), ids)
    assert done["early"].logprobs[0] == pytest.approx(theirs, abs=1e-3)
    new = after.greedy(PROMPTS[:1], 24)
    streamed = [token for chunk in done["stream"] for token in chunk.token_ids]
    assert_same_answers(after, PROMPTS[:1], done["late"].token_ids, new)
    assert streamed == done["late"].token_ids[0]
    theirs = logprobs(after.logits(PROMPTS[0], [5, 6, 7]), [5, 6, 7])
    assert done["score"][0] == pytest.approx(theirs, abs=1e-3)


def test_under_a_storm_of_updates_each_call_sees_one_version_and_its_model(
    served: InferenceEngine, models: Any
) -> None:
    first = served.update_weights(models[0], version=2000)
    calls: list[Any] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            calls.append(served.generate(as_ids(PROMPTS), temperature=1.0, seed=3, max_tokens=16))

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for thread in askers:
        thread.start()
    for step in range(1, 9):
        served.update_weights(models[step % 2])
    over.set()
    for thread in askers:
        thread.join(60)
    seen = set()
    references = [Reference.of(served, models[parity]) for parity in (0, 1)]
    for output in calls:
        (version,) = {about["weight_version"] for about in output.metadata}
        seen.add(version)
        reference = references[version % 2]
        for prompt, ids, ours in zip(PROMPTS, output.token_ids, output.logprobs, strict=True):
            theirs = logprobs(reference.logits(prompt, ids), ids)
            assert ours == pytest.approx(theirs, abs=1e-3), version
    assert len(seen) >= 3 and min(seen) >= first


def test_row_given_up_just_before_does_not_disturb_the_update(
    served: InferenceEngine, models: Any
) -> None:
    for step in range(4):
        stream = served.stream("Hi", max_tokens=1500, ignore_eos=True)
        next(stream)
        stream.close()
        served.update_weights(models[step % 2])
    assert served.generate("Hi", max_tokens=4).metadata[0]["completion_tokens"] > 0


@pytest.mark.verl
def test_update_that_breaks_off_half_way_serves_nothing_until_a_whole_one(
    served: InferenceEngine, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = served.update_weights(models[0])
    upstream = served.rollout._engine.update_weights_from_tensor
    sent: list[Any] = []

    async def fails_second(request: Any) -> Any:
        sent.append(request)
        if len(sent) == 2:
            raise OSError("no shared memory left")
        return await upstream(request)

    with monkeypatch.context() as patch:
        patch.setattr(served.rollout._engine, "update_weights_from_tensor", fails_second)
        with pytest.raises(InferenceError, match="half way.*no shared memory left"):
            served.update_weights(models[1])
    for ask in (
        lambda: served.generate("Hi"),
        lambda: list(served.stream("Hi")),
        lambda: served.get_logprobs("Hi", [4]),
    ):
        with pytest.raises(InferenceError, match="half way.*call update_weights"):
            ask()
    assert served.update_weights(models[1]) == version + 1
    reference = Reference.of(served, models[1])
    assert_same_answers(reference, PROMPTS, answers(served), reference.greedy(PROMPTS, 24))


OVERFLOWS = 77  # a token of VOCABULARY


@torch.no_grad()
def overflowing(engine: InferenceEngine) -> Any:
    """A model of finite weights whose last layer's numbers overflow at `OVERFLOWS` only."""
    model = trained(engine, 102)
    decoder = model.model
    decoder.embed_tokens.weight[:, 0] = 0  # the first number of the hidden state marks the token
    decoder.embed_tokens.weight[OVERFLOWS] = 0  # its logit is 0: it is never the likeliest
    decoder.embed_tokens.weight[OVERFLOWS, 0] = 5
    for layer in decoder.layers:
        layer.self_attn.o_proj.weight[0] = 0
        layer.mlp.down_proj.weight[0] = 0
    for projection in (layer.mlp.gate_proj, layer.mlp.up_proj):
        projection.weight[:, 0] = 1e25
    return model


@pytest.mark.parametrize("sampling", [GREEDY, {**GREEDY, "temperature": 0.7, "top_k": 1}], ids=str)
def test_call_with_a_row_that_is_not_finite_fails_and_the_others_go_on(
    served: InferenceEngine, sampling: dict[str, Any]
) -> None:
    model = overflowing(served)
    served.update_weights(model)
    good = [[token for token in prompt if token != OVERFLOWS] or [5] for prompt in PROMPTS]
    with ThreadPoolExecutor(1) as thread:
        beside = thread.submit(served.generate, as_ids(good), **sampling)
        for ask in (
            lambda: served.generate(as_ids([*good, [5, OVERFLOWS]]), **sampling),
            lambda: list(served.stream(as_ids([[5, OVERFLOWS]])[0], **sampling)),
        ):
            with pytest.raises(InferenceError, match="log prob nan.*float16"):
                ask()
        tools: dict[str, Any] = {"tools": [schema("look", "place")], "truncate_prompt": "left"}
        likely = {OVERFLOWS: 100.0}
        [told] = served.generate("a", logit_bias=likely, **tools, **sampling).metadata
        assert told["error"].startswith("RequestFailure: turn 1: It has the log prob nan")
        with pytest.raises(InferenceError, match="Row 1 .*log prob nan"):
            served.get_logprobs(as_ids([[5, 6], [5, OVERFLOWS]]), [[7], [7]])
        output = beside.result(timeout=60)
    reference = Reference.of(served, model)
    assert_same_answers(reference, good, output.token_ids, reference.greedy(good, 24))


def test_documented_update_works(served: InferenceEngine) -> None:
    page = (Path(__file__).parents[3] / "docs/training.md").read_text()
    program = page.partition("```python\n")[2].partition("```")[0]
    exec(program.replace("InferenceEngine()", "served"), {"served": served})


@pytest.mark.verl
def test_engine_killed_in_an_update_is_dead_at_once(
    served: InferenceEngine, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = served.rollout._engine.update_weights_from_tensor

    async def killed(request: Any) -> Any:
        served.rollout.host.children[0].kill()
        return await upstream(request)

    monkeypatch.setattr(served.rollout._engine, "update_weights_from_tensor", killed)
    for ask in (lambda: served.update_weights(models[0]), lambda: served.generate("Hi")):
        with pytest.raises(EngineDeadError, match="exit code -9"):
            ask()
