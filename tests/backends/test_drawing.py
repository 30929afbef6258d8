"""SGLang's own sampler and requests under our table of patches, without a scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers import RepetitionPenaltyLogitsProcessor

from _inf.backends import draws
from _inf.backends.verl import environment

pytestmark = [pytest.mark.engine, pytest.mark.verl]  # it imports the whole stack

WIDTH = 2000
SEEDED = {"custom_params": {"seed": 5}}
MASKED = {"custom_params": {"sampling_mask": True}, "top_p": 0.9}
PENALIZED = {"custom_params": {"repetition_penalty": 1.3}}


class Batch:
    """What SGLang's records of a batch read of its scheduler's batch."""

    device = "cpu"

    def __init__(self, reqs: list[Any]) -> None:
        self.reqs = reqs


class PretendedGpu(TorchFunctionMode):
    """Tensors say that they are on a GPU; `waits`: what would wait there for the device."""

    WAITING = frozenset(
        "item tolist cpu numpy __bool__ __int__ __float__ __index__ nonzero unique masked_select"
        " bincount".split()
    )

    def __init__(self) -> None:
        self.waits: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = dict(kwargs or {}), func.__name__
        if func == torch.Tensor.device.__get__:
            return torch.device("cuda")
        elsewhere = "device" in kwargs or (name == "to" and isinstance(args[1], torch.device))
        kwargs.pop("device", None)
        at_once = kwargs.get("non_blocking") or name in ("arange", "empty", "zeros", "empty_like")
        indexes = args[1] if name in ("__getitem__", "__setitem__") else ()
        for index in indexes if isinstance(indexes, tuple) else (indexes,):
            flags = isinstance(index, torch.Tensor) and index.dtype is torch.bool
            elsewhere |= flags or isinstance(index, list)
        if name in self.WAITING or (elsewhere and not at_once):
            self.waits.append(name)
        if name == "to" and elsewhere:
            return args[0]
        return func(*args, **kwargs)


@pytest.fixture(scope="module", autouse=True)
def patched() -> Iterator[None]:
    """The rows of the table for what is used here."""
    environment.prepare("auto")
    from sglang.srt import server_args
    from sglang.srt.layers import sampler
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.penaltylib import BatchedPenalizerOrchestrator
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    from _inf.backends.verl.child.setup import patches
    from _inf.backends.verl.patch_table import apply

    owners = (sampler, sampler.Sampler, Req, BatchedPenalizerOrchestrator, SamplingBatchInfo)
    table = patches(Path())
    with pytest.MonkeyPatch.context() as changes:
        arguments = SimpleNamespace(
            enable_deterministic_inference=False,
            enable_custom_logit_processor=False,
            sampling_backend="pytorch",
        )
        changes.setattr(server_args, "_global_server_args", arguments)
        for row in table:
            if row.owner in owners:
                changes.setattr(row.owner, row.attribute, getattr(row.owner, row.attribute))
        apply(row for row in table if row.owner in owners)
        yield
    draws._steps.cache_clear()


def request(prompt: list[int], **params: Any) -> Any:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    sampling = SamplingParams(**{"temperature": 1.0, **params})
    sampling.normalize(None)
    req = Req("row", "", prompt, sampling, return_logprob=True)
    req.kv_committed_len = len(prompt)
    return req


def info_of(reqs: list[Any]) -> tuple[Batch, Any]:
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    batch = Batch(reqs)
    return batch, SamplingBatchInfo.from_schedule_batch(batch, WIDTH)


def sampled(info: Any, logits: torch.Tensor, tops: int = 0) -> tuple[torch.Tensor, Any]:
    """One step of SGLang's sampler: the tokens, and its output."""
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.layers.sampler import Sampler

    sampler = Sampler.__new__(Sampler)
    torch.nn.Module.__init__(sampler)
    sampler.use_nan_detection = sampler.enable_deterministic = sampler.use_ascend_backend = False
    sampler.use_log_softmax_logprob, sampler.rl_on_policy_target = False, None
    sampler.tp_sync_group = SimpleNamespace(size=lambda: 1)
    rows = len(logits)
    output = LogitsProcessorOutput(next_token_logits=logits)
    info.apply_logits_bias(logits)
    tokens = sampler.forward(
        output, info, True, [tops] * rows, [None] * rows, torch.zeros(rows, dtype=torch.long)
    )
    return tokens, output


