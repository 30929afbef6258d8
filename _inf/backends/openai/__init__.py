"""The backend on an OpenAI-compatible server: a cloud API, vLLM, SGLang's server, or `inf serve`.

Requests and answers have three forms: OpenAI's (`text.py`), vLLM's with token ids (`tokens.py`) and
SGLang's `/generate` (`generate.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from _inf.backends.description import BackendDescription, Faults
from _inf.backends.openai.modes import TEXT_MODE, TOKEN_MODE

if TYPE_CHECKING:
    from _inf.backends.base import Backend
    from _inf.config import Config

NEEDED = {"base_url": "the server's address", "model_path": "the model's name at the server"}


def _launch(config: Config) -> Backend:
    from _inf.backends.openai.connect import launch

    return launch(config)


def _faults(config: Config) -> Faults:
    for path, what in NEEDED.items():
        if getattr(config, path) is None:
            yield path, f"must be set, because rollout.name is openai: {what}"


OPENAI = BackendDescription(
    name="openai",
    launch=_launch,
    modes=(TEXT_MODE, TOKEN_MODE),
    mode_of=lambda config: int(config.tokenizer_path is not None),
    faults=_faults,
    remote=True,
)
