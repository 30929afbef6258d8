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
# Read by Ray's processes, which inherit them.
LOCAL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@contextlib.contextmanager
def cluster() -> Iterator[Any]:
    """The caller's own connection; else `RAY_ADDRESS`'s cluster; else this machine, for as long as
    the block lasts."""
    level = logging.INFO if quiet.level() in ("debug", "info") else logging.CRITICAL
    if level == logging.CRITICAL:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray
    from ray._private import ray_constants

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
            os.environ.update(LOCAL)
            ray_constants.ENABLE_RAY_CLUSTER = False  # it was read when Ray was imported
            # What an engine leaves behind goes with Ray's own files.
            how["runtime_env"] = {"env_vars": {"TMPDIR": folder}}
            with quiet.descriptors():
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