def waits(rows: int, tops: int = 0, **params: Any) -> list[str]:
    """What one step waits for on a GPU."""
    batch, info = info_of([request([1, 2, row], **params) for row in range(rows)])
    logits = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))
    orchestrator = info.penalizer_orchestrator
    with PretendedGpu() as gpu:
        if orchestrator.is_required:
            orchestrator.cumulate_output_tokens(torch.full((rows,), 7))
        info.device = torch.device("cuda")
        tokens, output = sampled(info, logits, tops)
    assert len(tokens) == len(batch.reqs) == len(output.next_token_logprobs)
    return gpu.waits


def test_step_of_plain_rows_waits_for_nothing() -> None:
    assert waits(2) == waits(256) == []
    assert waits(256, temperature=0.0) == []


@pytest.mark.parametrize(
    ("params", "most"),
    [
        (SEEDED, 0),
        (PENALIZED, 0),
        ({**SEEDED, "top_k": 50, "top_p": 0.9, "min_p": 0.05}, 2),
        ({"custom_params": {"seed": 5, "repetition_penalty": 0.8}, "top_p": 0.9}, 2),
    ],
    ids=str,
)
def test_step_of_steered_rows_waits_as_often_for_256_rows_as_for_2(
    params: dict[str, Any], most: int
) -> None:
    assert len(waits(2, **params)) == len(waits(256, **params)) <= most


def test_step_of_masked_rows_waits_as_often_for_256_rows_as_for_2() -> None:
    [few, many] = (waits(rows, tops=1, **MASKED) for rows in (2, 256))
    for name, times in {"__bool__": 1, "nonzero": 2, "cpu": 2}.items():
        assert few.count(name) == many.count(name) == times
    # Lists are made of what `cpu` has copied.
    assert {*few, *many} == {"__bool__", "nonzero", "cpu", "tolist", "bincount"}


def test_what_waits_for_a_gpu_is_counted() -> None:
    flags = torch.tensor([True, False])
    with PretendedGpu() as gpu:
        flags[flags], flags[[0]], flags.any().item(), flags.to(torch.device("cuda"))
        if flags.any():
            torch.zeros(2, device="cuda")
    assert gpu.waits == ["__getitem__", "__getitem__", "item", "to", "__bool__"]


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("width", [2, 7, 384, 49_152, 49_153])
def test_softmax_of_a_broken_row_is_nan_everywhere_and_in_no_other_row(
    broken: float, width: int
) -> None:
    logits = torch.randn(3, width)
    if broken == -torch.inf:
        logits[1] = broken  # a row of nothing else; a single one is a token that is ruled out
    else:
        logits[1, width // 2] = broken
    probs = torch.softmax(logits, -1)
    assert probs.isnan().all(-1).tolist() == probs.isnan().any(-1).tolist() == [False, True, False]
    assert torch.softmax(logits.bfloat16(), -1).isnan().all(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, SEEDED, {**SEEDED, "top_k": 5}], ids=str)
def test_row_of_nan_gets_a_token_and_a_log_prob_of_nan_and_no_other_row_does(
    gpu: bool, params: dict[str, Any]
) -> None:
    _batch, info = info_of([request([1], **params) for _ in range(3)])
    logits = torch.randn(3, WIDTH)
    logits[1, 77] = torch.nan
    if gpu and params != {"top_p": 0.9}:  # whose draw is SGLang's there
        with PretendedGpu():
            tokens, output = sampled(info, logits)
    else:
        tokens, output = sampled(info, logits)
    assert ((tokens >= 0) & (tokens < WIDTH)).all()
    assert output.next_token_logprobs.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize(("temperature", "least"), [(1.0, -60.0), (0.0, -200.0)])
