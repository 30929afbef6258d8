"""Defines every config key once: its name, type, bounds, default and description.

A config is checked before anything starts, and docs/config.md is generated from these frozen
models. The names and defaults under `rollout` follow verl 0.6.1 (`verl/workers/config/rollout.py`);
`RolloutConfig` lists the exceptions. `verl_keys.ONE_VALUE` has verl's keys without effect.
"""

from __future__ import annotations

import math
import re
import urllib.parse
from typing import Annotated, Literal

from pydantic import (
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)

from _inf.config.sections import (
    Agent,
    Count,
    DType,
    EngineKwargs,
    ImageBounds,
    LoadFormat,
    MultiTurn,
    ReasoningMarks,
    Samples,
    Seconds,
    Section,
    Temperature,
    Text,
    TopK,
    TopP,
    ValKwargs,
    key,
)
from _inf.runtime.extras import has_verl
from _inf.types import JSON


class RolloutConfig(Section):
    """verl's RolloutConfig, with verl's defaults except for `dtype`, `load_format`,
    `free_cache_engine`, `tensor_model_parallel_size` and `multi_turn.max_parallel_calls` (with
    verl's default the second call of a turn is dropped). The default of `enforce_eager` is verl's
    rollout.yaml's; verl's dataclass would run without CUDA graphs.
    """

    name: str = key(
        "sglang" if has_verl() else "hf",
        "sglang (verl's rollout), hf (Transformers; default without verl 0.6), openai (base_url).",
    )
    mode: str = key("async", "Only async is supported; verl's sync mode is not.")
    skip_tokenizer_init: bool = key(True, "Only true is supported: the engine works on token ids.")
    temperature: Temperature = key(1.0, "The sampling temperature; 0 is greedy.")
    top_k: TopK = key(-1, "Sample from the k likeliest tokens; -1 means all tokens.")
    top_p: TopP = key(1.0, "Sample from the likeliest tokens whose probabilities sum to this.")
    do_sample: bool = key(True, "Whether to sample; false is greedy.")
    n: Samples = key(1, "Answers per prompt.")
    over_sample_rate: Annotated[float, Field(ge=0, lt=1)] = key(
        0.0, "The share of a multi-turn batch that is aborted once all other rows have ended."
    )
    prompt_length: Count = key(
        512, "The most tokens of a prompt; if not set, it shrinks to fit a short model."
    )
    response_length: Count = key(
        512, "The most tokens of an answer: max_tokens' default; if not set, it shrinks likewise."
    )
    max_model_len: Count | None = key(
        None, "The most tokens of prompt and answer together; null: the sum of both."
    )
    max_num_seqs: Count = key(1024, "The most rows that run at the same time.")
    max_num_batched_tokens: Count = key(8192, "The most prompt tokens in one forward pass.")
    ignore_eos: bool = key(False, "Continue after the model's end-of-answer token.")
    calculate_log_probs: bool = key(False, "Return log probs from engine.rollout too.")
    dtype: DType = key(
        "auto", "The data type of the computation; auto: the checkpoint's, on a CPU float32."
    )
    load_format: LoadFormat = key(
        "auto", "How weights are loaded; dummy: random weights, for timing only."
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] = key(
        0.5, "The share of a GPU's memory for weights and KV cache."
    )
    free_cache_engine: bool = key(False, "Whether sleep() can free a GPU's memory.")
    enforce_eager: bool = key(False, "No CUDA graphs: a quicker start, slower generation.")
    cudagraph_capture_sizes: list[Count] | None = key(
        None, "The batch sizes that get a CUDA graph; null: SGLang's choice."
    )
    enable_chunked_prefill: bool = key(True, "Compute long prompts in pieces.")
    enable_prefix_caching: bool = key(True, "Compute the common beginning of prompts only once.")
    tensor_model_parallel_size: Count = key(1, "GPUs per copy of the model.")
    data_parallel_size: Count = key(1, "Copies of the model; torchrun starts their processes.")
    expert_parallel_size: Count = key(1, "For MoE models: 1, or tensor times data parallel size.")
    pipeline_model_parallel_size: Count = key(1, "Only 1 is supported.")
    engine_kwargs: EngineKwargs = key({"sglang": {}}, "sglang: other fields of its ServerArgs.")
    multi_turn: MultiTurn = key(MultiTurn(), "Conversations of several turns.")
    agent: Agent = key(Agent(), "Agent loops.")
    images: ImageBounds = key(ImageBounds(), "Images in messages.")
    update_weights_bucket_megabytes: Count = key(512, "update_weights() sends pieces of this size.")
    val_kwargs: ValKwargs = key(ValKwargs(), "Sampling in a trainer's validation batches.")

    @property
    def widths(self) -> tuple[int, int]:
        """The most tokens of a prompt and of a response in a trainer's batch."""
        return self.prompt_length, self.response_length

    @field_validator("do_sample")
    @classmethod
    def _greedy_has_no_filters(cls, value: bool, info: ValidationInfo) -> bool:
        """Refuse filters with `do_sample: false`, but not the neutral values of verl's files."""
        for name, neutral in (("temperature", (0, 1)), ("top_p", (1,)), ("top_k", (-1,))):
            if not value and (other := info.data.get(name, neutral[0])) not in neutral:
                raise ValueError(f"false means greedy, but {name} is {other}; remove one of them")
        return value

    @field_validator("max_model_len")
    @classmethod
    def _holds_prompt_and_response(cls, value: int | None, info: ValidationInfo) -> int | None:
        need = info.data.get("prompt_length", 0) + info.data.get("response_length", 0)
        if value is not None and value < need:
            raise ValueError(
                f"must hold prompt_length + response_length = {need}, not {value};"
                " null means exactly that sum"
            )
        return value

    @field_validator("expert_parallel_size")
    @classmethod
    def _one_or_all_ranks(cls, value: int, info: ValidationInfo) -> int:
        sizes = "tensor_model_parallel_size", "data_parallel_size"
        ranks = math.prod(info.data.get(size, 1) for size in sizes)
        if value not in (1, ranks):
            raise ValueError(f"must be 1 or {' * '.join(sizes)} = {ranks}, not {value}")
        return value


