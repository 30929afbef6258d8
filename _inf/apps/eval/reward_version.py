"""Says whether a reward function is still the one that scored a row.

A function is known by its code, its defaults, the values it closes over and the globals it reads,
and so on for the functions and classes of the user's own that it uses. What a module of the user's
own has under its name is known by the module's file and the files of its imports, without comments.
Installed packages are known by name; files that a function reads are not followed.

`datasets.fingerprint.Hasher` is not used: it leaves imported modules out, and constants that are
sets give another digest in each process.
"""

from __future__ import annotations

import ast
import contextlib
import copyreg
import dataclasses
import dis
import hashlib
import importlib.metadata
import importlib.util
import itertools
import pickle
import sys
import sysconfig
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

DIGITS = 12
UNSURE = "?"  # after the digest of a function whose values are not all known
OURS = ("inf", "_inf")
INSTALLED = ("site-packages", "dist-packages")  # names of their folders, in any environment
STANDARD = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
CODE = (
    *("co_code", "co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars"),
    *("co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_exceptiontable"),
)
NOT_BEHAVIOUR = ("__dict__", "__weakref__", "__dataclass_fields__", "__dataclass_params__")
BEHIND = ("fget", "fset", "fdel", "__func__")
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


def version_of(reward: Any) -> RewardVersion:
    """Describe a reward: a function, "FILE.py:NAME", or None for verl's."""
    modules = _OwnModules()
    if reward is None:
        name = "verl.utils.reward_score.default_compute_score"
        described: Any = importlib.metadata.version("verl")
    elif isinstance(reward, str):
        name = reward
        file, _, described = reward.rpartition(":")
        modules.add_script(Path(file).resolve())
    else:
        name = getattr(reward, "__qualname__", type(reward).__qualname__)
        described = reward
    unknown: list[str] = []
    values = _Values(modules, unknown, _Variable(name, reward)).digest(described)
    whole = hashlib.sha256(f"{values} {modules}".encode())
    return RewardVersion(name, whole.hexdigest()[:DIGITS], tuple(dict.fromkeys(unknown)))


class _OwnModules:
    """Digests the files of modules of the user's own, and of those that they import. An import
    whose name is computed while the code runs is not seen."""

    def __init__(self) -> None:
        self._path = [path for path in sys.path if _is_own_path(path)]
        self._digests: dict[str, str] = {}

    def __str__(self) -> str:
        return str(sorted(self._digests.items()))

    def add_script(self, file: Path) -> None:
        self._path.append(str(file.parent))
        self._add_file(file, "__main__", "")

    def add(self, name: str) -> bool:
        """Add a module if it is the user's own; return whether its file is known."""
        path = self._path
        for module in itertools.accumulate(name.split("."), "{}.{}".format):
            package, _, last = module.rpartition(".")
            spec = PathFinder.find_spec(last, path)
            if spec is None and not package:
                spec = _found_by_a_hook(module)
            if module in ("__main__", *OURS) or spec is None:
                return False
            path = list(spec.submodule_search_locations or ())
            if spec.has_location and spec.origin and module not in self._digests:
                if not _is_own_path(spec.origin):
                    return False
                self._add_file(Path(spec.origin), module, module if path else package)
        return name in self._digests

    def add_imports(self, code: types.CodeType, package: str = "") -> None:
        """Add what the code imports, and the functions inside of it."""
        steps = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
        for place, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                level, names = (each.argval for each in steps[place - 2 : place])
                with contextlib.suppress(ImportError):  # a relative import without a package
                    module = importlib.util.resolve_name("." * level + step.argval, package)
                    for name in (module, *(f"{module}.{each}" for each in names or ())):
                        self.add(name)
        for inner in _inner(code):
            self.add_imports(inner, package)

    def _add_file(self, file: Path, name: str, package: str) -> None:
        text = file.read_bytes()
        self._digests[name] = hashlib.sha256(text).hexdigest()
        with contextlib.suppress(SyntaxError, ValueError):  # its import says what is wrong
            tree = ast.parse(text)
            self._digests[name] = hashlib.sha256(ast.dump(tree).encode()).hexdigest()
            self.add_imports(compile(tree, str(file), "exec"), package)


def _found_by_a_hook(module: str) -> ModuleSpec | None:
    """Find a package whose editable installation is an import hook."""
    hooks = [each for each in sys.meta_path if each is not PathFinder]
    return next(filter(None, (hook.find_spec(module, None) for hook in hooks)), None)


def _is_own_path(path: str) -> bool:
    whole = Path(path).resolve()
    installed = any(part in INSTALLED for part in whole.parts)
    return not installed and not any(map(whole.is_relative_to, STANDARD))


def _inner(code: types.CodeType) -> list[types.CodeType]:
    return [each for each in code.co_consts if isinstance(each, types.CodeType)]


class _Variable(NamedTuple):
    """A value with the name that a function has for it, which a message says."""

    name: str
    value: Any


END = object()  # of a variable


def _parts(*args: Any) -> None:
    """Stands in a pickle before the parts of a value; nothing reads the pickle."""