def test_log_probs_are_those_of_the_softmax_and_the_least_number_where_it_is_zero(
    temperature: float, least: float
) -> None:
    _, info = info_of([request([1, 2, row], temperature=temperature) for row in range(2)])
    logits = torch.linspace(0, least, WIDTH).repeat(2, 1)
    logits[0, 1::2] = -torch.inf  # as a grammar does
    least_number = torch.finfo(torch.float32).min  # SGLang's in the place of minus infinity
    expected = logits.log_softmax(-1).clamp(min=least_number)
    _, output = sampled(info, logits.clone(), tops=WIDTH)
    for row in range(2):
        ids = torch.tensor(output.next_token_top_logprobs_idx[row])
        values = torch.tensor(output.next_token_top_logprobs_val[row])
        torch.testing.assert_close(values[ids.argsort()], expected[row])


def test_only_several_ranks_agree_on_their_tokens() -> None:
    from _inf.backends.verl.child.drawing import agree_with_others

    agreed: list[int] = []
    for ranks in (1, 2):
        sampler = SimpleNamespace(tp_sync_group=SimpleNamespace(size=lambda ranks=ranks: ranks))
        agree_with_others(lambda _, tokens: agreed.append(tokens), sampler, ranks)
    assert agreed == [2]


def test_draw_on_a_gpu_is_as_often_as_the_probabilities_say() -> None:
    probs = torch.tensor([0.5, 0.0, 0.3, 0.2]).expand(100_000, -1)
    torch.manual_seed(3)
    with PretendedGpu():
        tokens = draws.draw(probs)
    shares = torch.bincount(tokens, minlength=4) / len(tokens)
    assert shares[1] == 0 and (shares - probs[0]).abs().max() < 0.01


