"""What `sleep` counts as freed."""

from __future__ import annotations

import pytest
import torch

from _inf.backends.verl import changes

pytestmark = pytest.mark.verl


def test_only_the_gpu_of_this_process_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tensor parallelism the driver counts the other ranks' GPUs, which cannot be asked."""

    def free(device: int | None = None) -> tuple[int, int]:
        if device:
            raise RuntimeError("CUDA error: invalid device ordinal")
        return 7, 9

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", free)
    assert changes._free_bytes() == 7
