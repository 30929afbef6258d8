"""The C functions of a layer, against PyTorch's operators in float64."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from _inf.backends.verl import compiled_libraries, environment

# It imports the whole stack.
pytestmark = [pytest.mark.engine, pytest.mark.verl, pytest.mark.usefixtures("loaded")]


@pytest.fixture(scope="module")
def library():
    path = compiled_libraries.kernel_library()
    assert path is not None, "there must be a gcc"
    return path


@pytest.fixture(scope="module")
def loaded(library):
    environment.prepare("auto")
    from _inf.backends.verl.child.kernels import Kernels

    return Kernels(library)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def close(ours: torch.Tensor, exact: torch.Tensor) -> None:
    torch.testing.assert_close(ours.double(), exact, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("heads", "width", "rotary"), [(9, 64, 64), (2, 80, 32), (1, 6, 2)])
def test_rotation_equals_pytorchs_and_leaves_the_rest(loaded, heads, width, rotary):
    rows, positions = 5, torch.tensor([3, 0, 7, 7, 1])
    wider, angles = draw(rows, heads * width + 10), draw(8, rotary)
    x, before = wider[:, : heads * width], wider.double().clone()
    heads_first = x.view(rows, heads, width).transpose(0, 1).contiguous()[None].permute(0, 2, 1, 3)
    copied = loaded.rotate(heads_first, width, angles, positions)
    assert loaded.rotate(x, width, angles, positions).data_ptr() == x.data_ptr()  # in place
    assert torch.equal(copied.reshape(x.shape), x)
    cosine, sine = angles.double()[positions].unsqueeze(1).chunk(2, dim=-1)
    low, high = (of_heads := before[:, :-10].view(rows, heads, width))[..., :rotary].chunk(2, -1)
    rotated = low * cosine - high * sine, high * cosine + low * sine, of_heads[..., rotary:]
    close(wider, torch.cat([torch.cat(rotated, -1).view(rows, -1), before[:, -10:]], -1))


def layer_of(*of_it: float | None) -> Any:
    """What `DecodingStep.attend` reads of SGLang's `RadixAttention`."""
    names = "tp_q_head_num tp_k_head_num qk_head_dim v_head_dim sliding_window_size scaling"
    return SimpleNamespace(
        layer_id=0, **dict(zip([*names.split(), "logit_cap"], of_it, strict=True))
    )


