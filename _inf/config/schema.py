"""The shape of a config: frozen, typed models, and the limits of each key and of keys together.

Knows nothing of files, of merging or of how a fault is worded.
The names under `rollout` are those of verl 0.6.1 (`verl/workers/config/rollout.py`), and so are
the defaults, but for those that `Rollout` says are ours.
"""

from __future__ import annotations

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

from _inf.config.rules import IGNORED_SECTIONS
from _inf.config.tool_formats import check_format
from _inf.errors import ToolError

Count: TypeAlias = Annotated[int, Field(ge=1, le=2**31 - 1)]
MOST_SAMPLES = 2**16  # of a prompt: each is a row in the caller's memory before any is answered
Samples: TypeAlias = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
Text: TypeAlias = Annotated[str, Field(min_length=1)]
Temperature: TypeAlias = Annotated[float, Field(ge=0)]
Share: TypeAlias = Annotated[float, Field(gt=0, le=1)]
# What SGLang's `--dtype` takes.
DType: TypeAlias = Literal["auto", "half", "float16", "bfloat16", "float", "float32"]
# SGLang's LOAD_FORMAT_CHOICES without `gguf` (a .gguf file is dequantized before SGLang sees it)
# and without those that fetch weights from a server of its own (`remote*`, `private`).
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


class Section(BaseModel):
    """A level of the config. A section with nothing under it (`null` in YAML) is one left out."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        return {} if value is None else value


class Sampling(Section):
    temperature: Temperature = 1.0
    top_k: TopK = -1
    top_p: Share = 1.0
    do_sample: bool = True
    n: Samples = 1


class ValKwargs(Sampling):
    """Sampling where a trainer's batch says `meta_info["validate"]`; no call of ours reads it."""


class MultiTurn(Section):
    enable: bool = False
    max_assistant_turns: Count | None = None
    tool_config_path: Text | None = None
    max_user_turns: Count | None = None
    max_parallel_calls: Count = 16
    max_tool_response_length: Count = 256
    tool_response_truncate_side: Literal["left", "middle", "right"] = "middle"
    interaction_config_path: Text | None = None
    use_inference_chat_template: bool = False
    tokenization_sanity_check_mode: Literal["disable", "strict", "ignore_strippable"] = "disable"
    format: Text = "hermes"
    num_repeat_rollouts: Count | None = None

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


class CustomAsyncServer(Section):
    path: str | None = None
    name: str | None = None


class Agent(Section):
    num_workers: int = 8
    default_agent_loop: str = "single_turn_agent"
    agent_loop_config_path: str | None = None
    custom_async_server: CustomAsyncServer = CustomAsyncServer()


class Trace(Section):
    backend: str | None = None
    token2text: bool = False


class Server(Section):
    timeout: float = 60.0
    max_attempts: int = 3
    retry_delay: float = 2.0
    max_connections: int = 1000
    max_start_wait_time: float = 300.0


class Prometheus(Section):
    enable: bool = False
    port: int = 9090
    file: str = "/tmp/ray/session_latest/metrics/prometheus/prometheus.yml"
    served_model_name: str | None = None


class Profiler(Section):
    """verl's ProfilerConfig (`verl/utils/profiler/config.py`)."""

    tool: str | None = None
    enable: bool = False
    all_ranks: bool = False
    ranks: list[int] = []
    save_path: str | None = None
    tool_config: Any = None
    global_tool_config: Any = None


def _with_sglang(value: Any) -> Any:
    """`sglang` is always there, and an engine with nothing under it has no arguments."""
    if value is not None and not isinstance(value, Mapping):
        return value
    engines = {"sglang": {}, **(value or {})}
    return {name: {} if kwargs is None else kwargs for name, kwargs in engines.items()}


EngineKwargs: TypeAlias = Annotated[Mapping[str, Mapping[str, Any]], BeforeValidator(_with_sglang)]


