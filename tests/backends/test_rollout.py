"""What verl's rollout refuses before an engine is needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from _inf.backends.verl import environment
from _inf.errors import ConfigError
from _inf.response.columns import column

pytestmark = pytest.mark.engine  # it imports the whole stack


@pytest.fixture(scope="module")
def upstream() -> Any:
    """The module, importable where the environment is prepared."""
    environment.prepare("auto")
    from _inf.backends.verl import rollout

    return rollout


@pytest.mark.parametrize("name", ["tools_kwargs", "interaction_kwargs", "multi_modal_data"])
@pytest.mark.parametrize("value", [np.array([1, 2]), np.zeros(1), [0], {"a": 1}], ids=repr)
def test_column_of_any_kind_that_one_turn_cannot_serve_is_refused(
    upstream: Any, name: str, value: Any
) -> None:
    empty: list[Any] = [None, {}, [], np.array([])]
    batch = upstream.DataProto(non_tensor_batch={name: column([*empty, value])})
    with pytest.raises(ConfigError, match=rf"^non_tensor_batch\['{name}'\]\[4\]: "):
        upstream.Rollout.generate_sequences(SimpleNamespace(), batch)


@pytest.mark.parametrize("name", ["Mine", ".Mine", "Mine."])
def test_interaction_without_a_module_is_refused_by_its_place(
    upstream: Any, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "interactions.yaml"
    path.write_text(f"interaction:\n  - class_name: {name}\n")
    config = SimpleNamespace(multi_turn=SimpleNamespace(interaction_config_path=str(path)))
    with pytest.raises(ConfigError) as caught:
        upstream.Rollout._initialize_interactions(SimpleNamespace(), config)
    said = f"{path}: interaction[0].class_name: '{name}' is not the dotted path of a class"
    assert said in str(caught.value) and "ValueError" not in str(caught.value)
