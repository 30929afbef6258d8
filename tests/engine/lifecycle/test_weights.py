"""New weights in a running engine are exactly the new weights, for whole calls, or not there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from _inf.runtime.extras import has_verl
from inf import ConfigError, EngineDeadError, InferenceEngine, InferenceError
from tests.support.pages import blocks
from tests.support.prompts import as_ids, token_prompts
from tests.support.reference import logprobs
from tests.support.running import begun, running
from tests.support.schedulers import in_flight
from tests.support.scripts import until
from tests.support.tool_calling import schema
from tests.support.updates import assert_by_hand, breaking_off, by_hand, trained

PROMPTS = token_prompts(6, longest=40, seed=71)
IDS = as_ids(PROMPTS)
GREEDY = {"temperature": 0, "max_tokens": 24}
HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
DOWN = "model.layers.3.mlp.down_proj.weight"
FORMS = {
    "a module": lambda model: model,
    "a state dict with both names of a tied weight": lambda model: model.state_dict(),
    "an iterator without the head": lambda model: iter(model.named_parameters()),
    "pairs without the embeddings, in float64, with an old buffer": lambda model: [
        ("model.rotary_emb.inv_freq", torch.ones(8)),
        *((n, t.double()) for n, t in model.state_dict().items() if n != EMBEDDINGS),
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_served_model_is_the_one_given(updated, form):
    model = trained(updated, seed=len(form))
    before, cached = (updated.generate(IDS, **GREEDY) for _ in range(2))
    # hf keeps nothing between calls
    assert (cached.metadata[-1]["cached_tokens"] > 0) == has_verl()
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    version = updated.update_weights(FORMS[form](model))
    output = updated.generate(IDS, **GREEDY)
    assert output.token_ids != before.token_ids
    assert_by_hand(output, PROMPTS, {version: model})
    assert {about["cached_tokens"] for about in output.metadata} == {0}
    assert {about["weight_version"] for about in output.metadata} == {version}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, kept[name]) and not tensor.is_shared(), name


def test_version_counts_up_or_is_the_callers(updated, models, old):
    for version, expected in [(None, old + 1), (old + 1000, old + 1000), (None, old + 1001)]:
        assert updated.update_weights(models[0], version=version) == expected
    assert updated.generate("Hi", max_tokens=1)[0].weight_version == old + 1001
    with pytest.raises(ConfigError, match="version: -1 is out of range"):
        updated.update_weights(models[0], version=-1)


def buckets(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What goes out to the engine from now on; nothing does where its model is in this process."""
    if not has_verl():
        return []
    sent = []
    upstream = engine.rollout._engine.update_weights_from_tensor

    async def counted(request: Any) -> Any:
        sent.append(request)
        return await upstream(request)

    monkeypatch.setattr(engine.rollout._engine, "update_weights_from_tensor", counted)
    return sent


@pytest.mark.verl
def test_bucket_size_is_the_configs(updated, models, monkeypatch):
    sent = buckets(updated, monkeypatch)
    size = sum(p.numel() * 4 for p in models[0].parameters())
    updated.update_weights(models[0])
    assert 1 < size / 2**20 <= len(sent) <= size / 2**20 + 2


State = dict[str, Any]


def cut_short(state: State) -> Iterator[Any]:
    yield from state.items()
    raise OSError("the file ended")


