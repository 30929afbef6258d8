"""The backend on an OpenAI-compatible server: a cloud API, vLLM, SGLang's server, or `inf serve`.

Requests and answers have three forms: OpenAI's (`text.py`), and with token ids (`tokens.py`) vLLM's
and that of SGLang's `/generate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from _inf.backends.description import OF_TOKENS, BackendDescription, Faults, Mode

if TYPE_CHECKING:
    from _inf.config import Config

NEEDED = {"base_url": "the server's address", "model_path": "the model's name at the server"}
_TEXT = frozenset({"stream", "turn", "json_schema", "seed", "logit_bias"})
_READS = frozenset({"base_url", "api_key_env", "tokenizer_path", "hang_timeout"})
TEXT_MODE = Mode("openai", _TEXT, _READS)
# On vLLM and `inf serve`; SGLang's own server has others (`GenerateForm`).
TOKEN_MODE = Mode(
    "openai with tokenizer_path",
    supports=_TEXT | {"token_ids", "agent_loop", "more_sampling", "repetition_penalty"},
    reads=_READS | OF_TOKENS,
)


def _faults(config: Config) -> Faults:
    for path, what in NEEDED.items():
        if getattr(config, path) is None:
            yield path, f"must be set, because rollout.name is openai: {what}"


OPENAI = BackendDescription(
    name="openai",
    launch="_inf.backends.openai.connect:launch",
    modes=(TEXT_MODE, TOKEN_MODE),
    mode_of=lambda config: int(config.tokenizer_path is not None),
    faults=_faults,
    remote=True,
)
