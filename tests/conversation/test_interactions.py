"""verl's interactions, loaded from their file."""

import pytest

from _inf.backends.verl import environment
from _inf.conversation.interactions import load_interactions
from _inf.errors import ConfigError


@pytest.mark.verl
@pytest.mark.parametrize("name", ["Mine", ".Mine", "Mine."])
def test_interaction_without_a_module_is_refused_by_its_place(name, tmp_path):
    environment.prepare("auto")
    path = tmp_path / "interactions.yaml"
    path.write_text(f"interaction:\n  - class_name: {name}\n")
    with pytest.raises(ConfigError) as caught:
        load_interactions(str(path))
    said = f"{path}: interaction[0].class_name: '{name}' is not the dotted path of a class"
    assert said in str(caught.value) and "ValueError" not in str(caught.value)