def test_masked_rows_are_drawn_from_their_mask_on_a_gpu_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There SGLang filters one after the other beside min_p: a wrong token stands for its draw."""
    from sglang.srt.layers import sampler

    wrong = WIDTH - 1
    name = "top_k_top_p_min_p_sampling_from_probs_torch"
    monkeypatch.setattr(sampler, name, lambda probs, *_: torch.full((len(probs),), wrong).int())
    how = {"top_k": 20, "top_p": 0.8, "min_p": 0.02}
    reqs = [request([1], **how, custom_params={"sampling_mask": True}) for _ in range(40)]
    reqs[::4] = [request([1], **how) for _ in range(10)]
    _batch, info = info_of(reqs)
    logits = torch.randn(40, WIDTH) * 3
    probs = logits.softmax(-1)
    with PretendedGpu():
        tokens, output = sampled(info, logits, tops=1)
    for row, (token, value) in enumerate(zip(tokens.tolist(), probs, strict=True)):
        kept = output.next_token_top_logprobs_idx[row]
        if row % 4 == 0:
            assert token == wrong and len(kept) == 1
            continue
        assert token in kept
        order = value.argsort(descending=True)[:20].tolist()
        before = value[order].cumsum(0) - value[order]
        left = (before <= 0.8) & (value[order] >= 0.02 * value.max())
        own = [token for token, stays in zip(order, left.tolist(), strict=True) if stays]
        assert sorted(own) == kept
        logprobs = output.next_token_top_logprobs_val[row]
        assert logprobs == pytest.approx(value[kept].log().tolist(), abs=1e-4)


def test_seed_gives_its_row_the_same_token_beside_any_other_rows() -> None:
    logits = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1))
    own = [{"custom_params": {"seed": seed}} if seed % 2 else {} for seed in range(8)]
    reqs = [request([1], **params) for params in own]
    for row, req in enumerate(reqs):
        req.kv_committed_len += row  # it has as many tokens as that
    _all, info = info_of(reqs)
    together, _ = sampled(info, logits.clone())
    for row in range(1, 8, 2):
        _one, info = info_of([reqs[row]])
        alone, _ = sampled(info, logits[row : row + 1].clone())
        assert (
            alone[0]
            == together[row]
            == draws.draw_by_seed(logits[row : row + 1].softmax(-1), [row], [row])
        )


def test_repetition_penalty_is_transformers_while_rows_come_go_and_come_back() -> None:
    generator = torch.Generator().manual_seed(9)
    factors = [1.3, 1.0, 0.7, 1.1, 2.0]
    reqs = [
        request(
            torch.randint(WIDTH, (3 + 40 * row,), generator=generator).tolist(),
            custom_params={"repetition_penalty": factor} if factor != 1.0 else None,
        )
        for row, factor in enumerate(factors)
    ]
    bias = {"custom_params": None, "logit_bias": {"7": 4.0}}
    plain = request([7, 8, 9], **bias)

    def check(batch: Batch, info: Any, factors: list[float]) -> None:
        logits = torch.randn(len(batch.reqs), WIDTH, generator=generator)
        expected = logits.clone()
        if plain in batch.reqs:
            expected[batch.reqs.index(plain), 7] += 4
        info.apply_logits_bias(logits)
        for row, (req, factor) in enumerate(zip(batch.reqs, factors, strict=True)):
            ids = torch.tensor([req.origin_input_ids + req.output_ids])
            if factor != 1.0:
                expected[row] = RepetitionPenaltyLogitsProcessor(factor)(ids, expected[row][None])
        assert torch.equal(logits, expected)

    def step(batch: Batch, info: Any) -> None:
        tokens = torch.randint(WIDTH, (len(batch.reqs),), generator=generator)
        for req, token in zip(batch.reqs, tokens.tolist(), strict=True):
            req.output_ids.append(token)
        if info.penalizer_orchestrator.is_required:
            info.penalizer_orchestrator.cumulate_output_tokens(tokens)

    running, info = info_of([plain])
    step(running, info)
    check(running, info, [1.0])
    for new in ([0, 1], [2, 3, 4]):
        batch, joining = info_of([reqs[row] for row in new])
        check(batch, joining, [factors[row] for row in new])
        info.merge_batch(joining)
        running.reqs.extend(batch.reqs)
        step(running, info)
        step(running, info)
    check(running, info, [1.0, *factors])
    keep = [0, 2, 3, 5]  # rows 0 and 3 of `reqs` go; row 3 comes back with what it has said
    running.reqs = [running.reqs[row] for row in keep]
    info.filter_batch(keep, torch.tensor(keep))
    step(running, info)
    check(running, info, [1.0, 1.0, 0.7, 2.0])
    batch, joining = info_of([reqs[3]])
    assert reqs[3].output_ids
    check(batch, joining, [1.1])
    info.merge_batch(joining)
    running.reqs.extend(batch.reqs)
    step(running, info)
    check(running, info, [1.0, 1.0, 0.7, 2.0, 1.1])
    running.reqs = [plain]
    info.filter_batch([0], torch.tensor([0]))
    assert not info.penalizer_orchestrator.is_required
    check(running, info, [1.0])


def test_only_requests_that_ask_for_more_are_checked_for_it_in_each_step() -> None:
    from sglang.srt.managers.schedule_batch import Req

    plain = [{}, {"min_new_tokens": 3}, {"ignore_eos": True}, {"stop_token_ids": [5]}, SEEDED]
    assert {type(request([1], **params)) for params in plain} == {Req}
    steered: list[dict[str, Any]] = [
        {"stop": ["x"], "min_new_tokens": 3},
        {"regex": "a+"},
        {"json_schema": "{}"},
        {"ignore_eos": True, "stop_token_ids": [5]},
    ]
    for params in steered:
        assert type(request([1], **params)) is not Req


def test_eos_id_is_looked_up_once(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from copy import copy

    from _inf.backends.verl.child.scheduler import with_cached_eos

    scheduler = SimpleNamespace(tokenizer=copy(tokenizer))
    with_cached_eos(lambda scheduler: None, scheduler)
    monkeypatch.setattr(type(tokenizer), "convert_tokens_to_ids", None)
    assert scheduler.tokenizer.eos_token_id == 2  # <|im_end|>
