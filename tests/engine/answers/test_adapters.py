"""LoRA adapters on the backend `hf`: each row is what the model with its adapter merged answers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from _inf.errors import RequestFailure
from inf import ConfigError, EngineDeadError, GenerationOutput, InferenceEngine
from tests.support.pages import blocks
from tests.support.prompts import as_ids, token_prompts
from tests.support.refusals import refused
from tests.support.scripts import until
from tests.support.tiny import tiny_model
from tests.support.tool_calling import TOOL_MODEL, question
from tests.support.trained import adapter, loaded

SETTINGS = {"name": "hf", "dtype": "float32", "prompt_length": 512, "response_length": 128}
PROMPTS = as_ids(token_prompts(5, 100, seed=61))
PROMPTS.append(PROMPTS[0])  # equal prompts are computed once, but not for different adapters
MIXED = [None, "first", "second", "first", "second", "second"]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
WITHIN = 1e-4  # of two log probs: the merged weights are rounded to float32 once more
OTHER = {"r": 8, "target_modules": ["k_proj", "o_proj", "up_proj"], "use_rslora": True}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    first = adapter(tiny_model(), folder / "first")
    return {"first": first, "second": adapter(tiny_model(), folder / "second", seed=6, **OTHER)}


def started(folder: Path | None = None, **config: Any) -> InferenceEngine:
    return InferenceEngine(model_path=str(folder or tiny_model()), rollout=SETTINGS, **config)


@pytest.fixture(scope="module")
def hf(folders: dict[str, Path]) -> Iterator[InferenceEngine]:
    with started() as engine:
        for name, folder in folders.items():
            engine.load_adapter(name, folder)
        yield engine


@pytest.fixture(scope="module")
def merged(folders: dict[str, Path]) -> Iterator[dict[str | None, InferenceEngine]]:
    """By adapter, an engine whose weights it was merged into; one without for None."""
    engines: dict[str | None, InferenceEngine] = {None: started()}
    for name, folder in folders.items():
        engines[name] = started(adapter_path=str(folder))
    yield engines
    for engine in engines.values():
        engine.shutdown()


def assert_same(ours: GenerationOutput, theirs: GenerationOutput) -> None:
    assert ours.token_ids == theirs.token_ids
    for mine, yours in zip(ours, theirs, strict=True):
        assert mine.logprobs == pytest.approx(yours.logprobs, abs=WITHIN)


@pytest.mark.parametrize(
    "how", [GREEDY, {"temperature": 0.9, "seed": 4, "top_p": 0.9, "max_tokens": 30}], ids=str
)
def test_rows_of_one_batch_are_those_of_their_own_merged_models(
    hf: InferenceEngine, merged: dict[str | None, InferenceEngine], how: dict[str, Any]
) -> None:
    output = hf.generate(PROMPTS, n=1, adapter=MIXED, **how)
    assert [row.adapter for row in output] == MIXED
    assert [row.metadata.get("adapter") for row in output] == MIXED
    for name, engine in merged.items():
        alone = engine.generate(PROMPTS, n=1, **how)
        assert_same(hf.generate(PROMPTS, n=1, adapter=name, **how), alone)
        own = [index for index, each in enumerate(MIXED) if each == name]
        assert_same(
            GenerationOutput([output[index] for index in own]),
            GenerationOutput([alone[index] for index in own]),
        )
    texts = {tuple(output.token_ids[index] or ()) for index in (0, 5)}
    assert len(texts) == 2  # one prompt, with an adapter and without


def test_scores_logits_and_log_probs_of_prompts_are_those_of_merged_models(
    hf: InferenceEngine, merged: dict[str | None, InferenceEngine]
) -> None:
    answers = [[5, 6, 7, 8]] * len(PROMPTS)
    asked = hf.generate(PROMPTS, adapter=MIXED, prompt_logprobs=2, **GREEDY)
    for name, engine in merged.items():
        mine = hf.score(PROMPTS, answers, adapter=name)
        for own, other in zip(mine, engine.score(PROMPTS, answers), strict=True):
            assert own.logprobs == pytest.approx(other.logprobs, abs=WITHIN)
        logits = hf.get_logits(PROMPTS, answers, adapter=name)
        assert torch.allclose(logits, engine.get_logits(PROMPTS, answers), atol=1e-3)
        place = MIXED.index(name)
        theirs = engine.generate(PROMPTS[place], prompt_logprobs=2, **GREEDY)[0]
        assert asked[place].prompt_logprobs == pytest.approx(theirs.prompt_logprobs, abs=WITHIN)


def test_beams_are_searched_with_the_adapter_beside_rows_without_one(
    hf: InferenceEngine, merged: dict[str | None, InferenceEngine]
) -> None:
    beams: dict[str, Any] = {"num_beams": 3, "n": 2, "max_tokens": 12}
    stop = threading.Event()
    rows: list[GenerationOutput] = []

    def decode() -> None:
        while not stop.is_set():
            rows.append(hf.generate(PROMPTS[0], **GREEDY))

    beside = threading.Thread(target=decode)
    beside.start()
    try:
        for name, engine in merged.items():
            searched = hf.generate(PROMPTS[:2], adapter=name, **beams)
            assert_same(searched, engine.generate(PROMPTS[:2], **beams))
    finally:
        stop.set()
        beside.join(60)
    alone = merged[None].generate(PROMPTS[0], **GREEDY)
    assert rows and all(row.token_ids == alone.token_ids for row in rows)


def test_streams_batches_of_a_trainer_and_agent_loops_have_adapters(
    hf: InferenceEngine, merged: dict[str | None, InferenceEngine]
) -> None:
    theirs = merged["second"].generate(PROMPTS[:2], **GREEDY)
    chunks = list(hf.stream(PROMPTS[0], adapter="second", **GREEDY))
    assert [token for chunk in chunks for token in chunk.token_ids] == theirs.token_ids[0]
    assert chunks[-1].metadata and chunks[-1].metadata["adapter"] == "second"
    batch = hf.rollout_batch(PROMPTS[:2], adapter="second", **GREEDY)
    mask = batch.batch["response_mask"].bool()
    ids = [row[own].tolist() for row, own in zip(batch.batch["responses"], mask, strict=True)]
    assert ids == theirs.token_ids
    how: dict[str, Any] = {"agent_loop": "single_turn_agent", **GREEDY}
    looped = hf.generate(["Hi"], adapter="second", **how)
    assert looped.token_ids == merged["second"].generate(["Hi"], **how).token_ids
    assert looped[0].metadata["adapter"] == "second"


def calculator(expression: str) -> str:
    """
    Compute.

    Args:
        expression: What to compute.
    """
    return "84"


def test_every_turn_of_a_conversation_has_its_adapter(folders: Any, tmp_path: Path) -> None:
    weak = adapter(TOOL_MODEL, tmp_path / "weak", scale=0.08)
    asked: Any = [question("12 * 7"), question("3 + 4")]
    how: dict[str, Any] = {"temperature": 0, "max_tokens": 60, "tools": [calculator]}
    with started(TOOL_MODEL, adapter_path=str(weak)) as engine:
        theirs = engine.generate(asked, **how)
    with started(TOOL_MODEL) as engine:
        engine.load_adapter("weak", weak)
        ours = engine.generate(asked, adapter="weak", **how)
        base = engine.generate(asked, **how)
    assert [row["num_turns"] for row in ours.metadata] == [2, 2]
    assert_same(ours, theirs)
    assert ours.messages == theirs.messages
    assert ours.logprobs[0] != pytest.approx(base.logprobs[0], abs=WITHIN)


@pytest.fixture
def own(folders: dict[str, Path]) -> Iterator[InferenceEngine]:
    """One whose adapters a test changes."""
    with started(generation_cache=64) as engine:
        yield engine


def state_of(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    from peft.utils import load_peft_weights

    config = json.loads((folder / "adapter_config.json").read_text())
    return load_peft_weights(str(folder), device="cpu"), config


def test_adapters_are_loaded_replaced_and_unloaded(
    own: InferenceEngine,
    merged: dict[str | None, InferenceEngine],
    folders: dict[str, Path],
    tmp_path: Path,
) -> None:
    from peft import PeftConfig

    expected = {
        name: engine.generate(PROMPTS, **GREEDY).token_ids for name, engine in merged.items()
    }

    def said(adapter: str | None) -> tuple[Any, set[int]]:
        output = own.generate(PROMPTS, adapter=adapter, **GREEDY)
        return output.token_ids, {row.weight_version for row in output}

    assert own.adapters == []
    assert own.load_adapter("one.day: x", folders["first"]) == 0
    assert own.adapters == ["one.day: x"] and own.weight_version == 0
    assert said("one.day: x") == (expected["first"], {0})
    # Another rank and other layers, in the place of the first.
    assert own.load_adapter("one.day: x", str(folders["second"])) == 1
    assert said("one.day: x") == (expected["second"], {1})
    # New tensors of a known config, as a trainer has them.
    tensors, config = state_of(folders["second"])
    zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    assert own.load_adapter("one.day: x", zeros) == 2
    assert said("one.day: x") == (expected[None], {2})
    half = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    assert own.load_adapter("half", half, peft_config=config) == 0
    assert own.load_adapter("one.day: x", tensors, version=40) == 40
    assert said("one.day: x") == (expected["second"], {40})
    # As verl writes them, in a checkpoint.
    actor = shutil.copytree(folders["first"], tmp_path / "global_step_3/actor/lora_adapter")
    fields = dataclasses.asdict(PeftConfig.from_pretrained(folders["first"]))
    fields |= {"peft_type": "LORA", "target_modules": [*fields["target_modules"]]}
    (actor / "adapter_config.json").write_text(json.dumps(fields))
    assert own.load_adapter("verl", tmp_path / "global_step_3") == 0
    assert said("verl")[0] == expected["first"]
    # New weights of the model are those of its adapters, too.
    assert own.update_weights(loaded(tiny_model(), dtype=torch.float32)) == 1
    assert said("one.day: x") == (expected["second"], {41})
    assert said(None) == (expected[None], {1})
    for name in own.adapters:
        own.unload_adapter(name)
    assert own.adapters == [] and said(None) == (expected[None], {1})
    assert own.load_adapter("one.day: x", folders["first"]) == 42  # a version is of one adapter
    assert said("one.day: x") == (expected["first"], {42})


def test_running_rows_end_with_the_old_adapter_and_later_ones_wait(
    own: InferenceEngine, merged: dict[str | None, InferenceEngine], folders: dict[str, Path]
) -> None:
    own.load_adapter("a", folders["first"])
    long: dict[str, Any] = {"temperature": 0, "max_tokens": 500, "ignore_eos": True}
    done: dict[str, GenerationOutput] = {}
    chunks = own.stream(PROMPTS[0], adapter="a", **long)
    streamed = list(next(chunks).token_ids)
    update = threading.Thread(target=own.load_adapter, args=("a", folders["second"]))
    update.start()
    host: Any = vars(own)["_backend"].host
    assert until(lambda: not host.lock._no_writer.is_set(), 30)
    late = threading.Thread(
        target=lambda: done.update(late=own.generate(PROMPTS[0], adapter="a", **GREEDY))
    )
    late.start()
    streamed += [token for chunk in chunks for token in chunk.token_ids]
    for thread in (update, late):
        thread.join(60)
    assert streamed == merged["first"].generate(PROMPTS[0], **long).token_ids[0]
    assert done["late"].token_ids == merged["second"].generate(PROMPTS[0], **GREEDY).token_ids


def test_pass_that_fails_lets_the_next_one_run(
    own: InferenceEngine, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    own.load_adapter("a", folders["first"])
    before = own.generate(PROMPTS[0], adapter="a", **GREEDY).token_ids
    with monkeypatch.context() as patch:
        patch.setattr(vars(own)["_backend"].forward.model, "forward", None)
        with pytest.raises(RequestFailure):
            own.generate(PROMPTS[1], adapter="a", **GREEDY)
    own.clear_cache()
    assert own.generate(PROMPTS[0], adapter="a", **GREEDY).token_ids == before


PLAIN = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
Q = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"


def tensors_of(**changed: torch.Tensor) -> dict[str, torch.Tensor]:
    shapes = {"A": (4, 64), "B": (64, 4)}
    return {
        Q.format(layer, part): changed.get(part, torch.zeros(shape))
        for layer in (0, 1)
        for part, shape in shapes.items()
    }


# By what is wrong: the arguments of load_adapter after the name, and what is said of it.
BROKEN: dict[str, tuple[Callable[[], tuple[Any, Any]], str]] = {
    "nowhere": (lambda: ("/nowhere", None), "/nowhere is not a PEFT folder"),
    "no path": (lambda: ("a\0b", None), r"'a\\x00b' is no folder: ValueError"),
    "long path": (lambda: ("x" * 5000, None), "is no folder: OSError.* too long"),
    "two configs": (lambda: ("/nowhere", PLAIN), "leave peft_config out"),
    "no config": (lambda: (tensors_of(), None), "give the adapter's peft_config"),
    "dora": (lambda: (tensors_of(), PLAIN | {"use_dora": True}), "use_dora: True.*adapter_path"),
    "head": (
        lambda: (tensors_of(), PLAIN | {"modules_to_save": ["lm_head"]}),
        "modules_to_save: .*only a merge",
    ),
    "base": (
        lambda: (tensors_of(), PLAIN | {"init_lora_weights": "pissa"}),
        "init_lora_weights: 'pissa'",
    ),
    "unknown": (lambda: (tensors_of(), PLAIN | {"use_next": True}), "use_next: True"),
    "kind": (lambda: ({}, {"peft_type": "LOHA"}), "kind LOHA"),
    "nothing": (lambda: (tensors_of(), PLAIN | {"lora_alpha": 0}), "would change nothing"),
    "text": (lambda: (tensors_of(), PLAIN | {"r": "4"}), "its config has r: '4'"),
    "no number": (
        lambda: (tensors_of(), PLAIN | {"lora_alpha": math.nan}),
        "lora_alpha: nan, with which .* nothing could be computed",
    ),
    "no pattern": (
        lambda: (tensors_of(), PLAIN | {"alpha_pattern": {"q_proj": math.inf}}),
        "nothing could be computed",
    ),
    "modules": (
        lambda: (tensors_of(), PLAIN | {"target_modules": ["wq"]}),
        "Target modules .* not found",
    ),
    "rank": (lambda: (tensors_of(), PLAIN | {"r": 8}), r"shape \(4, 64\), and .*\(8, 64\)"),
    "other model": (
        lambda: (tensors_of(A=torch.zeros(4, 32)), PLAIN),
        r"q_proj.lora_A.weight has the shape \(4, 32\), and an adapter with this config on this",
    ),
    "missing": (lambda: ({}, PLAIN), "4 of 4 are missing, first base_model"),
    "surplus": (
        lambda: (tensors_of() | {Q.format(9, "A"): torch.zeros(4, 64)}, PLAIN),
        "has no .*layers.9",
    ),
    "nan": (lambda: (tensors_of(A=torch.full((4, 64), torch.nan)), PLAIN), "holds NaN"),
    "form": (lambda: (3, PLAIN), "expected a module, a state dict"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_adapter_that_cannot_be_served_is_refused_and_changes_nothing(
    hf: InferenceEngine, what: str
) -> None:
    make, words = BROKEN[what]
    weights, config = make()
    before = hf.generate(PROMPTS, adapter=MIXED, **GREEDY).token_ids
    with refused(ConfigError, "^adapters.new: .*" + words, key="adapters.new"):
        hf.load_adapter("new", weights, peft_config=config)
    assert hf.adapters == ["first", "second"]
    assert hf.generate(PROMPTS, adapter=MIXED, **GREEDY).token_ids == before


def test_embeddings_that_are_the_head_too_take_no_adapter(folders: Any, tmp_path: Path) -> None:
    tied = tiny_model(tied=True)
    embeddings = adapter(tied, tmp_path / "embeddings", target_modules=["embed_tokens"])
    with started(tied) as engine:
        with refused(ConfigError, "only a merge", key="adapters.new"):
            engine.load_adapter("new", embeddings)
        engine.load_adapter("new", adapter(tied, tmp_path / "queries"))


def test_names_that_are_not_loaded_are_refused(hf: InferenceEngine) -> None:
    with refused(ConfigError, "'frist' is not loaded; did you mean 'first'", key="adapter"):
        hf.generate(PROMPTS, adapter="frist")
    with refused(ConfigError, r"'third' .*there are first, second. \(prompt 1\)", index=1):
        hf.generate(PROMPTS[:2], adapter=["first", "third"])
    with refused(ConfigError, "a list of 1 values for 6 prompts", key="adapter"):
        hf.generate(PROMPTS, adapter=["first"])
    for call in (
        lambda: hf.stream("Hi", adapter="third"),
        lambda: hf.score("Hi", "you", adapter="third"),
        lambda: hf.unload_adapter("third"),
    ):
        with refused(ConfigError, "'third' is not loaded", key="adapter"):
            call()
    for name in ("", 3, ["first"]):
        with refused(ConfigError, "is not a name; give it as text", key="adapter"):
            hf.score("Hi", "you", adapter=name)  # type: ignore[arg-type]
    with refused(ConfigError, "has half a character", key="name"):
        hf.load_adapter("\ud800", {})  # which no answer of a server could list
    with refused(ConfigError, "is the model's", key="name"):
        hf.load_adapter(hf.config.model_name, {})
    with refused(ConfigError, "from 0", key="version"):
        hf.load_adapter("first", {}, version=-1)


def test_engine_that_was_shut_down_says_so(folders: dict[str, Path]) -> None:
    with started() as engine:
        engine.load_adapter("first", folders["first"])
    for call in (
        lambda: engine.generate("Hi", adapter="first"),
        lambda: engine.load_adapter("second", folders["second"]),
        lambda: engine.update_weights({}),
    ):
        with pytest.raises(EngineDeadError, match="shut down"):
            call()
    engine.restart()
    assert engine.adapters == []
    engine.shutdown()


def test_sglang_says_by_name_that_it_merges_an_adapter(
    tiny: InferenceEngine, folders: dict[str, Path]
) -> None:
    words = "the backend sglang does not offer it; .*hf.*adapter_path merges"
    with refused(ConfigError, words, key="load_adapter()"):
        tiny.load_adapter("first", folders["first"])
    with refused(ConfigError, words, key="adapter"):
        tiny.generate("Hi", adapter="first")
    assert tiny.adapters == [] and "adapters" not in tiny.supports


def test_python_of_the_page_on_adapters_runs(
    own: InferenceEngine,
    folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folders["first"], "adapters/french")
    shutil.copytree(folders["second"], "checkpoints/global_step_40/actor/lora_adapter")
    monkeypatch.setattr("inf.InferenceEngine", lambda **_: contextlib.nullcontext(own))
    here: dict[str, Any] = {"engine": own, "prompts": ["Hi"]}
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(target_modules="all-linear")
    here["model"] = get_peft_model(loaded(tiny_model()), config)
    for block in blocks("docs/adapters.md", "python"):
        exec(compile(block, "docs/adapters.md", "exec"), here)
    assert "['french', 'step 40', None]" in capsys.readouterr().out
    assert own.adapters == ["french", "policy"] and len(here["batch"]) == 8
