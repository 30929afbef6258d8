"""The version of a piece of a user's code: says whether a reward, an agent loop, an environment, a
tool or an interaction is still the one that an earlier run used.

A function or class is known by its code, its defaults, the values it closes over and the globals it
reads, and so on for the functions and classes of the user's own that it uses. What a module of the
user's own has under its name is known by the module's file and the files of its imports, without
comments. Installed packages are known by name; files that code reads are not followed, and of
modules whose name the running code computes, only a reward's process knows the files (`LoadedFiles`
of `eval/reward_process.py`).

`datasets.fingerprint.Hasher` is not used: it leaves imported modules out, and constants that are
sets give another digest in each process.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import hashlib
import importlib.util
import itertools
import secrets
import sys
import sysconfig
import types
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

import cloudpickle

import _inf
from _inf.errors import strip_punctuation
from _inf.runtime.extras import installed

DIGITS = 12
OUR_FOLDER = Path(_inf.__file__).resolve().parent
INSTALLED = ("site-packages", "dist-packages")  # names of their folders, in any environment
STANDARD = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
NOT_OWN = (*STANDARD, OUR_FOLDER, OUR_FOLDER.parent / "inf.py")
CODE = (
    *("co_code", "co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars"),
    *("co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_exceptiontable"),
)
NOT_BEHAVIOUR = ("__dict__", "__weakref__", "__dataclass_fields__", "_abc_impl")


@dataclasses.dataclass(frozen=True)
class CodeVersion:
    """name: how reports name the code. digest: of all that it uses. unknown: why some values could
    not be read; the digest is then another one each time. files: of the user's own that were read
    for it."""

    name: str
    digest: str
    unknown: tuple[str, ...] = ()
    files: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)

    def __str__(self) -> str:
        """How a row names what scored it."""
        return f"{self.name} {self.digest}"

    def scored(self, scored_by: str | None) -> bool:
        """Whether a row was scored by this very function, so that its reward can stay."""
        return digest_of(scored_by) == self.digest

    def with_files(self, digests: Iterable[str]) -> CodeVersion:
        """The version of the code and of files that only its process knew, by their digests."""
        more = sorted(digests)
        return CodeVersion.of_all(self.name, [self], *more) if more else self

    @classmethod
    def of_all(cls, name: str, versions: Sequence[CodeVersion], *texts: str) -> CodeVersion:
        """One version of several pieces of code, and of the texts that say how they are used."""
        digests = " ".join([*texts, *(version.digest for version in versions)])
        unknown = tuple(value for version in versions for value in version.unknown)
        return cls(name, hashlib.sha256(digests.encode()).hexdigest()[:DIGITS], unknown)


def digest_of(scored_by: str | None) -> str:
    """The part of a row's `scored_by` that does not depend on a path or a name."""
    return (scored_by or "").rpartition(" ")[2]


def version_of(
    code: object,
    *,
    folder: Path | None = None,
    imports: Iterable[str] = (),
    scripts: Iterable[Path] = (),
) -> CodeVersion:
    """Describe a function, class or object, "FILE.py:NAME", or None for verl's reward.

    folder: where its modules are, in addition to Python's path. imports: modules that it uses and
    that are not seen in its code; scripts: such files, which a program of their own runs.
    """
    modules = _OwnModules(folder)
    for module in imports:
        modules.add(module)
    for script in scripts:
        modules.add_script(script.resolve())
    name, described, unknown = str(code), code, tuple[str, ...]()
    if code is None:
        name = "verl.utils.reward_score.default_compute_score"
        described = installed("verl")
    elif isinstance(code, str):
        file, _, described = code.rpartition(":")
        if file:
            modules.add_script(Path(file).resolve())
    else:
        name = getattr(code, "__qualname__", type(code).__qualname__)
    try:
        values = _digest(described, modules)
    except Exception as failure:  # of any class: objects pickle themselves
        values, unknown = secrets.token_hex(), (strip_punctuation(failure),)
    whole = hashlib.sha256(f"{values} {sorted(modules.digests.values())}".encode())
    return CodeVersion(name, whole.hexdigest()[:DIGITS], unknown, frozenset(modules.digests))


def depends_on(versions: Iterable[CodeVersion]) -> dict[str, str]:
    """The versions as entries of what a run's answers depend on."""
    entries = {}
    for version in versions:
        unknown = f" of this run alone ({', '.join(version.unknown)})" if version.unknown else ""
        entries[version.name] = f"version {version.digest}{unknown}"
    return entries


