"""The backend on an OpenAI-compatible server: a cloud API, vLLM, SGLang's server, or `inf serve`.

Requests and answers have three forms: OpenAI's (`text.py`), and with token ids vLLM's (`tokens.py`)
and SGLang's `/generate` (`sglang_server.py`). `servers.py` finds out at the start which server it
is, and so what it offers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from _inf.backends.description import OF_TOKENS, BackendDescription, Faults, Mode
from _inf.parts.found import features

if TYPE_CHECKING:
    from _inf.config import Config

_TEXT = frozenset({"stream", "turn", "json_schema", "seed", "logit_bias"})
_READS = frozenset({"base_url", "api_key_env", "tokenizer_path", "hang_timeout"})
TEXT_MODE = Mode("openai", _TEXT, _READS)
_TOKENS = _TEXT | {"token_ids", "agent_loop", "more_sampling"}
# What every server of token ids has but SGLang's; `inf serve` and vLLM from 0.32 on have more.
TOKEN_MODE = Mode(
    "openai with tokenizer_path",
    supports=_TOKENS | {"repetition_penalty"},
    reads=_READS | OF_TOKENS | {"server_kind"},
)
SCORES = frozenset({"score", "top_logprobs", "prompt_logprobs"})
VLLM_MODE = Mode(
    "openai on vLLM or inf serve",
    supports=TOKEN_MODE.supports | {"score", "pause"} | features("openai"),
    reads=TOKEN_MODE.reads,
)
# SGLang's server ignores `repetition_penalty`, and seeds unless it was started for them. It updates
# weights from a folder, so it must be on this machine.
SGLANG_SERVER_MODE = Mode(
    "openai on SGLang's server of this machine",
    supports=_TOKENS - {"seed"} | {"regex", "update_weights"},
    reads=TOKEN_MODE.reads,
)


def _faults(config: Config) -> Faults:
    for path, value, what in (
        ("base_url", config.base_url, "the server's address"),
        ("model_path", config.model_path, "the model's name at the server"),
    ):
        if value is None:
            yield path, f"must be set, because rollout.name is openai: {what}"


OPENAI = BackendDescription(
    name="openai",
    launch="_inf.backends.openai.connect:launch",
    modes=(TEXT_MODE, TOKEN_MODE, VLLM_MODE, SGLANG_SERVER_MODE),
    mode=lambda config: TEXT_MODE if config.tokenizer_path is None else TOKEN_MODE,
    faults=_faults,
    remote=True,
)
