"""Ray, connected. It corrects what `ray.init` does on a lone machine (ray 2.60).

It listens on every interface, for a cluster that nobody asked for (`_private/services.py` takes
127.0.0.1 for an error unless `ENABLE_RAY_CLUSTER` is off); its logs and spilled objects stand where
everybody may read them; it counts its uses over the network, and tells the terminal of its own
affairs. A cluster that somebody else started is left as it is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

from _inf.errors import ConfigError
from _inf.runtime import quiet

ANSWER_SECONDS = 10.0
# For Ray's processes; the first is for them what `_on_loopback` is for this one.
LOCAL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@contextlib.contextmanager
def cluster() -> Iterator[Any]:
    """The caller's own connection; else `RAY_ADDRESS`'s cluster; else this machine, for as long as
    the block lasts."""
    level = logging.INFO if quiet.level() in ("debug", "info") else logging.CRITICAL
    if level == logging.CRITICAL:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray
    import ray.data

    logging.getLogger("ray.data").setLevel(level)
    if ray.is_initialized():
        yield ray
        return
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": level}
    with contextlib.ExitStack() as ended:
        if address := os.environ.get("RAY_ADDRESS"):
            _join(address, how)
        else:
            folder = tempfile.mkdtemp(prefix="inf-ray-", dir="/tmp")  # sockets want a short path
            ended.callback(shutil.rmtree, folder, ignore_errors=True)
            local = {**LOCAL, "TMPDIR": folder}
            with _environment(local), _on_loopback(), quiet.descriptors():
                ray.init(address="local", include_dashboard=False, _temp_dir=folder, **how)
        ended.callback(ray.shutdown)
        yield ray


def _join(address: str, how: dict[str, Any]) -> None:
    import ray

    try:
        host, colon, port = address.rpartition(":")
        if colon and "/" not in address:  # where nobody listens, Ray tries for minutes
            socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
        ray.init(**how)
    except (OSError, ValueError) as failure:
        raise ConfigError(
            f"RAY_ADDRESS: no cluster lets us in at {address} ({failure}); correct it, or unset it "
            "to run on this machine."
        ) from None


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Inherited by Ray's processes: what an engine leaves behind goes with Ray's own files."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
