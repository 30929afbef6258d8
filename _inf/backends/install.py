"""Run as a program by install.sh, with the name of the stack that it installed (verl or hf): does
what a first start would wait for, and prints two lines about the machine."""

from __future__ import annotations

import platform
import sys

from _inf.errors import ConfigError
from _inf.models.resolve import resolve_model
from _inf.runtime.extras import installed


def main(stack: str) -> None:
    try:
        if stack == "verl":
            from _inf.backends.verl.environment import install

            where, packages = install(), ["verl", "sglang"]
        else:
            where, packages = _torchs_devices(), []
        resolve_model(None)  # converts the embedded one
    except ConfigError as error:
        sys.exit(str(error))
    packages += ["torch", "transformers"]
    versions = [f"{name} {installed(name)}" for name in packages]
    print(f"Python {platform.python_version()}, {', '.join(versions)}")
    print(where)


def _torchs_devices() -> str:
    import torch

    devices = torch.cuda.device_count()
    return f"{devices} GPU(s)" if devices else "the CPU: torch finds no GPU"


if __name__ == "__main__":
    main(sys.argv[1])
