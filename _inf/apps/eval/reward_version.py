"""Says whether a reward function is still the one that scored a row.

In: a function, or FILE.py:NAME. Out: a `RewardVersion`, whose digest changes with the code, the
values that the function closes over, its defaults, the globals that it reads, and so on for the
functions and classes of the user's own that it uses; of a module that is imported, with its file
and those that it imports. Installed packages are not followed, nor files that the function reads.

`datasets.fingerprint.Hasher` is not used here: it leaves out imported modules, and does not say
which value it cannot hash.
"""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
import dis
import hashlib
import importlib.metadata
import sys
import types
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _inf.apps.eval.own_modules import is_own, own_files, own_module

DIGITS = 12
UNSURE = "?"  # after the digest of a function whose values are not all known
MAX_VALUES = 100_000
PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
CODE = (
    *("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
)
NOT_BEHAVIOUR = ("__dict__", "__weakref__", "__dataclass_fields__", "__dataclass_params__")
DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)


@dataclasses.dataclass(frozen=True)
class RewardVersion:
    """name: how reports name the function. digest: of all that could be read. unknown: the values
    that could not, so that equal digests do not say that the function is the same."""

    name: str
    digest: str
    unknown: tuple[str, ...] = ()

    def __str__(self) -> str:
        """How a row names what scored it."""
        return f"{self.name} {self.digest}{UNSURE if self.unknown else ''}"

    def scored(self, scored_by: str | None) -> bool:
        """Whether a row was scored by this very function, so that its reward can stay."""
        return not self.unknown and digest_of(scored_by) == self.digest


def digest_of(scored_by: str | None) -> str:
    """The part of a row's `scored_by` that does not depend on a path or a name."""
    return (scored_by or "").rpartition(" ")[2]


def version_of(reward: Any, function: Any = None) -> RewardVersion:
    """Describe a reward: a function, "FILE.py:NAME", or None for verl's. function: that of the file
    if it runs in this process, where its modules may be older than their files."""
    walk = _Walk()
    if reward is None:
        walk.say("verl", importlib.metadata.version("verl"))
        name = "verl.utils.reward_score.default_compute_score"
    elif isinstance(reward, str):
        file, _, attribute = reward.rpartition(":")
        walk.say(attribute, *own_files(Path(file)).values())
        walk.value(function, attribute, covered=True)
        name = reward
    else:
        name = getattr(reward, "__qualname__", type(reward).__qualname__)
        walk.value(reward, name)
    return RewardVersion(name, walk.digest, tuple(dict.fromkeys(walk.unknown)))


