"""What Tab and Shift-Tab show in IPython and Jupyter."""

from __future__ import annotations

import inspect

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import inf
from inf import GenerateParams, InferenceEngine


def completions(text: str, jedi: bool) -> set[str]:
    shell = InteractiveShell()
    shell.user_ns |= {"inf": inf, "engine": object.__new__(InferenceEngine)}
    shell.Completer.use_jedi = jedi
    with provisionalcompleter():
        found = shell.Completer.completions(text, len(text))
        return {each.text.lstrip(".") for each in found}


@pytest.mark.parametrize("jedi", [True, False])
def test_public_names_and_keywords_of_a_call_are_completed(jedi):
    assert completions("inf.", jedi) == set(inf.__all__)
    assert completions("engine.generate('Hi', temp", jedi) == {"temperature="}
    assert set(dir(inf)) == {*inf.__all__, "__version__", "__doc__"}


def test_signature_names_every_keyword_with_its_default():
    for name in ("generate", "agenerate", "stream", "astream", "rollout_batch"):
        keywords = [*inspect.signature(getattr(InferenceEngine, name)).parameters.values()][3:]
        own = ["uid", "extra"] if name == "rollout_batch" else []
        assert [each.name for each in keywords] == [*own, *GenerateParams.__annotations__]
        assert all(each.kind is each.KEYWORD_ONLY and each.default is None for each in keywords)