ADAPTER = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"
# By what is wrong: what makes it of a model's state, and what is said of it.
BROKEN = {
    "unknown": (
        lambda s: s | {"model.layers.3.mlp.dwon_proj.weight": s[DOWN]},
        r"no model.layers.3.mlp.dwon_proj.weight \(did you mean '" + DOWN + r"'\?\)",
    ),
    "ddp": (
        lambda s: {f"module.{name}": tensor for name, tensor in s.items()},
        r"no module\.model.* come from DistributedDataParallel: .*ddp\.module",
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


def test_wrong_weights_leave_the_old_ones_serving(updated, models, old, monkeypatch):
    sent = buckets(updated, monkeypatch)
    for change, words in BROKEN.values():
        with pytest.raises((ConfigError, OSError), match=words) as caught:
            updated.update_weights(change(dict(models[1].state_dict())))
        assert caught.type is OSError or str(caught.value).startswith("weights")
    assert not sent
    assert_by_hand(updated.generate(IDS[:1], **GREEDY), PROMPTS[:1], {old: models[0]})


@pytest.mark.verl
def test_call_in_flight_ends_on_the_old_weights_and_a_later_one_waits_for_the_new(
    updated, models, old
):
    long = {**GREEDY, "max_tokens": 1500, "ignore_eos": True}
    early = begun(lambda: updated.generate(IDS[0], **long))
    assert until(lambda: in_flight(updated), 30)
    update = begun(lambda: updated.update_weights(models[1]))
    assert until(lambda: not updated.rollout.host.lock._no_writer.is_set(), 30)
    late = begun(lambda: updated.generate(IDS[0], **GREEDY))
    streamed = begun(lambda: [*updated.stream(IDS[0], **GREEDY)])
    ids = [5, 6, 7]
    scored = begun(lambda: updated.get_logprobs(IDS[0], ids))
    time.sleep(0.1)
    assert in_flight(updated) == 1 and not any(c.done() for c in (early, late, streamed, scored))
    assert update.result(120) == old + 1
    assert_by_hand(early.result(120), PROMPTS[:1], {old: models[0]})
    assert_by_hand(late.result(120), PROMPTS[:1], {old + 1: models[1]})
    theirs = logprobs(by_hand(models[1:2], PROMPTS[0], ids), ids)
    assert scored.result(120)[0] == pytest.approx(theirs, abs=1e-3)
    ids = [token for chunk in streamed.result(120) for token in chunk.token_ids]
    assert [ids] == late.result().token_ids


def test_under_a_storm_of_updates_each_call_sees_one_version_and_its_model(updated, models):
    of = {updated.update_weights(models[0], version=2000): models[0]}
    outputs = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            outputs.append(updated.generate(IDS[:3], temperature=1.0, seed=3, max_tokens=16))

    askers = [begun(ask) for _ in range(3)]
    for step in range(1, 9):
        of[updated.update_weights(models[step % 2])] = models[step % 2]
    over.set()
    for asker in askers:
        asker.result(60)
    for output in outputs:
        assert len({row.weight_version for row in output}) == 1
        assert_by_hand(output, PROMPTS[:3], of, greedy=False)
    assert len({output[0].weight_version for output in outputs}) >= 3


def test_row_given_up_just_before_does_not_disturb_the_update(updated, models):
    for step in range(4):
        stream = updated.stream("Hi", max_tokens=1500, ignore_eos=True)
        next(stream)
        stream.close()
        version = updated.update_weights(models[step % 2])
    assert_by_hand(updated.generate(IDS[:1], **GREEDY), PROMPTS[:1], {version: models[1]})


@pytest.mark.verl
@pytest.mark.parametrize("how", [{}, {"running": "keep"}], ids=str)
def test_update_that_breaks_off_half_way_serves_nothing_until_a_whole_one(
    updated, models, old, monkeypatch, how
):
    rows = running(updated, IDS, 3, max_tokens=120, ignore_eos=True) if how else []
    with monkeypatch.context() as patch:
        breaking_off(updated, patch)
        with pytest.raises(InferenceError, match="halfway.*no shared memory left"):
            updated.update_weights(models[1], **how)
    for ask in (
        *(lambda row=row: row.end(10) for row in rows),
        lambda: updated.generate("Hi"),
        lambda: list(updated.stream("Hi")),
        lambda: updated.get_logprobs("Hi", [4]),
    ):
        with pytest.raises(InferenceError, match="halfway.*call update_weights"):
            ask()
    new = updated.update_weights(models[1], **how)
    assert new == old + 1
    assert_by_hand(updated.generate(IDS, **GREEDY), PROMPTS, {new: models[1]})


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
def test_call_with_a_row_that_is_not_finite_fails_and_the_others_go_on(updated, sampling):
    model = overflowing(updated)
    version = updated.update_weights(model)
    good = [[token for token in prompt if token != OVERFLOWS] or [5] for prompt in PROMPTS]
    bad = as_ids([[5, OVERFLOWS]])
    beside = begun(lambda: updated.generate(as_ids(good), **GREEDY))
    for ask in (
        lambda: updated.generate([*as_ids(good), *bad], **sampling),
        lambda: list(updated.stream(bad[0], **sampling)),
    ):
        with pytest.raises(InferenceError, match="log prob nan.*float16"):
            ask()
    tools = {"tools": [schema("look", "place")], "truncate_prompt": "left"}
    [told] = updated.generate("a", logit_bias={OVERFLOWS: 100.0}, **tools, **sampling).metadata
    assert told["error"].startswith("RequestFailure: turn 1: It has the log prob nan")
    with pytest.raises(InferenceError, match="Row 1 .*log prob nan"):
        updated.get_logprobs(as_ids([[5, 6]]) + bad, [[7], [7]])
    assert_by_hand(beside.result(60), good, {version: model})


def test_documented_update_works(updated):
    program = blocks("docs/training.md", "python")[0]
    exec(program.replace("InferenceEngine()", "updated"), {"updated": updated})


@pytest.mark.verl
def test_engine_killed_in_an_update_is_dead_at_once(updated, models, monkeypatch):
    upstream = updated.rollout._engine.update_weights_from_tensor

    async def killed(request: Any) -> Any:
        updated.rollout.host.children[0].kill()
        return await upstream(request)

    monkeypatch.setattr(updated.rollout._engine, "update_weights_from_tensor", killed)
    for ask in (lambda: updated.update_weights(models[0]), lambda: updated.generate("Hi")):
        with pytest.raises(EngineDeadError, match="exit code -9"):
            ask()
