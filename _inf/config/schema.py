"""The keys of a config as frozen, typed models, with their limits.

Knows nothing of files or merging. The names and defaults under `rollout` are those of verl 0.6.1
(`verl/workers/config/rollout.py`), except the defaults listed at `Rollout`. verl's keys that have
no effect here are in `rules.ONE_VALUE`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from _inf.config.tool_formats import check_format
from _inf.errors import ToolError

MOST_SAMPLES = 2**16  # of a prompt: each is a row in the caller's memory from the start
Count: TypeAlias = Annotated[int, Field(ge=1, le=2**31 - 1)]
Samples: TypeAlias = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
Turns: TypeAlias = Count | None
Text: TypeAlias = Annotated[str, Field(min_length=1)]
Temperature: TypeAlias = Annotated[float, Field(ge=0)]
TopP: TypeAlias = Annotated[float, Field(gt=0, le=1)]
Seconds: TypeAlias = Annotated[float, Field(gt=0)]
# The values of SGLang's `--dtype`.
DType: TypeAlias = Literal["auto", "half", "float16", "bfloat16", "float", "float32"]
# SGLang's LOAD_FORMAT_CHOICES without `gguf` (a .gguf file is dequantized before SGLang sees it)
# and without those that fetch weights from a server (`remote*`, `private`).
LoadFormat: TypeAlias = Literal[
    "auto",
    "safetensors",
    "pt",
    "npcache",
    "dummy",
    "sharded_state",
    "bitsandbytes",
    "layered",
    "flash_rl",
    "fastsafetensors",
]


def _off_or_positive(value: int) -> int:
    if value != -1 and value < 1:
        raise ValueError(f"must be -1 (off) or at least 1, not {value}")
    return value


TopK: TypeAlias = Annotated[int, Field(le=2**31 - 1), AfterValidator(_off_or_positive)]


def _with_sglang(value: object) -> Any:
    """Add a missing `sglang`, and replace null by no arguments."""
    if isinstance(value, Mapping):
        value = {name: {} if kwargs is None else kwargs for name, kwargs in value.items()}
        return {"sglang": {}} | value
    return {"sglang": {}} if value is None else value


EngineArguments: TypeAlias = Mapping[Literal["sglang", "hf"], Mapping[str, Any]]
EngineKwargs: TypeAlias = Annotated[EngineArguments, BeforeValidator(_with_sglang)]


class Section(BaseModel):
    """A level of the config. An empty section (`null` in YAML) counts as left out."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_empty(cls, value: object) -> Any:
        return {} if value is None else value


class ValKwargs(Section):
    """Sampling if a trainer's batch sets `meta_info["validate"]`; our own calls do not use it."""

    temperature: Temperature = Field(1.0, description="The sampling temperature; 0 is greedy.")
    top_k: TopK = Field(-1, description="Sample from the k likeliest tokens; -1 is all of them.")
    top_p: TopP = Field(1.0, description="Sample from the likeliest tokens that sum to this.")