class Rollout(Sampling):
    """verl's RolloutConfig. Ours are the defaults of `name`, `mode`, `skip_tokenizer_init`,
    `dtype`, `load_format`, `free_cache_engine`, `tensor_model_parallel_size`,
    `multi_turn.max_parallel_calls` (verl's drops the second call of a turn) and
    `multi_turn.tokenization_sanity_check_mode`; that of `enforce_eager` is verl's rollout.yaml's
    (its dataclass, the source of the rest, would run without CUDA graphs).
    """

    name: str = "sglang"
    mode: str = "async"
    skip_tokenizer_init: bool = True
    over_sample_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    prompt_length: Count = 512
    response_length: Count = 512
    max_model_len: Count | None = None
    max_num_seqs: Count = 1024
    max_num_batched_tokens: Count = 8192
    ignore_eos: bool = False
    calculate_log_probs: bool = False
    dtype: DType = "auto"
    load_format: LoadFormat = "auto"
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] = 0.5
    free_cache_engine: bool = False
    enforce_eager: bool = False
    cudagraph_capture_sizes: list[Count] | None = None
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    tensor_model_parallel_size: Count = 1
    data_parallel_size: Count = 1
    expert_parallel_size: Count = 1
    pipeline_model_parallel_size: Count = 1
    engine_kwargs: EngineKwargs = {"sglang": {}}
    multi_turn: MultiTurn = MultiTurn()
    update_weights_bucket_megabytes: Count = 512
    # From here on SGLangRollout reads nothing.
    val_kwargs: ValKwargs = ValKwargs()
    log_prob_micro_batch_size: int | None = None
    log_prob_micro_batch_size_per_gpu: int | None = None
    log_prob_use_dynamic_bsz: bool = False
    log_prob_max_token_len_per_gpu: int = 16384
    disable_log_stats: bool = True
    multi_stage_wake_up: bool = False
    agent: Agent = Agent()
    trace: Trace = Trace()
    server: Server = Server()
    prometheus: Prometheus = Prometheus()
    profiler: Profiler = Profiler()
    skip_rollout: bool = False
    skip_dump_dir: str = "/tmp/rollout_dump"
    layered_summon: bool = False
    layer_name_map: dict[str, Any] = {}
    sglang_engine_mode: str = "local"
    limit_images: int | None = None

    @field_validator("do_sample")
    @classmethod
    def _greedy_has_no_filters(cls, value: bool, info: ValidationInfo) -> bool:
        """verl's own files say the neutral values beside it."""
        for name, neutral in (("temperature", (0, 1)), ("top_p", (1,)), ("top_k", (-1,))):
            if not value and (said := info.data.get(name, neutral[0])) not in neutral:
                raise ValueError(f"false means greedy, but {name} is {said}; drop one of the two")
        return value

    @field_validator("max_model_len")
    @classmethod
    def _holds_prompt_and_response(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is None or not {"prompt_length", "response_length"} <= info.data.keys():
            return value
        need = info.data["prompt_length"] + info.data["response_length"]
        if value < need:
            raise ValueError(
                f"must hold prompt_length + response_length = {need}, not {value};"
                " null means exactly that sum"
            )
        return value

    @field_validator("expert_parallel_size")
    @classmethod
    def _one_or_all_ranks(cls, value: int, info: ValidationInfo) -> int:
        if not {"tensor_model_parallel_size", "data_parallel_size"} <= info.data.keys():
            return value
        ranks = info.data["tensor_model_parallel_size"] * info.data["data_parallel_size"]
        if value not in (1, ranks):
            raise ValueError(
                "must be 1 or tensor_model_parallel_size * data_parallel_size"
                f" = {ranks}, not {value}"
            )
        return value


class Config(Section):
    """The whole config. `model_path: null` is the embedded SmolLM2-135M-Instruct."""

    model_path: Text | None = None
    adapter_path: Text | None = None
    trust_remote_code: bool = False
    device: Literal["auto", "cuda", "cpu"] = "auto"
    truncate_prompt: Literal["left", "right"] | None = None
    tool_timeout: Annotated[float, Field(gt=0)] = 30.0
    hang_timeout: Annotated[float, Field(gt=0)] | None = 600.0
    rollout: Rollout = Rollout()

    @property
    def model_name(self) -> str:
        """What people are told is served."""
        return self.model_path or "SmolLM2-135M-Instruct"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain nested dicts; `load_config` reads it back to an equal config."""
        return self.model_dump()

    def verl_rollout(self) -> dict[str, Any]:
        """Keyword arguments for verl 0.6.1's RolloutConfig, without the sections nobody reads.

        `multi_turn` is a plain dict too: make verl's MultiTurnConfig of it first.
        """
        return self.rollout.model_dump(exclude=set(IGNORED_SECTIONS))
