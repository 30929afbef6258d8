"""Imports the file of the model that is served, and not all 160 that `models/registry.py` does.

The files' texts are searched for a class that is asked for, and all are imported only if none of
them names it. Importing this module imports SGLang's registry.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import sglang.srt.models
from sglang.srt.environ import envs

# Where a file says which of its classes are models: one name, or a list of names.
ENTRY_CLASS = re.compile(r"^EntryClass\s*=\s*(\w+|\[[^\]]*\])", re.MULTILINE)
FILES = {
    path.stem: path for folder in sglang.srt.models.__path__ for path in Path(folder).glob("*.py")
}


@contextlib.contextmanager
def _only(files: Collection[str]) -> Iterator[None]:
    """Let SGLang import these files and no others; the setting is its own."""
    setting = envs.SGLANG_DISABLED_MODEL_ARCHS
    skipped = {*setting.get(), *(name for name in FILES if name not in files)}
    with setting.override(",".join(sorted(skipped))):
        yield


with _only(()), envs.SGLANG_EXTERNAL_MODEL_PACKAGE.override(""):
    from sglang.srt.models import registry as registry

if external := envs.SGLANG_EXTERNAL_MODEL_PACKAGE.get():
    registry.ModelRegistry.register(external, overwrite=True)  # all its files, as SGLang does


class ModelClasses(dict[str, Any]):
    """The classes of models by name; to ask for a name imports the files that have it."""

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            self._import([file for file in FILES if name in entry_classes(file)] or FILES)
        return super().__contains__(name)

    def keys(self) -> Any:
        """Itself, because SGLang asks the view of the keys for names."""
        return self

    def _import(self, files: Collection[str]) -> None:
        with _only(files):
            self.update(registry.import_model_classes.__wrapped__(sglang.srt.models.__name__))


def entry_classes(file: str) -> list[str]:
    """The models that a file names, read from its text."""
    found = ENTRY_CLASS.search(FILES[file].read_text())
    return re.findall(r"\w+", found[1]) if found else []
