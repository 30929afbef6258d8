"""LoRA adapters: one contract for Transformers, SGLang and a server, then what one of them has.

Each row is what the model with its adapter merged answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from peft.utils import load_peft_weights

from _inf.errors import RequestFailure
from inf import (
    ConfigError,
    GenerationTimeout,
    InferenceEngine,
)
from tests.support.architectures import architecture
from tests.support.engines import connected, engine_fixture, started
from tests.support.pages import blocks
from tests.support.prompts import as_ids, token_prompts
from tests.support.reference import Transformers, assert_greedy, assert_same_rows
from tests.support.refusals import refused
from tests.support.running import begun
from tests.support.scripts import until
from tests.support.tiny import tiny_model
from tests.support.trained import adapter, loaded

LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras_per_batch": 4}
SGLANG = {
    "prompt_length": 256,  # with the answer within Mistral's window
    "response_length": 64,
    "max_num_seqs": 64,
    "enforce_eager": True,
    "engine_kwargs": {"sglang": LORA},
}
# Of two log probs: the merged weights are rounded to float32 once more; SGLang computes otherwise.
WITHIN = {"hf": 1e-4, "openai": 1e-4, "sglang": 1e-3}
ALL = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "o_proj", "down_proj"]
# SGLang alone would compute the second wrongly, or die of it.
HOW = {
    "first": {"target_modules": ALL},
    "second": {
        "target_modules": ["k_proj", "up_proj"],
        "layers_to_transform": [1],
        "r": 8,
        "use_rslora": True,
        "rank_pattern": {"up_proj": 2},
        "alpha_pattern": {"k_proj": 3},
    },
}
PROMPTS = token_prompts(11, longest=100, seed=61)
PROMPTS += [PROMPTS[0]] * 2  # equal prompts are computed once, but not for different adapters
MIXED = ["first", "second", None] * 4 + ["second"]
GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
Models = dict[str | None, Transformers]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return {name: adapter(tiny_model(), folder / name, **how) for name, how in HOW.items()}


hf = engine_fixture(name="hf")
sglang = engine_fixture(**SGLANG)
own = engine_fixture(scope="function", name="hf", config={"generation_cache": 64})


@pytest.fixture(scope="module")
def openai(folders):
    """An engine on the server of another one."""
    model, folder = tiny_model(), folders["first"].parent
    with started(name="hf") as other, other.serve(adapter_folder=folder) as server:
        with connected(server.base_url, model, tokenizer_path=str(model)) as engine:
            yield engine


@pytest.fixture(params=WITHIN)
def backend(request, folders):
    return ready(request.getfixturevalue(request.param), folders)


def ready(engine: InferenceEngine, folders: dict[str, Path]) -> InferenceEngine:
    """The engine with these adapters and no others."""
    for name in set(engine.adapters) - set(folders):
        engine.unload_adapter(name)
    for name, folder in folders.items():
        if name not in engine.adapters:
            engine.load_adapter(name, folder)
    return engine


@pytest.fixture(scope="module")
def models(folders):
    """By adapter, the model with it merged; None: without one."""
    return {name: with_merged(tiny_model(), folders.get(name or "")) for name in (*HOW, None)}


def with_merged(base: Any, folder: Path | None) -> Transformers:
    plain = dataclasses.replace(Transformers.of(base), ends=frozenset())  # as `ignore_eos`
    if folder is None:
        return plain
    model = PeftModel.from_pretrained(plain.model, str(folder)).merge_and_unload()
    return dataclasses.replace(plain, model=model)


# All backends.


def assert_exact(engine: InferenceEngine, models: Models) -> None:
    """One batch of rows with each of these adapters, or with none, and each row alone."""
    within = WITHIN[engine.config.rollout.name]
    together = engine.generate(as_ids(PROMPTS), adapter=MIXED, **GREEDY)
    assert [row.adapter for row in together] == MIXED
    assert [row.metadata.get("adapter") for row in together] == MIXED
    for name, model in models.items():
        rows = [index for index, each in enumerate(MIXED) if each == name]
        own, answers = [PROMPTS[row] for row in rows], [together[row].token_ids for row in rows]
        assert_greedy(model, own, [together[row] for row in rows], 24, within)
        scored = engine.get_logprobs(as_ids(own), answers, adapter=name)
        for row, logprobs in zip(rows, scored, strict=True):
            assert logprobs == pytest.approx(together[row].logprobs, abs=within)
        assert engine.generate(as_ids(own), adapter=name, **GREEDY).token_ids == answers


def test_rows_of_one_batch_are_those_of_their_own_merged_models(backend, models):
    assert_exact(backend, models)
    each = [backend.generate(as_ids(PROMPTS[:1]), adapter=name, **GREEDY) for name in models]
    assert len({tuple(output.token_ids[0]) for output in each}) == len(models)


NAME = "one.day: x"


def assert_answers(engine: InferenceEngine, model: Transformers, version: int) -> None:
    """With the adapter `NAME` the engine is this model."""
    output = engine.generate(as_ids(PROMPTS[:3]), adapter=NAME, **GREEDY)
    assert_greedy(model, PROMPTS[:3], output, 24, WITHIN[engine.config.rollout.name])
    assert {row.weight_version for row in output} == {version}


def test_adapters_are_loaded_replaced_and_unloaded(backend, folders, models):
    names, load = backend.adapters, backend.load_adapter
    assert load(NAME, folders["first"]) == 0
    assert sorted(backend.adapters) == sorted([*names, NAME]) and backend.weight_version == 0
    assert_answers(backend, models["first"], 0)
    assert load(NAME, str(folders["second"])) == 1  # another rank and other layers
    assert_answers(backend, models["second"], 1)
    assert load(NAME, folders["first"], version=40) == 40
    with refused(ConfigError, r"^adapters\..*/nowhere", key=f"adapters.{NAME}"):
        load(NAME, "/nowhere")
    assert_answers(backend, models["first"], 40)
    backend.unload_adapter(NAME)
    assert sorted(backend.adapters) == sorted(names)
    for call in (
        lambda: backend.generate("Hi", adapter=NAME),
        lambda: backend.stream("Hi", adapter=NAME),
        lambda: backend.score("Hi", "you", adapter=NAME),
        lambda: backend.unload_adapter(NAME),
    ):
        with refused(ConfigError, f"{NAME!r} is not loaded", key="adapter"):
            call()
    assert load(NAME, folders["first"]) == 41  # a version is of one adapter


@pytest.mark.parametrize("name", ["own", "sglang"])
def test_tensors_replace_an_adapter_and_new_weights_of_the_model_are_those_of_its_adapters(
    name, folders, models, request
):
    engine: InferenceEngine = request.getfixturevalue(name)
    load, tensors = engine.load_adapter, load_peft_weights(str(folders["second"]), device="cpu")
    config = json.loads((folders["second"] / "adapter_config.json").read_text())
    start = load(NAME, folders["first"])
    half = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    assert load(NAME, half, peft_config=config) == start + 1
    zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    assert load(NAME, zeros) == start + 2
    assert_answers(engine, models[None], start + 2)
    assert load(NAME, tensors) == start + 3
    assert_answers(engine, models["second"], start + 3)
    before = engine.weight_version
    assert engine.update_weights(loaded(tiny_model(), dtype=torch.float32)) == before + 1
    assert_answers(engine, models["second"], start + 4)
    [row] = engine.generate("Hi", max_tokens=1)
    assert row.weight_version == before + 1


# On Transformers alone.


@pytest.fixture(scope="module")
def merged(folders):
    """By adapter, an engine whose weights it was merged into; one without for None."""
    engines: dict[str | None, InferenceEngine] = {None: started(name="hf")}
    for name, folder in folders.items():
        engines[name] = started(name="hf", config={"adapter_path": str(folder)})
    yield engines
    for engine in engines.values():
        engine.shutdown()


@pytest.fixture
def two(hf, folders):
    """With two adapters."""
    return ready(hf, folders)


def close(values: Any) -> Any:
    return pytest.approx(values, abs=WITHIN["hf"])


def test_seeds_scores_logits_and_log_probs_of_prompts_are_those_of_merged_models(two, merged):
    prompts, answers = as_ids(PROMPTS), [[5, 6, 7, 8]] * len(PROMPTS)
    how = {"temperature": 0.9, "seed": 4, "top_p": 0.9, "max_tokens": 30}
    asked = two.generate(prompts, adapter=MIXED, prompt_logprobs=2, **how)
    for name, engine in merged.items():
        mine, theirs = two.score(prompts, answers, adapter=name), engine.score(prompts, answers)
        assert [row.logprobs for row in mine] == [close(row.logprobs) for row in theirs]
        logits = two.get_logits(prompts, answers, adapter=name)
        assert torch.allclose(logits, engine.get_logits(prompts, answers), atol=1e-3)
        own = [place for place, each in enumerate(MIXED) if each == name]
        theirs = engine.generate(prompts, prompt_logprobs=2, **how)
        assert_same_rows([asked[i] for i in own], [theirs[i] for i in own], WITHIN["hf"])
        for i in own:
            assert asked[i].prompt_logprobs == close(theirs[i].prompt_logprobs)


def test_beams_are_searched_with_the_adapter_beside_rows_without_one(two, merged):
    """Each on a thread of its own, with the same layers."""
    beams = {"num_beams": 3, "n": 2, "max_tokens": 12}
    plain = as_ids(PROMPTS[:1])
    rows = begun(lambda: [two.generate(plain, **GREEDY).token_ids for _ in range(6)])
    for name, engine in merged.items():
        searched = two.generate(as_ids(PROMPTS[:2]), adapter=name, **beams)
        assert searched.token_ids == engine.generate(as_ids(PROMPTS[:2]), **beams).token_ids
    assert rows.result(60) == [merged[None].generate(plain, **GREEDY).token_ids] * 6


@pytest.mark.parametrize("how", [{}, {"save_embedding_layers": True}])
def test_adapters_of_head_and_embeddings_are_loaded_as_peft_saves_them(how, tmp_path):
    modules = ["q_proj"] if how else ["q_proj", "lm_head", "embed_tokens"]
    folder = adapter(tiny_model(), tmp_path / "ends", save=how, target_modules=modules)
    saved = load_peft_weights(str(folder), device="cpu")
    head = next(name for name in saved if re.search(r"lm_head(\.base_layer)?\.weight", name))
    config = json.loads((folder / "adapter_config.json").read_text())
    with started(name="hf") as engine:
        engine.load_adapter(NAME, folder)
        half = {name: tensor.bfloat16() for name, tensor in saved.items()}
        engine.load_adapter("half", half, peft_config=config)
        engine.load_adapter(NAME, folder)  # beside PEFT's layers
        assert_answers(engine, with_merged(tiny_model(), folder), 1)
        other = saved | {head: saved[head] + 1}
        with refused(ConfigError, f"{re.escape(head)} differs .* must be merged"):
            engine.load_adapter(NAME, other, peft_config=config)


def now() -> str:
    """The time."""
    return "noon"


@pytest.mark.verl
def test_streams_conversations_batches_and_agent_loops_have_adapters(two, merged):
    theirs = merged["second"].generate(as_ids(PROMPTS[:2]), **GREEDY)
    chunks = list(two.stream(as_ids(PROMPTS)[0], adapter="second", **GREEDY))
    assert [token for chunk in chunks for token in chunk.token_ids] == theirs.token_ids[0]
    assert chunks[-1].metadata and chunks[-1].metadata["adapter"] == "second"
    batch = two.rollout_batch(as_ids(PROMPTS[:2]), adapter="second", **GREEDY)
    assert batch.batch["responses"][:, :24].tolist() == theirs.token_ids
    for more in ({"agent_loop": "single_turn_agent"}, {"tools": [now]}):
        [row], [own] = (
            engine.generate(["Hi"], **more, **adapter, **GREEDY)
            for engine, adapter in ((two, {"adapter": "second"}), (merged["second"], {}))
        )
        assert row.token_ids == own.token_ids and row.metadata["adapter"] == "second"


def test_running_rows_end_with_the_old_adapter_and_later_ones_wait(two, merged, folders):
    two.load_adapter("a", folders["first"])
    long = {"temperature": 0, "max_tokens": 500, "ignore_eos": True}
    chunks = two.stream(as_ids(PROMPTS)[0], adapter="a", **long)
    streamed = list(next(chunks).token_ids)
    update = begun(lambda: two.load_adapter("a", folders["second"]))
    host = vars(two)["_backend"].host
    assert until(lambda: not host.lock._no_writer.is_set(), 30)
    late = begun(lambda: two.generate(as_ids(PROMPTS)[0], adapter="a", **GREEDY).token_ids)
    streamed += [token for chunk in chunks for token in chunk.token_ids]
    update.result(60)
    assert streamed == merged["first"].generate(as_ids(PROMPTS)[0], **long).token_ids[0]
    second = merged["second"].generate(as_ids(PROMPTS)[0], **GREEDY).token_ids
    assert late.result(60) == second


def test_pass_that_fails_lets_the_next_one_run(two, monkeypatch):
    asked = {"prompts": as_ids(PROMPTS)[:2], "adapter": "first", **GREEDY}
    before = two.generate(**asked).token_ids
    with monkeypatch.context() as patch:
        patch.setattr(vars(two)["_backend"].forward.model, "forward", None)
        with pytest.raises(RequestFailure):
            two.generate(**asked)
    assert two.generate(**asked).token_ids == before


def test_names_that_are_not_loaded_are_refused(two):
    prompts, model = as_ids(PROMPTS[:2]), two.config.model_name
    for call, says, key in (
        (lambda: two.generate(prompts, adapter="frist"), "did you mean 'first'", "adapter"),
        (lambda: two.score("Hi", "you", adapter=3), "is not a name; give it as text", "adapter"),
        # No answer of a server could list it.
        (lambda: two.load_adapter("\ud800", {}), "a lone surrogate", "name"),
        (lambda: two.load_adapter(model, {}), "is the model's", "name"),
        (lambda: two.load_adapter("first", {}, version=-1), "from 0", "version"),
    ):
        with refused(ConfigError, says, key=key):
            call()
    with refused(ConfigError, r"'third' .*there are first, second. \(prompt 1\)", index=1):
        two.generate(prompts, adapter=["first", "third"])


@pytest.mark.verl
def test_python_of_the_page_on_adapters_runs(own, folders, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folders["first"], "adapters/french")
    shutil.copytree(folders["second"], "checkpoints/global_step_40/actor/lora_adapter")
    monkeypatch.setattr("inf.InferenceEngine", lambda **_: contextlib.nullcontext(own))
    here = {"engine": own, "prompts": ["Hi"]}
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(target_modules="all-linear")
    here["model"] = get_peft_model(loaded(tiny_model()), config)
    for block in blocks("docs/adapters.md", "python"):
        exec(compile(block, "docs/adapters.md", "exec"), here)
    assert "['french', 'step 40', None]" in capsys.readouterr().out
    assert own.adapters == ["french", "policy"] and len(here["batch"]) == 8


# On SGLang alone.


@pytest.fixture
def served(sglang, folders):
    return ready(sglang, folders)


@pytest.mark.verl
def test_cached_prefixes_are_those_of_the_adapter_itself(served, folders):
    [prompt] = token_prompts(1, longest=100, shortest=100, seed=4)

    def cached(name: str | None) -> int:
        row = served.generate(as_ids([prompt]), adapter=name, **GREEDY)[0]
        return int(row.metadata["cached_tokens"])

    assert [cached(name) for name in (*HOW, None)] == [0, 0, 0]
    assert [cached(name) for name in (*HOW, None)] == [99, 99, 99]
    served.load_adapter("first", folders["first"])
    assert cached("first") == 0  # the cache is emptied


@pytest.mark.verl
def test_adapter_that_sglang_cannot_serve_is_refused(served, folders, tmp_path):
    head = adapter(tiny_model(), tmp_path / "head", target_modules=["lm_head"])
    large = adapter(tiny_model(), tmp_path / "large", r=9)
    served.load_adapter("third", folders["first"])
    for name, folder, reason in (
        ("first", head, r"lm_head"),
        ("first", large, r"its rank is 9, .*max_lora_rank 8"),
        ("fourth", folders["first"], r"3 adapters are loaded.*max_loras_per_batch"),
    ):
        with refused(ConfigError, reason, key=f"adapters.{name}"):
            served.load_adapter(name, folder)
    assert served.adapters == [*HOW, "third"]


@pytest.mark.verl
def test_adapter_of_aborted_rows_is_unloaded(served):
    """SGLang's own unloading waits without end for rows that were aborted while they waited."""
    prompts = as_ids(token_prompts(200, longest=200, seed=5))
    with pytest.raises(GenerationTimeout):
        served.generate(prompts, adapter="second", timeout=0.1, **{**GREEDY, "max_tokens": 64})
    served.unload_adapter("second")
    assert served.adapters == ["first"]