class _Values(pickle.Pickler):
    """Digests a value: the bytes of its pickle, in which functions and classes are their code, and
    sets have an order. What cannot be pickled is in `unknown`, by the name of the variable."""

    def __init__(self, modules: _OwnModules, unknown: list[str], within: _Variable) -> None:
        self._hash = hashlib.sha256()
        super().__init__(SimpleNamespace(write=self._hash.update), protocol=4)
        self._modules, self.unknown = modules, unknown
        self._within = [within]

    def digest(self, value: Any) -> str:
        try:
            self.dump(value)
        except Exception:  # of any class: objects pickle themselves
            self._cannot()
        return self._hash.hexdigest()

    def _cannot(self) -> None:
        name, value = self._within[-1]
        self.unknown.append(f"{name} ({type(value).__qualname__})")

    def persistent_id(self, value: Any) -> Any:
        """Called for each value first; what is returned is pickled in its place, if anything."""
        if value is END:
            self._within.pop()
            return "end"
        if type(value) in (set, frozenset):
            alone = (_Values(self._modules, self.unknown, self._within[-1]) for _ in value)
            return "set", sorted(map(_Values.digest, alone, value))
        # A text may be one object or several equal ones, which a pickle tells apart.
        return value.encode(errors="surrogatepass") if type(value) is str else None

    def reducer_override(self, value: Any) -> Any:
        """Called for all but Python's simple values and containers; returns a placeholder, what is
        pickled before the value is known, and what may refer to the value itself."""
        match value:
            case types.FunctionType() if value is _parts:
                return NotImplemented  # by its name
            case _Variable():
                self._within.append(value)
                return _parts, (value.value, END)
            case types.FunctionType() | type() if self._has_a_name(value):
                return _parts, ("named", value.__module__, value.__qualname__)
            case types.FunctionType():
                return _parts, ("function", value.__qualname__), self._function(value)
            case type():
                return _parts, ("class", value.__qualname__), self._class(value)
            case types.CodeType():
                return _parts, ("code", *(getattr(value, name, None) for name in CODE))
            case types.ModuleType():
                self._modules.add(value.__name__)
                return _parts, ("module", value.__name__)
            case property() | staticmethod() | classmethod():
                inner = [getattr(value, name, None) for name in BEHIND]
                return _parts, (type(value).__name__,), inner
            case _ if isinstance(value, DESCRIPTORS):
                return _parts, ("descriptor", repr(value))
        return self._object(value)

    def _has_a_name(self, value: Any) -> bool:
        """Whether its module and its name say what it does: those of an installed package, or of a
        file of the user's own that is in the digest."""
        module = sys.modules.get(value.__module__ or "")
        if module is None or module.__name__ == "__main__":
            return False
        file = getattr(module, "__file__", None)
        if not file or not _is_own_path(file) or module.__name__.partition(".")[0] in OURS:
            return True
        found: Any = module
        for part in value.__qualname__.split("."):
            found = getattr(found, part, None)
        return found is value and self._modules.add(module.__name__)

    def _function(self, function: types.FunctionType) -> list[Any]:
        code = function.__code__
        known: dict[str, Any] = {}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                known[name] = cell.cell_contents
        if not self._modules.add(function.__module__ or ""):  # its file says its globals
            values = function.__globals__
            known |= {name: values[name] for name in sorted(_global_names(code)) if name in values}
        self._modules.add_imports(code)
        named = {**(function.__kwdefaults__ or {}), **vars(function)}
        default = f"a default of {function.__qualname__}"
        defaults = [*(function.__defaults__ or ()), *named.values()]
        variables = [*known.items(), *((default, value) for value in defaults)]
        return [code, list(known), list(named), *itertools.starmap(_Variable, variables)]

    def _class(self, kind: type) -> list[Any]:
        attributes = {
            name: value
            for name, value in sorted(vars(kind).items())
            if name not in NOT_BEHAVIOUR and not name.startswith("_abc")
        }
        names = [f"{kind.__qualname__}.{name}" for name in attributes]
        return [kind.__bases__, names, *map(_Variable, names, attributes.values())]

    def _object(self, value: Any) -> Any:
        """What pickle would keep of it."""
        registered = copyreg.dispatch_table.get(type(value))
        try:
            reduced = registered(value) if registered else value.__reduce_ex__(4)
        except Exception:
            self._cannot()
            return _parts, ("unknown", type(value).__qualname__)
        if isinstance(reduced, str):
            about = ("named", getattr(value, "__module__", None), reduced)
            return _parts, about, [getattr(value, "__wrapped__", None)]  # of functools.cache
        parts = [list(part) if isinstance(part, Iterator) else part for part in reduced]
        return _parts, ("object",), parts


def _global_names(code: types.CodeType) -> set[str]:
    """The globals that the code reads, and the functions inside of it."""
    read = ("LOAD_GLOBAL", "LOAD_NAME")
    names = {each.argval for each in dis.get_instructions(code) if each.opname in read}
    return names.union(*map(_global_names, _inner(code)))