@pytest.mark.parametrize(
    "of_layer",  # heads, heads of keys, widths of a key and a value, window, scale, cap
    [
        (9, 3, 64, 64, -1, 0.3, 0.0),
        (4, 4, 128, 128, -1, 0.3, 0.0),
        (6, 2, 20, 12, -1, 0.3, 0.0),
        (8, 2, 64, 64, 3, 0.3, 0.0),
        (4, 1, 64, 64, -1, 0.3, 5.0),
        (4, 1, 64, 64, -1, 0.3, None),  # Gemma 2 without its cap
    ],
)
@pytest.mark.parametrize("lengths", [[1], [50, 3, 9, 17, 1, 2, 4, 300, 31, 16, 5, 64]])
def test_attention_equals_pytorchs_and_stores_the_new_tokens(loaded, lengths, of_layer):
    heads, kv_heads, width, value_width, window, scale, cap = of_layer
    rows, slots = len(lengths), sum(lengths) + 5
    keys, values = draw(slots, kv_heads, width), draw(slots, kv_heads, value_width)
    scattered = torch.randperm(slots, generator=torch.Generator().manual_seed(1))
    table, own = torch.zeros(rows + 2, 310, dtype=torch.int32), scattered.split([*lengths, 5])
    requests = torch.arange(rows).flip(0) + 1  # not the rows' order
    for request, of_row in zip(requests, own, strict=False):
        table[request, : len(of_row)] = of_row
    newest = torch.stack([of_row[-1] for of_row in own[:rows]])
    layer = layer_of(*of_layer)
    joined = draw(rows, (heads + kv_heads) * width + kv_heads * value_width)
    sizes = [heads * width, kv_heads * width, kv_heads * value_width]
    q, k, v = joined.split(sizes, dim=-1)  # as a layer has them: rows with a step
    new = k.view(rows, kv_heads, width), v.view(rows, kv_heads, value_width)
    step = loaded.step(lambda _: (keys, values), table, requests, torch.tensor(lengths), newest)
    out = step.attend(q, *new, layer)
    for row in range(rows):  # alone it is the same, bit by bit
        part = slice(row, row + 1)
        own_row = requests[part], torch.tensor(lengths)[part], newest[part]
        alone = loaded.step(lambda _: (keys, values), table, *own_row)
        assert torch.equal(alone.attend(q[part], *(x[part] for x in new), layer), out[part])
    assert torch.equal(keys[newest], new[0]) and torch.equal(values[newest], new[1])
    # As Gemma 3 has them: one more dimension, and all tokens of a head after one another.
    heads_first = [
        x.reshape(rows, -1, width).transpose(0, 1).contiguous()[None].permute(0, 2, 1, 3)
        for x in (q, k)
    ]
    keys[newest] = 0
    assert torch.equal(step.attend(heads_first[0], heads_first[1][0], new[1], layer), out)
    assert torch.equal(keys[newest], new[0])
    for row, of_row in enumerate(own[:rows]):
        seen = of_row if window < 0 else of_row[-window - 1 :]
        each_key, each_value = (
            cache[seen].double().repeat_interleave(heads // kv_heads, dim=1)
            for cache in (keys, values)
        )
        scores = torch.einsum("hd,thd->ht", q[row].double().view(heads, width), each_key) * scale
        scores = cap * torch.tanh(scores / cap) if cap else scores
        expected = torch.einsum("ht,thd->hd", scores.softmax(-1), each_value)
        close(out[row], expected.reshape(-1))


@pytest.mark.parametrize("wrong", ["query", "key", "value", "keys", "values"])
def test_layer_that_does_not_fit_its_tensors_is_refused(loaded, wrong):
    """C would read and write what is beside them."""
    sizes = {"query": (2, 128), "key": (2, 64), "value": (2, 64)}
    sizes |= {"keys": (4, 1, 64), "values": (4, 1, 64)}
    sizes[wrong] = (*sizes[wrong][:-1], 32)
    query, key, value, *caches = (draw(*size) for size in sizes.values())
    rows = torch.arange(2), torch.tensor([2, 2]), torch.tensor([1, 3])
    step = loaded.step(lambda _: caches, torch.tensor([[0, 1], [2, 3]]).int(), *rows)
    with pytest.raises(ValueError, match="layer 0 .*does not fit"):
        step.attend(query, key, value, layer_of(2, 1, 64, 64, -1, 1.0, 0.0))


def test_without_gcc_or_with_a_damaged_library_there_is_a_warning_and_none(monkeypatch, tmp_path):
    """Damaged as in a folder that is mounted noexec."""

    def damaged(command: list[str], folder: Path) -> None:
        (folder / compiled_libraries.KERNELS).write_bytes(bytes(100))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled_libraries, "_compile_kernels", damaged)
    with pytest.warns(UserWarning, match=r"compiled_kernels: .*kernels.so cannot be loaded \(.*\)"):
        assert compiled_libraries.kernel_library() is None
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.warns(UserWarning, match="compiled_kernels: there is no gcc on PATH"):
        assert compiled_libraries.kernel_library() is None


def test_cache_of_zeros_is_created_without_writing_it():
    from _inf.backends.verl.child import attention

    made: list[torch.Tensor] = []

    def create(pool: None) -> None:
        for shape in ((1000, 2, 3), (0, 2)):
            made.append(torch.zeros(shape, dtype=torch.bfloat16, device="cpu"))

    attention.create_lazily(create, None)
    assert [(tuple(each.shape), bool(each.any())) for each in made] == [
        ((1000, 2, 3), False),
        ((0, 2), False),
    ]
