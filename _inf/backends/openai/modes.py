"""What a server supports, and which config keys are read for it."""

from __future__ import annotations

from _inf.backends.description import OF_TOKENS, Mode

_TEXT = frozenset({"stream", "turn", "json_schema", "seed", "logit_bias"})
_READS = frozenset({"base_url", "api_key_env", "tokenizer_path", "hang_timeout"})
TEXT_MODE = Mode("openai", _TEXT, _READS)
# On vLLM and `inf serve`; SGLang's own server has others (`generate.py`).
TOKEN_MODE = Mode(
    "openai with tokenizer_path",
    supports=_TEXT | {"token_ids", "more_sampling", "repetition_penalty"},
    reads=_READS | OF_TOKENS,
)