class _OwnModules:
    """Digests the files of modules of the user's own, and of those that they import. An import
    whose name is computed while the code runs is not seen."""

    def __init__(self, folder: Path | None = None) -> None:
        found = [*sys.path, *([str(folder)] if folder else [])]
        self._path = [path for path in found if _is_own_path(path)]
        self.digests: dict[str, str] = {}  # by the files' whole paths

    def add_script(self, file: Path) -> None:
        self._path.append(str(file.parent))
        self._add_file(file, "")

    def add(self, name: str) -> None:
        """Add a module, or the module of what a dotted name names, if it is the user's own."""
        path = self._path
        for module in itertools.accumulate(name.split("."), "{}.{}".format):
            package, _, last = module.rpartition(".")
            spec = PathFinder.find_spec(last, path)
            if spec is None and not package:  # found by a hook, or loaded by its path
                with contextlib.suppress(ValueError):  # of a name that no module has
                    spec = importlib.util.find_spec(module)
            if module == "__main__" or spec is None:
                return
            path = list(spec.submodule_search_locations or ())
            if spec.has_location and spec.origin:
                if not _is_own_path(spec.origin):
                    return
                self._add_file(Path(spec.origin), module if path else package)

    def add_imports(self, code: types.CodeType, package: str = "") -> None:
        """Add what the code imports, and the functions inside of it."""
        for kind, about in ModuleFinder().scan_opcodes(code):
            if kind != "store":
                *level, names, module = about
                with contextlib.suppress(ImportError):  # a relative import without a package
                    module = importlib.util.resolve_name("." * sum(level) + module, package)
                    for name in (module, *(f"{module}.{each}" for each in names or ())):
                        self.add(name)
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self.add_imports(inner, package)

    def _add_file(self, file: Path, package: str) -> None:
        if (whole := str(file.resolve())) in self.digests:
            return
        self.digests[whole] = file_digest(file)
        # Its import says what is wrong.
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            self.add_imports(compile(file.read_bytes(), str(file), "exec"), package)


def file_digest(file: Path) -> str:
    """The digest of a file of code, without comments; "" if it is gone."""
    try:
        text = file.read_bytes()
    except OSError:
        return ""
    with contextlib.suppress(SyntaxError, ValueError):  # of no Python, such as a library in C
        text = ast.dump(ast.parse(text)).encode()
    return hashlib.sha256(text).hexdigest()


def is_own_file(path: str) -> bool:
    """Whether a file is the user's own: not a part of Python, of an installed package or of inf."""
    return Path(path).is_file() and _is_own_path(path)


def _is_own_path(path: str) -> bool:
    whole = Path(path).resolve()
    installed = any(part in INSTALLED for part in whole.parts)
    return not installed and not any(map(whole.is_relative_to, NOT_OWN))


def _digest(value: object, modules: _OwnModules) -> str:
    """Digest a pickle of the value. Raises what a value that cannot be pickled raises."""
    pickler = _Pickler(modules)
    pickler.dump(value)
    return pickler.hash.hexdigest()


def _parts(*args: object) -> None:
    """Stands in a pickle before the parts of a value; nothing reads the pickle."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions and classes by value unless a module has them, as cloudpickle does, but
    code without its place in a file, classes without a random id, and sets in an order."""

    def __init__(self, modules: _OwnModules) -> None:
        self.hash = hashlib.sha256()
        super().__init__(types.SimpleNamespace(write=self.hash.update), protocol=4)
        self._modules = modules

    def persistent_id(self, value: Any) -> Any:
        """Called for each value first; what is returned is pickled in its place, if anything."""
        if type(value) in (set, frozenset):
            return "set", sorted(_digest(each, self._modules) for each in value)
        # A text may be one object or several equal ones, which a pickle tells apart.
        return value.encode(errors="surrogatepass") if type(value) is str else None

    def reducer_override(self, value: object) -> object:
        """Called for all but simple values and containers."""
        reduced = super().reducer_override(value)
        if isinstance(value, types.CodeType):
            self._modules.add_imports(value)
            return _parts, tuple(getattr(value, name, None) for name in CODE)
        if isinstance(value, types.ModuleType):
            self._modules.add(value.__name__)
        elif isinstance(value, types.FunctionType | type):
            self._modules.add(value.__module__ or "")
            if isinstance(value, type) and reduced is not NotImplemented:
                own = [each for each in vars(value).items() if each[0] not in NOT_BEHAVIOUR]
                return _parts, (value.__qualname__,), [value.__bases__, *own]
        elif (wrapped := getattr(value, "__wrapped__", None)) is not None:  # of functools.cache
            return _parts, (type(value).__qualname__,), [wrapped]
        return reduced
