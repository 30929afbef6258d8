"""Run as a program by `install.sh --hf`: converts the embedded model, and prints two lines about
the machine."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from _inf.errors import ConfigError


def main() -> None:
    import torch

    from _inf.models.resolve import resolve_model

    try:
        resolve_model(None)  # the embedded one
    except ConfigError as error:
        sys.exit(str(error))
    names = ("torch", "transformers")
    stack = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    print(f"Python {platform.python_version()}, {stack}")
    devices = torch.cuda.device_count()
    print(f"{devices} GPU(s)" if devices else "the CPU: torch finds no GPU")


if __name__ == "__main__":
    main()
