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
from typing import Any

DIGITS = 12
UNSURE = "?"  # after the digest of a function whose values are not all known
OURS = ("inf", "_inf")
INSTALLED = ("site-packages", "dist-packages")  # names of their folders, in any environment
STANDARD = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
CODE = (
    *("co_code", "co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars"),
    *("co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_exceptiontable"),
)
NOT_BEHAVIOUR = ("__dataclass_fields__", "_abc_impl")
BEHIND = ("__wrapped__", "__func__", "func", "fget", "fset", "fdel")  # functions of decorators


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
    modules, unknown = _OwnModules(), []
    name = getattr(reward, "__qualname__", type(reward).__qualname__)
    known: dict[str, Any] = {name: reward}
    if reward is None:
        name = "verl.utils.reward_score.default_compute_score"
        known = {"verl": importlib.metadata.version("verl")}
    elif isinstance(reward, str):
        name = reward
        file, _, attribute = reward.rpartition(":")
        known = {"name": attribute}
        modules.add_script(Path(file).resolve())
    elif isinstance(reward, types.FunctionType) and not modules.name_says_all(reward):
        known = {"code": reward.__code__, **_variables(reward, modules)}
    digests = []
    for variable, value in known.items():
        try:
            digests.append(_digest(value, modules))
        except Exception:  # of any class: objects pickle themselves
            unknown.append(f"{variable} ({type(value).__qualname__})")
    whole = hashlib.sha256(f"{digests} {modules}".encode())
    return RewardVersion(name, whole.hexdigest()[:DIGITS], tuple(unknown))


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

    def name_says_all(self, value: Any) -> bool:
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
        return found is value and self.add(module.__name__)

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


def _parts(*args: Any) -> None:
    """Stands in a pickle before the parts of a value; nothing reads the pickle."""


def _digest(value: Any, modules: _OwnModules) -> str:
    """Digest a pickle of the value. Raises what a value that cannot be pickled raises."""
    pickler = _Pickler(modules)
    pickler.dump(value)
    return pickler.hash.hexdigest()


class _Pickler(pickle.Pickler):
    """Pickles functions and classes as their code and their values, and sets in an order."""

    def __init__(self, modules: _OwnModules) -> None:
        self.hash = hashlib.sha256()
        super().__init__(SimpleNamespace(write=self.hash.update), protocol=4)
        self._modules = modules

    def persistent_id(self, value: Any) -> Any:
        """Called for each value first; what is returned is pickled in its place, if anything."""
        if type(value) in (set, frozenset):
            return "set", sorted(_digest(each, self._modules) for each in value)
        # A text may be one object or several equal ones, which a pickle tells apart.
        return value.encode(errors="surrogatepass") if type(value) is str else None

    def reducer_override(self, value: Any) -> Any:
        """Called for all but simple values and containers; returns a placeholder, what is pickled
        before the value is known, and what may refer to the value itself."""
        match value:
            case types.FunctionType() if value is _parts:
                return NotImplemented  # by its name
            case types.FunctionType() | type() if self._modules.name_says_all(value):
                return _parts, ("named", value.__module__, value.__qualname__)
            case types.FunctionType():
                inside = [value.__code__, *_variables(value, self._modules).items()]
                return _parts, ("function", value.__qualname__), inside
            case type():
                attributes = [each for each in vars(value).items() if each[0] not in NOT_BEHAVIOUR]
                return _parts, ("class", value.__qualname__), [value.__bases__, *attributes]
            case types.CodeType():
                self._modules.add_imports(value)
                return _parts, ("code", *(getattr(value, name, None) for name in CODE))
            case types.ModuleType():
                self._modules.add(value.__name__)
                return _parts, ("module", value.__name__)
        return self._object(value)

    def _object(self, value: Any) -> Any:
        """What pickle would keep of it."""
        registered = copyreg.dispatch_table.get(type(value))
        try:
            reduced = registered(value) if registered else value.__reduce_ex__(4)
        except Exception:
            if not hasattr(type(value), "__get__"):  # those are properties, class methods
                raise
            reduced = type(value).__qualname__
        if isinstance(reduced, str):
            inside = [getattr(value, name, None) for name in BEHIND]
            return _parts, ("named", getattr(value, "__module__", None), reduced), inside
        return _parts, (), [list(part) if isinstance(part, Iterator) else part for part in reduced]


def _variables(function: types.FunctionType, modules: _OwnModules) -> dict[str, Any]:
    """The values that a function closes over, its globals, unless the file of its module says them,
    and its defaults."""
    found: dict[str, Any] = {}
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            found[name] = cell.cell_contents
    if not modules.add(function.__module__ or ""):
        values = function.__globals__
        found |= {name: values[name] for name in sorted(_global_names(code)) if name in values}
    for number, value in enumerate(function.__defaults__ or ()):
        found[f"default {number}"] = value
    return found | (function.__kwdefaults__ or {}) | vars(function)


def _global_names(code: types.CodeType) -> set[str]:
    """The globals that the code reads, and the functions inside of it."""
    read = ("LOAD_GLOBAL", "LOAD_NAME")
    names = {each.argval for each in dis.get_instructions(code) if each.opname in read}
    return names.union(*map(_global_names, _inner(code)))