class Config(Section):
    """The whole config of an engine."""

    model_path: Text | None = key(
        None,
        "A Hub id, folder, .gguf file or a server's name for it; null: SmolLM2-135M-Instruct.",
    )
    revision: Text | None = key(
        None, "The Hub's branch, tag or commit of model_path; null: its main branch."
    )
    base_url: Text | None = key(
        None, "For openai: the server's address, such as http://localhost:8000/v1."
    )
    api_key_env: Text | None = key(
        None, "For openai: the environment variable that holds the server's key."
    )
    tokenizer_path: Text | None = key(
        None, "For openai: the tokenizer (a folder or a Hub id), to use the server with token ids."
    )
    server_kind: Literal["vllm", "sglang", "inf"] | None = key(
        None, "For openai with tokenizer_path: which server it is; null: what its /models says."
    )
    adapter_path: Text | None = key(None, "The folder of a PEFT adapter to merge into the model.")
    trust_remote_code: bool = key(False, "Whether to run Python code that comes with the model.")
    device: Literal["auto", "cuda", "cpu"] = key("auto", "auto: a GPU if there is one.")
    pack_weights: bool = key(True, "On a CPU, store weights in the layout that is read fastest.")
    compiled_kernels: bool = key(
        True, "On a CPU, compute float32 layers in C, a decoding step in one call (needs gcc)."
    )
    truncate_prompt: Literal["left", "right"] | None = key(
        None, "The side on which prompts above prompt_length are cut; null: reject them."
    )
    reasoning_parser: ReasoningMarks | None = key(
        None,
        "How thoughts are split from answers (docs/reasoning.md): a name, or start and end.",
    )
    tool_timeout: Seconds = key(30.0, "The most seconds a tool call may take.")
    hang_timeout: Seconds | None = key(
        600.0, "Seconds of silence in a call after which an engine counts as hung; null: never."
    )
    generation_cache: Annotated[int, Field(ge=0, le=2**31 - 1)] = key(
        0, "Answers of greedy and seeded requests to keep, for equal requests later."
    )
    rollout: RolloutConfig = key(RolloutConfig(), "verl's RolloutConfig.")

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        parts = urllib.parse.urlsplit(value or "http://none")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{value!r} is not an address such as http://localhost:8000/v1")
        if parts.username or parts.password or parts.query:
            raise ValueError("must not contain a key or a password; name a variable: api_key_env")
        return value

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", value):  # may be a key
            raise ValueError("must be the name of an environment variable, in capitals, not a key")
        return value

    _source: str | None = PrivateAttr(None)

    @property
    def source(self) -> str | None:
        """The trainer's config that `InferenceEngine.from_verl` read, and what it left out."""
        return self._source

    def of_source(self, source: str | None) -> Config:
        """Return this config as read from `source`."""
        copy = self.model_copy()
        copy._source = source
        return copy

    @property
    def model_name(self) -> str:
        """The model's name, for messages."""
        return self.model_path or "SmolLM2-135M-Instruct"

    def to_dict(self) -> JSON:
        """Return all keys as nested dicts, from which `load_config` makes an equal config."""
        return self.model_dump()