@pytest.mark.verl
@pytest.mark.parametrize(
    ("model", "more", "reason"),
    [
        ("", {"engine_kwargs": {"sglang": {"lora_paths": ["a=b"]}}}, r"lora_paths: .*load_adapter"),
        ("", {"engine_kwargs": {"sglang": {**LORA, "lora_backend": "triton"}}}, "lora_backend: "),
        ("", {"tensor_model_parallel_size": 2}, "enable_lora: must be false with .* 2"),
        ("qwen3-moe", {}, "enable_lora: .*adapters of Qwen3MoeForCausalLM"),
    ],
)
def test_config_with_which_adapters_would_be_wrong_is_refused(model, more, reason):
    folder = architecture(model) if model else tiny_model()
    with pytest.raises(ConfigError, match=reason):
        started(folder, **{**SGLANG, **more})


@pytest.mark.verl
@pytest.mark.architectures
@pytest.mark.parametrize(
    "name", ["llama", pytest.param("qwen2", marks=pytest.mark.every_run), "qwen3", "mistral"]
)
def test_adapters_of_an_architecture_are_exact_before_and_after_an_update(name, tmp_path):
    """Qwen 2 has biases, for which SGLang's update has no place beside adapters."""
    base = architecture(name)
    folders = {each: adapter(base, tmp_path / each, **how) for each, how in HOW.items()}
    with started(base, **SGLANG) as engine:
        ready(engine, folders)
        models = {each: with_merged(base, folders.get(each or "")) for each in (*HOW, None)}
        assert_exact(engine, models)
        changed = loaded(base)
        with torch.no_grad():
            for parameter in changed.parameters():
                parameter.mul_(1.05)
        changed.save_pretrained(base := tmp_path / "changed")
        engine.update_weights(changed)
        models = {each: with_merged(base, folders.get(each or "")) for each in (*HOW, None)}
        assert_exact(engine, models)
