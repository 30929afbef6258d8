"""A decoding step that is repeated in C computes what the model's own code computes, bit by bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

# It imports the whole stack.
pytestmark = [pytest.mark.engine, pytest.mark.verl]
WIDTH, HEAD, HEADS, VOCABULARY, LONGEST = 48, 12, 4, 70, 20


@pytest.fixture(autouse=True)
def as_in_the_scheduler():
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


@dataclasses.dataclass
class Batch:
    """What a step reads of SGLang's `ForwardBatch`."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    seq_lens: torch.Tensor
    req_pool_indices: torch.Tensor
    out_cache_loc: torch.Tensor
    token_to_kv_pool: Any
    req_to_token_pool: Any
    temperatures: torch.Tensor
    input_embeds: None = None


class Model:
    """Two layers like a Llama's, of the functions in C, and the runner that SGLang would have.

    between: computes something more between the two.
    """

    def __init__(
        self, kernels: Any, between: Callable[[torch.Tensor, Batch, Model], torch.Tensor]
    ) -> None:
        from _inf.backends.verl.child.packed_linear import _panels

        self.kernels, self.between, self.computed = kernels, between, 0
        self.table, self.norm = torch.randn(VOCABULARY, WIDTH), torch.randn(WIDTH)
        self.angles, self.others = torch.randn(LONGEST, HEAD), torch.randn(30, WIDTH)
        sizes = {"qkv": 3 * WIDTH, "mlp": 2 * WIDTH, "down": WIDTH, "head": VOCABULARY}
        self.packed = {}
        for name, out in sizes.items():
            plain = torch.randn(out, WIDTH)
            tensor = torch.ops.mkldnn._reorder_linear_weight(plain, None)
            self.packed[name] = tensor, _panels(plain, tensor)
        self.caches = torch.zeros(2, 2, 16 * LONGEST, HEADS, HEAD)
        table = torch.arange(16 * LONGEST, dtype=torch.int32).view(16, LONGEST)
        self.pool, self.requests = object(), SimpleNamespace(req_to_token=table)
        self.layer = SimpleNamespace(
            tp_q_head_num=HEADS, tp_k_head_num=HEADS, qk_head_dim=HEAD, v_head_dim=HEAD,
            sliding_window_size=-1, scaling=0.3, logit_cap=0.0,
        )  # fmt: skip

    def multiply(self, name: str, x: torch.Tensor) -> torch.Tensor:
        tensor, panels = self.packed[name]
        return self.kernels.multiply(x, panels, len(tensor), None)

    def forward_decode(self, batch: Any, **named: Any) -> Any:
        from _inf.backends.verl.child.recorded_step import at_the_head

        self.computed += 1
        table = batch.req_to_token_pool.req_to_token
        rows = batch.req_pool_indices, batch.seq_lens, batch.out_cache_loc
        step = self.kernels.step(lambda layer: self.caches[layer], table, *rows)
        hidden, residual = torch.nn.functional.embedding(batch.input_ids, self.table), None
        for number in range(2):
            hidden, residual = self.kernels.normalize(hidden, residual, self.norm, 1e-5)
            q, k, v = self.multiply("qkv", hidden).split(WIDTH, dim=-1)
            # As Qwen 3 normalizes its heads: a copy, of more rows than the step has.
            q = self.kernels.normalize(q.reshape(-1, HEAD), None, self.norm[:HEAD], 1e-5)[0]
            q = q.view(-1, WIDTH)
            self.kernels.rotate(q, HEAD, self.angles, batch.positions)
            self.kernels.rotate(k, HEAD, self.angles, batch.positions)
            layer = SimpleNamespace(layer_id=number, **vars(self.layer))
            hidden = self.between(step.attend(q, k, v, layer), batch, self)
            hidden, residual = self.kernels.normalize(hidden, residual, self.norm, 1e-5)
            hidden = self.multiply("down", self.kernels.silu_and_mul(self.multiply("mlp", hidden)))
        hidden, _ = self.kernels.normalize(hidden, residual, self.norm, 1e-5)
        head = torch.nn.Module()
        arguments = batch.input_ids, hidden, head, batch
        return at_the_head(self.kernels, self.process, self.process_again, *arguments)

    def normalize(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.kernels.normalize(hidden, None, weight, 1e-5)[0]

    def process(self, _: Any, input_ids: Any, hidden: torch.Tensor, head: Any, batch: Any) -> Any:
        return SimpleNamespace(next_token_logits=self.multiply("head", hidden))

    def process_again(self, *arguments: Any) -> Any:
        return self.process(None, *arguments)


def unchanged(hidden: torch.Tensor, *_: Any) -> torch.Tensor:
    return hidden


def batch_of(model: Model, rows: int, tokens: int) -> Batch:
    """A step of these rows, whose requests have this many tokens and one more each."""
    lengths = torch.arange(rows) % 3 + tokens
    requests = torch.arange(rows).flip(0)
    slots = model.requests.req_to_token[requests, lengths - 1].long()
    return Batch(
        torch.randint(VOCABULARY, (rows,)), lengths - 1, lengths, requests, slots,
        model.pool, model.requests, torch.ones(rows),
    )  # fmt: skip


def steps_of(model: Model) -> Any:
    from _inf.backends.verl.child.recorded_step import RecordedSteps

    return RecordedSteps(model.kernels, model)


def logits(steps: Any, model: Model, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """By the recorded steps, and by the model's own code with the same caches."""
    before = model.caches.clone()
    ours = steps.replay(batch, skip_attn_backend_init=False, pp_proxy_tensors=None)
    computed, after = model.computed, model.caches.clone()
    model.caches.copy_(before)
    own = model.forward_decode(batch)
    model.computed = computed
    assert torch.equal(after, model.caches)
    return ours.next_token_logits, own.next_token_logits


def test_steps_of_any_number_of_rows_are_repeated_bit_by_bit(compiled_kernels):
    model = Model(compiled_kernels, unchanged)
    steps = steps_of(model)
    for tokens, rows in enumerate((3, 3, 1, 8, 5, 2, 1, 9), start=1):
        assert torch.equal(*logits(steps, model, batch_of(model, rows, tokens)))
    assert model.computed == 3 + 2  # a recording and two steps to compare; for 9 rows a new one


@pytest.mark.parametrize(
    ("between", "what"),
    [
        (lambda hidden, *_: hidden * 2, "aten::mul"),
        (lambda hidden, *_: hidden.add_(1), "aten::add_"),
        (lambda hidden, batch, *_: hidden[batch.seq_lens.max() * 0 :], "aten::max"),
        (lambda hidden, *_: torch.cat([hidden[:1], hidden[1:]]), "aten::cat"),
        (
            lambda hidden, batch, model: model.normalize(hidden, batch.temperatures),
            "normalize of something else than input_ids",
        ),
        (
            lambda hidden, _, model: model.normalize(hidden, model.others[model.computed]),
            "something that changes from step to step",
        ),
    ],
)
def test_model_with_something_else_runs_as_before(compiled_kernels, caplog, between, what):
    model = Model(compiled_kernels, between)
    steps, batch = steps_of(model), batch_of(model, 2, 1)
    batch = dataclasses.replace(batch, temperatures=torch.randn(WIDTH))
    steps.replay(batch)
    assert not steps.can_run(batch_of(model, 2, 2)) and f"computes {what}" in caplog.text
