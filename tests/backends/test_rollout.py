"""Batches that `engine.rollout` refuses without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from _inf.backends.verl import environment
from _inf.errors import ConfigError
from _inf.response.trainer_batch import column

pytestmark = pytest.mark.engine  # it imports the whole stack


@pytest.fixture(scope="module")
def upstream() -> Any:
    """verl's module, which can be imported once the environment is prepared."""
    environment.prepare("auto")

    from _inf.backends.verl import corrected_rollout

    return corrected_rollout


@pytest.mark.parametrize("name", ["tools_kwargs", "interaction_kwargs", "multi_modal_data"])
@pytest.mark.parametrize("value", [np.array([1, 2]), np.zeros(1), [0], {"a": 1}], ids=repr)
def test_column_of_any_kind_that_one_turn_cannot_serve_is_refused(
    upstream: Any, name: str, value: Any
) -> None:
    empty: list[Any] = [None, {}, [], np.array([])]
    batch = upstream.DataProto(non_tensor_batch={name: column([*empty, value])})
    says = rf"^non_tensor_batch\['{name}'\]\[4\]: .*(generate\(\) or rollout_batch\(\)|text only)"
    with pytest.raises(ConfigError, match=says):
        upstream.CorrectedRollout.generate_sequences(SimpleNamespace(), batch)