class _Walk:
    """Digests values and what they refer to. `covered`: the value is made by the code of a module
    whose file is in the digest, so that it need not be readable itself."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self._hash = hashlib.sha256()
        self._seen: dict[int, tuple[int, Any]] = {}  # with the value, so that its id stays its own
        self._modules: set[str] = set()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:DIGITS]

    def say(self, *parts: str | bytes) -> None:
        for part in parts:
            data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
            self._hash.update(b"%d:" % len(data))
            self._hash.update(data)

    def value(self, value: Any, where: str, covered: bool = False) -> None:
        """Add a value; where: its name, for a message."""
        if type(value) in PLAIN:
            self.say(type(value).__name__, value if isinstance(value, bytes) else repr(value))
        elif type(value) is tuple:  # equal ones may be one object or several
            self._all("tuple", value, where, covered)
        elif (known := self._seen.get(id(value))) is not None:
            self.say("again", str(known[0]))
        elif len(self._seen) >= MAX_VALUES:
            self._cannot(value, where, covered)
        else:
            if type(value) is not frozenset:
                self._seen[id(value)] = len(self._seen), value
            try:
                self._compound(value, where, covered)
            except RecursionError:
                self._cannot(value, where, covered)

    def _compound(self, value: Any, where: str, covered: bool) -> None:
        if type(value) is list:
            self._all("list", value, where, covered)
        elif type(value) is dict:
            self._all("dict", [part for pair in value.items() for part in pair], where, covered)
        elif type(value) in (set, frozenset):  # their order is another in each process
            self.say("set", *sorted(self._alone(each, where, covered) for each in value))
        elif isinstance(value, types.FunctionType):
            self._function(value, covered)
        elif isinstance(value, types.CodeType):
            self._code(value, where, covered)
        elif isinstance(value, types.ModuleType):
            self._module(value.__name__)
        elif isinstance(value, type):
            self._class(value, covered)
        elif isinstance(value, DESCRIPTORS):
            self.say(repr(value))  # its name and its class, without an address
        elif isinstance(value, property):
            self._all("property", (value.fget, value.fset, value.fdel), where, covered)
        elif isinstance(value, staticmethod | classmethod):
            self._all(type(value).__name__, (value.__func__,), where, covered)
        else:
            self._object(value, where, covered)

    def _all(self, kind: str, values: Any, where: str, covered: bool) -> None:
        self.say(kind, str(len(values)))
        for each in values:
            self.value(each, where, covered)

    def _alone(self, value: Any, where: str, covered: bool) -> str:
        walk = _Walk()
        walk.value(value, where, covered)
        self.unknown += walk.unknown
        return walk.digest

    def _function(self, function: types.FunctionType, covered: bool) -> None:
        name, module = function.__qualname__, function.__module__
        self.say("function", module or "", name)
        if not _is_own_code(module):
            return
        made_at_import = "<locals>" not in name and _is_imported(module)
        covered = covered or made_at_import
        self._module(module)
        self._code(function.__code__, name, covered)
        for part in (function.__defaults__, function.__kwdefaults__, vars(function)):
            self.value(part, f"a default of {name}", covered)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for variable, cell in cells:
            self.say(variable)
            with contextlib.suppress(ValueError):  # an empty cell
                self.value(cell.cell_contents, variable, covered)
        self._globals(function, covered or _is_imported(module))

    def _globals(self, function: types.FunctionType, covered: bool) -> None:
        names, values = _names(function.__code__), function.__globals__
        for name in sorted(names["LOAD_GLOBAL"] | names["LOAD_NAME"]):
            if name in values:
                self.say(name)
                self.value(values[name], name, covered)
            if isinstance(module := values.get(name), types.ModuleType) and own_module(
                module.__name__
            ):
                for attribute in sorted(names["LOAD_ATTR"] | names["LOAD_METHOD"]):
                    if attribute in vars(module):
                        self.say(attribute)
                        self.value(vars(module)[attribute], f"{name}.{attribute}", covered=True)
        for name in sorted(names["IMPORT_NAME"]):
            self._module(name)

    def _code(self, code: types.CodeType, where: str, covered: bool) -> None:
        self.say("code", *(repr(getattr(code, name)) for name in CODE))
        self.say(getattr(code, "co_exceptiontable", b""))  # from Python 3.11 on
        self.value(code.co_consts, where, covered)

    def _class(self, kind: type, covered: bool) -> None:
        name, module = kind.__qualname__, kind.__module__
        self.say("class", module, name)
        if not _is_own_code(module):
            return
        self._module(module)
        for attribute, value in sorted(vars(kind).items()):
            if attribute not in NOT_BEHAVIOUR and not attribute.startswith("_abc"):
                self.say(attribute)
                self.value(value, f"{name}.{attribute}", covered or _is_imported(module))
        self._all("bases", kind.__bases__, name, covered)

    def _object(self, value: Any, where: str, covered: bool) -> None:
        """Add anything else: what pickle would keep of it."""
        before = len(self.unknown)
        registered = copyreg.dispatch_table.get(type(value))
        try:
            reduced = registered(value) if registered else value.__reduce_ex__(4)
        except Exception:
            self._cannot(value, where, covered)
            return
        if isinstance(reduced, str):
            self.say("named", str(getattr(value, "__module__", "")), reduced)
            self.value(getattr(value, "__wrapped__", None), where, covered)  # of functools.cache
            return
        self.say("object", str(len(reduced)))
        for part in reduced:
            self.value(list(part) if isinstance(part, Iterator) else part, where, covered)
        if len(self.unknown) > before:  # name the whole, not what is inside of it
            del self.unknown[before:]
            self._cannot(value, where, covered)

    def _module(self, name: str | None) -> None:
        """Add the file of a module of the user's own, and those that it imports."""
        if name and name not in self._modules and (file := own_module(name)):
            self._modules.add(name)
            self.say("files", *own_files(file, name).values())

    def _cannot(self, value: Any, where: str, covered: bool) -> None:
        self.say("unknown", type(value).__module__, type(value).__qualname__)
        if not covered:
            self.unknown.append(f"{where} ({type(value).__qualname__})")


def _is_imported(module: str | None) -> bool:
    return bool(module) and module != "__main__" and own_module(module or "") is not None


def _is_own_code(module: str | None) -> bool:
    """Whether a function of this module is the user's: of a notebook or a text without a file
    too."""
    known = sys.modules.get(module or "")
    return (
        known is None
        or module == "__main__"
        or is_own(known.__name__, getattr(known, "__file__", None))
    )


def _names(code: types.CodeType) -> dict[str, set[str]]:
    """The names that the code uses, by instruction, with those of the functions inside of it."""
    names: dict[str, set[str]] = defaultdict(set)
    for instruction in dis.get_instructions(code):
        if isinstance(instruction.argval, str):
            names[instruction.opname].add(instruction.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            for name, found in _names(inner).items():
                names[name] |= found
    return names
