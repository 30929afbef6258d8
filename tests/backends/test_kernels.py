"""Tensors that the C functions of a layer would read past, and machines that cannot compile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from _inf.backends.verl import compiled_libraries

pytestmark = [pytest.mark.engine, pytest.mark.verl]  # it imports the whole stack


@pytest.mark.parametrize("wrong", ["query", "key", "value", "keys", "values"])
def test_layer_that_does_not_fit_its_tensors_is_refused(compiled_kernels, wrong):
    sizes = {"query": (2, 128), "key": (2, 64), "value": (2, 64)}
    sizes |= {"keys": (4, 1, 64), "values": (4, 1, 64)}
    sizes[wrong] = (*sizes[wrong][:-1], 32)
    query, key, value, *caches = map(torch.zeros, sizes.values())
    rows = torch.arange(2), torch.tensor([2, 2]), torch.tensor([1, 3])
    step = compiled_kernels.step(lambda _: caches, torch.tensor([[0, 1], [2, 3]]).int(), *rows)
    heads = {"tp_q_head_num": 2, "tp_k_head_num": 1, "qk_head_dim": 64, "v_head_dim": 64}
    about = {"layer_id": 0, "sliding_window_size": -1, "scaling": 1.0, "logit_cap": None}
    with pytest.raises(ValueError, match="layer 0 .*does not fit"):
        step.attend(query, key, value, SimpleNamespace(**heads, **about))


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


def test_cache_of_zeros_is_created_without_writing_it(monkeypatch, tmp_path):
    """And counted as reserved."""
    from _inf.backends.verl.child import attention

    reserved: list[tuple[Path, int]] = []
    monkeypatch.setattr(attention, "reserve", lambda *those: reserved.append(those))
    made: list[torch.Tensor] = []

    def create(pool: None) -> None:
        for shape in ((1000, 2, 3), (0, 2)):
            made.append(torch.zeros(shape, dtype=torch.bfloat16, device="cpu"))

    attention.create_lazily(tmp_path, create, None)
    assert reserved == [(tmp_path, 1000 * 2 * 3 * 2)]
    assert [(tuple(each.shape), bool(each.any())) for each in made] == [
        ((1000, 2, 3), False),
        ((0, 2), False),
    ]
