"""How every file that a user names as an output is opened and written, and how an input is opened
that is read more than once.

An output: a regular file keeps its mode and its owner, a link its target. Anything else, such as a
folder, a pipe or a device, is refused, before any work if the caller asks first. What is written
whole is written next to the file and then takes its place, so that a full disk or a kill leaves the
earlier file as it was.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from _inf.errors import ConfigError, InferenceError

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
NEW_FILE = 0o666  # before the umask
UNCHANGED = "An earlier file there was left as it was."


def check_output(
    path: str | os.PathLike[str],
    key: str = "",
    inputs: Iterable[str | os.PathLike[str]] = (),
    *,
    appended: bool = False,
) -> Path:
    """Return the regular file that `path` leads to, which need not exist yet.

    key: the option or keyword, which begins the message. inputs: files that are read, or names of
    data that is no file. appended: whether an earlier file is only added to, for which its folder
    need not be writable. Raises `ConfigError` for what is not a regular file, cannot be written or
    is one of the inputs.
    """
    target = Path(os.path.realpath(path))
    if fault := _fault(target, appended):
        raise _refusal(key, path, f"{fault}; name a file that can be written.")
    for other in inputs:
        with contextlib.suppress(OSError):  # who reads it says so
            if target.samefile(other):
                raise _refusal(key, path, f"it is also an input, {other}; name another file.")
    return target


def _fault(target: Path, appended: bool) -> str:
    try:
        found = target.stat()
    except FileNotFoundError:
        pass
    except OSError as failure:
        return str(failure.strerror)
    else:
        if not stat.S_ISREG(found.st_mode):
            return f"it is {KINDS.get(stat.S_IFMT(found.st_mode), 'no regular file')}"
        if not os.access(target, os.W_OK):
            return os.strerror(errno.EACCES)
        if appended:
            return ""
    if not target.parent.is_dir():
        return f"there is no folder {target.parent}"
    if not os.access(target.parent, os.W_OK | os.X_OK):
        return f"the folder {target.parent} cannot be written"
    return ""


def _refusal(key: str, path: object, sentence: str) -> ConfigError:
    return ConfigError.of(key, f"{path}: {sentence}") if key else ConfigError(f"{path}: {sentence}")


@contextlib.contextmanager
def replaced(
    path: str | os.PathLike[str], key: str = "", then: str = UNCHANGED
) -> Iterator[BinaryIO]:
    """Give a file to write into, which takes the place of `path` if no exception is raised.

    then: what the message says after the reason. Raises `ConfigError` as `check_output` does, and
    `InferenceError` if it cannot be written.
    """
    target = check_output(path, key)
    draft = target.with_name(f".inf-{secrets.token_hex(8)}")
    try:
        with _draft_for(target, draft) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as failure:
        raise InferenceError(f"{path}: {failure.strerror or failure}. {then}") from failure
    finally:
        draft.unlink(missing_ok=True)


def _draft_for(target: Path, draft: Path) -> BinaryIO:
    """Open a new file with the mode and owner of `target`, and never a wider mode."""
    earlier = target.stat() if target.exists() else None
    mode = NEW_FILE if earlier is None else stat.S_IMODE(earlier.st_mode)
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    if earlier is not None:
        with contextlib.suppress(OSError):  # only root may give a file away
            os.fchown(file, earlier.st_uid, earlier.st_gid)
        with contextlib.suppress(OSError):  # of a file system without modes
            os.fchmod(file, mode)
    return os.fdopen(file, "wb")


def write_text(
    path: str | os.PathLike[str], text: str, key: str = "", then: str = UNCHANGED
) -> None:
    """Replace what the file `path` holds; the parameters are those of `replaced`."""
    with replaced(path, key, then) as file:
        file.write(text.encode())


def opened(
    path: str | os.PathLike[str], who: str, key: str = "", mode: int = NEW_FILE
) -> tuple[int, Path]:
    """Open a file to which this process alone appends; a new one gets `mode`. Return its descriptor
    and the file that `path` leads to.

    who: what else may be writing it. Raises `ConfigError`.
    """
    target = check_output(path, key, appended=True)
    try:
        file = os.open(target, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode)
    except OSError as failure:
        raise _refusal(key, path, f"{failure.strerror}; name a file that can be written.") from None
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file), target.stat()):  # else it was just replaced
            return file, target
    os.close(file)
    raise _refusal(key, path, f"another {who} is writing it; wait for its end.")


@contextlib.contextmanager
def rereadable(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a file that can be read several times: `path`, or a copy of what a pipe gives.

    Raises `ConfigError` if it cannot be read.
    """
    if Path(path).is_file():
        yield Path(path)
        return
    with tempfile.NamedTemporaryFile() as copy:
        try:
            with open(path, "rb") as source:
                shutil.copyfileobj(source, copy)
            copy.flush()
        except OSError as failure:
            raise ConfigError(f"{path} cannot be read: {failure.strerror}.") from None
        yield Path(copy.name)
