"""SGLang's own sampler and requests under our table of patches, without a scheduler."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from _inf.backends import draws
from _inf.backends.verl import environment

pytestmark = [pytest.mark.engine, pytest.mark.verl]  # it imports the whole stack

WIDTH = 2000
SEEDED = {"custom_params": {"seed": 5}}


class Batch:
    """What SGLang's records of a batch read of its scheduler's batch."""

    device = "cpu"

    def __init__(self, reqs: list[Any]) -> None:
        self.reqs = reqs


class PretendedGpu(TorchFunctionMode):
    """Tensors say that they are on a GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func == torch.Tensor.device.__get__:
            return torch.device("cuda")
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != "device"}
        if func.__name__ == "to" and isinstance(args[1], torch.device):
            return args[0]
        return func(*args, **kwargs)


@pytest.fixture(scope="module", autouse=True)
def patched():
    """The rows of the table for what is used here."""
    environment.prepare("auto")
    from sglang.srt import server_args
    from sglang.srt.layers import sampler
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling import penaltylib
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    from _inf.backends.verl.child.setup import patches
    from _inf.backends.verl.patch_table import Process, apply

    penalizers = [vars(penaltylib)[name] for name in penaltylib.__all__]
    owners = (sampler, sampler.Sampler, Req, SamplingBatchInfo, *penalizers)
    table = patches(Process(Path()))
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


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, SEEDED, {**SEEDED, "top_k": 5}], ids=str)
def test_row_of_nan_gets_a_token_and_a_log_prob_of_nan_and_no_other_row_does(gpu, params):
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


def test_draw_on_a_gpu_is_as_often_as_the_probabilities_say():
    probs = torch.tensor([0.5, 0.0, 0.3, 0.2]).expand(100_000, -1)
    torch.manual_seed(3)
    with PretendedGpu():
        tokens = draws.draw(probs)
    shares = torch.bincount(tokens, minlength=4) / len(tokens)
    assert shares[1] == 0 and (shares - probs[0]).abs().max() < 0.01


def test_masked_rows_are_drawn_from_their_mask_on_a_gpu_too(monkeypatch):
    """There SGLang filters one after the other beside min_p: a wrong token stands for its draw."""
    from sglang.srt.layers import sampler

    wrong = WIDTH - 1
    name = "top_k_top_p_min_p_sampling_from_probs_torch"
    monkeypatch.setattr(sampler, name, lambda probs, *_: torch.full((len(probs),), wrong).int())
    how = {"top_k": 20, "top_p": 0.8, "min_p": 0.02}
    reqs = [request([1], **how, custom_params={"keep_filtered": True}) for _ in range(40)]
    reqs[::4] = [request([1], **how) for _ in range(10)]
    reqs[1].sampling_params.custom_params = {"logprob_token_ids": [3, 9]}
    _batch, info = info_of(reqs)
    logits = torch.randn(40, WIDTH) * 3
    probs = logits.softmax(-1)
    columns = (torch.tensor([[value]]).expand(40, 1) for value in how.values())
    left = draws.filtered(probs, *columns)
    with PretendedGpu():
        tokens, output = sampled(info, logits, tops=1)
    for row, token in enumerate(tokens.tolist()):
        kept = output.next_token_top_logprobs_idx[row]
        if row == 1:
            assert kept == [3, 9]
        elif row % 4:
            assert token in kept and kept == left[row].nonzero()[:, 0].tolist()
        assert token == wrong or (row % 4 and row != 1)
        logprobs = output.next_token_top_logprobs_val[row]
        assert logprobs == pytest.approx(probs[row, kept].log().tolist(), abs=1e-4)


def test_forced_end_of_a_thought_comes_even_where_it_completes_a_bad_word():
    marks = {"start": [3], "end": [7, 9], "unopened": False, "turn_ends": []}
    custom = {"thinking_token_budget": [0, marks], "long_bad_words": [[7, 9]]}
    req = request([3], custom_params=custom)
    req.output_ids = [7]
    _batch, info = info_of([req])
    tokens, _ = sampled(info, torch.randn(1, WIDTH))
    assert tokens.tolist() == [9]
