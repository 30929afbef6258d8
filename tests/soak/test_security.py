"""Who can reach a running engine, read its files and its logs, and what a tool's text can do.

`test_lifecycle.py` also tests that nothing listens beyond loopback; here it is tested while rows
run, and after a crash. SECURITY.md lists the advisories on installed packages.
"""

import ipaddress
from pathlib import Path

import pytest

from tests.support.scripts import script

pytestmark = pytest.mark.soak

SECRET = "The key 4711 lies under the cactus"
SERVE = (
    f"""
import os, psutil, stat, tempfile, threading, warnings
from pathlib import Path
from inf import EngineDeadError
from _inf.runtime.calls import CancelToken

warnings.simplefilter("always")
SECRET = {SECRET!r}
"""
    + """
def family():
    me = psutil.Process()
    return [me, *me.children(recursive=True)]

def sockets(kind):
    return [c for p in family() for c in p.net_connections(kind)]

def private(path, top):
    inside = [path, *path.parents]
    return any(not each.lstat().st_mode & 0o077 for each in inside[: inside.index(top)])

def open_to_others():
    tops = [Path(tempfile.gettempdir()), Path(os.environ["HOME"])]
    found = [(file, top) for top in tops for file in top.rglob("*") if not file.is_dir()]
    shared = {os.readlink(fd) for p in family() for fd in Path(f"/proc/{p.pid}/fd").iterdir()
              if fd.is_symlink()}
    shared = [Path(each) for each in shared if each.startswith("/dev/shm/")]
    found += [(file, Path("/dev/shm")) for file in shared if file.exists()]
    theirs = Path(os.environ["HOME"], ".cache", "flashinfer")  # no word of ours in it
    ours = [(file, top) for file, top in found if theirs not in file.parents]
    readable = [file for file, top in ours if not private(file, top)]
    writable = [file for file, top in found if file.lstat().st_mode & 0o022]
    return [len(found), [str(file) for file in (*readable, *writable) if not file.is_symlink()]]

e = engine()
host, text = e.rollout.host, [{"role": "user", "content": SECRET}]
say("ids", e.tokenizer(SECRET)["input_ids"])
running = threading.Thread(target=e.generate, args=([text] * 8,), kwargs={"max_tokens": 128,
                                                                         "ignore_eos": True})
running.start()
while not e.rollout._engine.tokenizer_manager.rid_to_state:
    pass
say("inet", sorted({c.laddr.ip for c in sockets("inet") if c.status == "LISTEN" or not c.raddr}))
say("unix", sorted({c.laddr for c in sockets("unix") if c.laddr}))
say("files", open_to_others())
running.join()
said = []
for wrong in ({"temperature": -1}, {"stop": [""]}, {"max_tokens": 10**6}, {"tools": [{}]}):
    try:
        e.generate([text], **wrong)
    except Exception as failure:
        said.append(str(failure))
ids = e.tokenizer(SECRET)["input_ids"]
raw = e.rollout._engine.async_generate(
    input_ids=[[*ids, 10**6]], sampling_params=[{"max_new_tokens": 4}]  # no such token: it dies
)
try:
    host.run(raw, CancelToken())
except EngineDeadError as failure:
    said.append(str(failure))
say("said", said)
say("log", host.log.read_text(errors="replace"))
e.shutdown()
say("left", open_to_others())
"""
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """What a script with a home of its own says of its engine, and what it printed."""
    folder = tmp_path_factory.mktemp("served")
    home = folder / "home"
    home.mkdir()
    own = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    names = ["ids", "inet", "unix", "files", "said", "log", "left"]
    with script(SERVE, folder / "run", variables=own) as run:
        report = {name: run.hear(name) for name in names}
        assert run.exit_code() == 0, run.err
        report |= {"err": run.err, "home": home, "tmp": run.tmp, "temp": str(run.tmp)}
        yield report


def test_nothing_is_reachable_from_beyond_the_machine(served):
    assert all(ipaddress.ip_address(address).is_loopback for address in served["inet"])


def test_sockets_of_the_engine_lie_in_a_private_folder(served):
    ours = [path for path in served["unix"] if path.startswith(served["temp"])]
    assert ours, served["unix"]  # the engine talks through them
    assert all("/inf-engine-" in path for path in ours)


def test_files_are_the_users_alone(served):
    for moment in ("files", "left"):
        _, exposed = served[moment]
        assert not exposed, moment


@pytest.mark.parametrize("where", ["log", "err", "said"])
def test_no_log_and_no_exception_shows_a_prompt(where, served):
    told = "\n".join(served[where]) if isinstance(served[where], list) else served[where]
    numbers = ", ".join(map(str, served["ids"][:6]))
    for shown in ("4711", "cactus", numbers, numbers.replace(" ", "")):
        assert shown not in told, where


def test_crash_left_a_traceback_in_the_log(served):
    assert "Traceback" in served["log"] and "engine's process died" in served["said"][-1]


def test_no_file_holds_a_prompt(served):
    for top in (served["home"], served["tmp"]):
        for file in (each for each in Path(top).rglob("*") if each.is_file()):
            assert b"cactus" not in file.read_bytes(), file
