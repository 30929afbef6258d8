"""In which memory new weights are sent."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from _inf.backends.verl import changes
from _inf.errors import InferenceError

pytestmark = pytest.mark.verl


def test_piece_that_shared_memory_cannot_hold_is_refused_before_it_is_sent(monkeypatch):
    shared = SimpleNamespace(f_bavail=128 * 2**20 // 4096, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", {changes.SHARED_MEMORY: shared}.__getitem__)
    weights = [(name, torch.empty(2**20 * size)) for name, size in (("a", 24), ("b", 8))]  # x 4
    changes._check_shared_memory(weights, 512)
    shared.f_bavail //= 2
    with pytest.raises(InferenceError, match=r"pieces of 128 MB through /dev/shm, where 64 MB"):
        changes._check_shared_memory(weights, 512)
    with pytest.raises(InferenceError, match=r"96 MB through.*--shm-size.*largest tensor has 96"):
        changes._check_shared_memory(weights, 1)


@pytest.mark.parametrize("expandable", [True, False])
def test_tensors_in_expandable_segments_are_copied_out_of_them(monkeypatch, expandable):
    """With stand-ins for torch's allocator: no GPU was used."""
    settings: list[str] = []
    about = {"allocator_settings": {"expandable_segments": expandable}}
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: about)
    monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", settings.append)
    with pytest.raises(KeyError), changes._memory_that_can_be_shared(on_cpu=False) as copy:
        assert copy is expandable
        assert settings == ["expandable_segments:False"] * expandable
        raise KeyError
    assert settings == ["expandable_segments:False", "expandable_segments:True"] * expandable