class MultiTurn(Section):
    """Conversations of several turns, with tools or with an interaction that plays the user."""

    enable: bool = Field(False, description="Read the two files below.")
    max_assistant_turns: Turns = Field(None, description="Of the model; null is as many as fit.")
    tool_config_path: Text | None = Field(None, description="The file that defines the tools.")
    max_user_turns: Turns = Field(None, description="Of an interaction; null is as many as fit.")
    max_parallel_calls: Count = Field(16, description="How many calls of one turn are run.")
    max_tool_response_length: Count = Field(256, description="Characters of a tool's result.")
    tool_response_truncate_side: Literal["left", "middle", "right"] = Field(
        "middle", description="What is kept of a longer result; middle keeps both ends."
    )
    interaction_config_path: Text | None = Field(None, description="verl's file of interactions.")
    format: Text = Field("hermes", description="How the model writes a tool call.")

    @field_validator("format")
    @classmethod
    def _is_a_format(cls, value: str) -> str:
        try:
            return check_format(value)
        except ToolError as error:
            raise ValueError(str(error).removeprefix("format: ")) from None

    @field_validator("tool_config_path", "interaction_config_path")
    @classmethod
    def _is_switched_on(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("enable") is False:
            raise ValueError("is not read while multi_turn.enable is false; set that to true")
        return value


class Rollout(Section):
    """verl's RolloutConfig, with verl's defaults except for `dtype`, `load_format`,
    `free_cache_engine`, `tensor_model_parallel_size` and `multi_turn.max_parallel_calls` (verl's
    drops the second call of a turn). The default of `enforce_eager` comes from verl's rollout.yaml;
    verl's dataclass would run without CUDA graphs.
    """

    name: Literal["sglang", "hf"] = Field(
        "sglang", description="The engine: verl's rollout on SGLang, or Transformers."
    )
    mode: str = Field("async", description="async is the only mode; verl's sync is not offered.")
    skip_tokenizer_init: bool = Field(True, description="The engine takes and gives token ids.")
    temperature: Temperature = Field(1.0, description="The sampling temperature; 0 is greedy.")
    top_k: TopK = Field(-1, description="Sample from the k likeliest tokens; -1 is all of them.")
    top_p: TopP = Field(1.0, description="Sample from the likeliest tokens that sum to this.")
    do_sample: bool = Field(True, description="Sample; false is greedy.")
    n: Samples = Field(1, description="Answers to each prompt.")
    over_sample_rate: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="The part of a multi-turn batch that may be left unfinished."
    )
    prompt_length: Count = Field(512, description="Tokens of the longest prompt.")
    response_length: Count = Field(512, description="Tokens of an answer without max_tokens.")
    max_model_len: Count | None = Field(None, description="Tokens of both; null is their sum.")
    max_num_seqs: Count = Field(1024, description="How many rows run at once.")
    max_num_batched_tokens: Count = Field(8192, description="Prompt tokens in one forward pass.")
    ignore_eos: bool = Field(False, description="Go on past the end of an answer.")
    calculate_log_probs: bool = Field(False, description="Log probs in verl's own batch too.")
    dtype: DType = Field("auto", description="The type to compute in; auto is the checkpoint's.")
    load_format: LoadFormat = Field("auto", description="dummy is random weights, for timing only.")
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5, description="The part of a GPU's memory for weights and KV cache."
    )
    free_cache_engine: bool = Field(False, description="Let sleep() give a GPU's memory back.")
    enforce_eager: bool = Field(False, description="No CUDA graphs: slower, but quicker to start.")
    cudagraph_capture_sizes: list[Count] | None = Field(
        None, description="Batch sizes that get a CUDA graph; null is SGLang's choice."
    )
    enable_chunked_prefill: bool = Field(True, description="Compute long prompts in pieces.")
    enable_prefix_caching: bool = Field(True, description="Reuse what prompts begin with alike.")
    tensor_model_parallel_size: Count = Field(1, description="GPUs that share one model.")
    data_parallel_size: Count = Field(1, description="Copies of the model, started by torchrun.")
    expert_parallel_size: Count = Field(1, description="1, or tensor times data parallel size.")
    pipeline_model_parallel_size: Count = Field(1, description="1 is the only size.")
    engine_kwargs: EngineKwargs = Field(
        {"sglang": {}}, description="More of SGLang's ServerArgs; hf: quantization."
    )
    multi_turn: MultiTurn = Field(MultiTurn(), description="Conversations of several turns.")
    update_weights_bucket_megabytes: Count = Field(512, description="Weights sent at a time.")
    val_kwargs: ValKwargs = Field(ValKwargs(), description="Sampling in a trainer's validation.")

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
    """The whole config."""

    model_path: Text | None = Field(
        None, description="A Hub id, a folder or a .gguf file; null is SmolLM2-135M-Instruct."
    )
    adapter_path: Text | None = Field(None, description="A PEFT adapter's folder, to be merged.")
    trust_remote_code: bool = Field(False, description="Run Python code that comes with a model.")
    device: Literal["auto", "cuda", "cpu"] = Field("auto", description="auto is a GPU if any.")
    pack_weights: bool = Field(
        True, description="On a CPU, store weights as its matrix products read them fastest."
    )
    truncate_prompt: Literal["left", "right"] | None = Field(
        None, description="The side where longer prompts are cut; null refuses them."
    )
    tool_timeout: Seconds = Field(30.0, description="Seconds that a tool's call may take.")
    hang_timeout: Seconds | None = Field(
        600.0, description="Seconds of silence after which a busy engine counts as hung, or null."
    )
    rollout: Rollout = Field(Rollout(), description="verl's RolloutConfig.")

    @property
    def model_name(self) -> str:
        """The name of the model for messages."""
        return self.model_path or "SmolLM2-135M-Instruct"

    def to_dict(self) -> dict[str, Any]:
        """Return all keys as nested dicts, which `load_config` turns into an equal config."""
        return self.model_dump()

    def verl_rollout(self) -> dict[str, Any]:
        """Return keyword arguments for verl 0.6.1's RolloutConfig.

        `multi_turn` and `val_kwargs` are plain dicts, to be converted to verl's dataclasses first.
        """
        return self.rollout.model_dump()
