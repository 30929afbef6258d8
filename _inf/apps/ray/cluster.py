"""Connects to Ray, and corrects what `ray.init` does on a single machine (ray 2.60).

Ray listens on every interface (`_private/services.py` refuses 127.0.0.1 unless
`ENABLE_RAY_CLUSTER` is off), lets all users write into its folder (`_private/utils.py`), writes the
token without which it accepts no work into a file that they may read
(`_private/authentication/authentication_token_setup.py`), sends usage statistics, and prints
messages. A cluster that is already running is not changed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

from _inf.errors import ConfigError
from _inf.runtime import quiet

ANSWER_SECONDS = 10.0
# Ray's processes inherit and read them.
LOCAL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@contextlib.contextmanager
def cluster() -> Iterator[Any]:
    """Yield Ray with the cluster of `RAY_ADDRESS`, else with one on this machine that ends with
    the block."""
    level = logging.INFO if quiet.level() in ("debug", "info") else logging.CRITICAL
    if level == logging.CRITICAL:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray
    from ray._private import ray_constants

    how: dict[str, object] = {"log_to_driver": False, "logging_level": level}
    with contextlib.ExitStack() as ended:
        if address := os.environ.get("RAY_ADDRESS"):
            _join(ray, address, how)
        else:
            folder = tempfile.mkdtemp(prefix="inf-ray-", dir="/tmp")  # sockets need a short path
            ended.callback(shutil.rmtree, folder, ignore_errors=True)
            os.environ.update(LOCAL)
            if "RAY_AUTH_TOKEN_PATH" not in os.environ:
                os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            ray_constants.ENABLE_RAY_CLUSTER = False  # it is set when Ray is imported
            # Files that an engine leaves are removed with Ray's own files.
            how["runtime_env"] = {"env_vars": {"TMPDIR": folder}}
            with quiet.descriptors():
                ray.init(address="local", include_dashboard=False, _temp_dir=f"{folder}/ray", **how)
        ended.callback(ray.shutdown)
        yield ray


def _join(ray: Any, address: str, how: dict[str, Any]) -> None:
    try:
        host, colon, port = address.rpartition(":")
        if colon:  # Ray would try a dead address for minutes
            socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
        ray.init(**how)
    except (OSError, ValueError) as failure:
        raise ConfigError(
            f"RAY_ADDRESS: no cluster answers at {address} ({failure}); correct it, or unset "
            "it to run on this machine."
        ) from None
