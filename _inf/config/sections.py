"""The types of config keys, and the sections below `rollout`."""

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

SINGLE_TURN = "single_turn_agent"  # verl's loop of one turn; `generate` gives the same ids
MAX_SAMPLES = 2**16  # of a prompt: each sample is a row in the caller's memory from the start
Count: TypeAlias = Annotated[int, Field(ge=1, le=2**31 - 1)]
Samples: TypeAlias = Annotated[int, Field(ge=1, le=MAX_SAMPLES)]
Turns: TypeAlias = Count | None
Text: TypeAlias = Annotated[str, Field(min_length=1)]
Temperature: TypeAlias = Annotated[float, Field(ge=0)]
TopP: TypeAlias = Annotated[float, Field(gt=0, le=1)]
MOST_PIXELS = 89_478_485  # of more, PIL warns of a decompression bomb (13.0, `MAX_IMAGE_PIXELS`)
Pixels: TypeAlias = Annotated[int, Field(ge=1, le=MOST_PIXELS)]
Seconds: TypeAlias = Annotated[float, Field(gt=0)]
# The values of SGLang's `--dtype`.
DType: TypeAlias = Literal["auto", "half", "float16", "bfloat16", "float", "float32"]
# SGLang's LOAD_FORMAT_CHOICES without `gguf` (a .gguf file is dequantized before SGLang sees it)
# and without the formats that fetch weights from a server (`remote*`, `private`).
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
    """Add `sglang` if it is missing, and read null as no arguments."""
    if isinstance(value, Mapping):
        value = {name: {} if kwargs is None else kwargs for name, kwargs in value.items()}
        return {"sglang": {}} | value
    return {"sglang": {}} if value is None else value


EngineArguments: TypeAlias = Mapping[Literal["sglang"], Mapping[str, Any]]
EngineKwargs: TypeAlias = Annotated[EngineArguments, BeforeValidator(_with_sglang)]


def key(default: Any, description: str) -> Any:
    return Field(default, description=description)


class Section(BaseModel):
    """One level of the config. An empty section (`null` in YAML) counts as left out."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_empty(cls, value: object) -> Any:
        return {} if value is None else value


class ValKwargs(Section):
    """Sampling of batches with `meta_info["validate"]` that a trainer gives to `engine.rollout`."""

    temperature: Temperature = key(1.0, "The sampling temperature; 0 is greedy.")
    top_k: TopK = key(-1, "Sample from the k likeliest tokens; -1 means all tokens.")
    top_p: TopP = key(1.0, "Sample from the likeliest tokens whose probabilities sum to this.")


class MultiTurn(Section):
    """Conversations of several turns, with tools or with an interaction that plays the user."""

    enable: bool = key(False, "Use the tools and interactions from the two files below.")
    max_assistant_turns: Turns = key(None, "Most answers of the model per row; null: no limit.")
    tool_config_path: Text | None = key(None, "A YAML file that defines tools.")
    max_user_turns: Turns = key(None, "Most messages of an interaction per row; null: no limit.")
    max_parallel_calls: Count = key(16, "Most tool calls run per turn.")
    max_tool_response_length: Count = key(256, "Most characters of a tool's result; more are cut.")
    tool_response_truncate_side: Literal["left", "middle", "right"] = key(
        "middle", "The part of a longer result that is kept; middle is both ends."
    )
    interaction_config_path: Text | None = key(None, "A YAML file that defines interactions.")
    format: Text = key("hermes", "The format in which the model writes tool calls.")

    @field_validator("format")
    @classmethod
    def _is_a_format(cls, value: str) -> str:
        from _inf.config.tool_formats import format_fault

        if fault := format_fault(value):
            raise ValueError(fault)
        return value

    @field_validator("tool_config_path", "interaction_config_path")
    @classmethod
    def _is_switched_on(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("enable") is False:
            raise ValueError("is not read while multi_turn.enable is false; set that to true")
        return value


class Agent(Section):
    """Agent loops: your own code that asks the model turn by turn (docs/agent_loops.md)."""

    default_agent_loop: Text = key(
        SINGLE_TURN, "The agent loop of rows that name none; single_turn_agent: plain generate()."
    )
    agent_loop_config_path: Text | None = key(None, "A YAML file that lists agent loops.")

    @property
    def default(self) -> str | None:
        """The agent loop of calls that name none; None if `generate` answers them itself."""
        name = self.default_agent_loop
        return None if name == SINGLE_TURN else name

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of `generate` that it gives to calls without `tools`."""
        return {} if self.default is None else {"agent_loop": self.default}


class ImageBounds(Section):
    """What images of messages may be (docs/images.md)."""

    max_per_prompt: Count = key(64, "The most images of a prompt.")
    max_pixels: Pixels = key(2**25, "The most pixels of an image; a small file may hold many.")
    allow_remote: bool = key(False, "Whether images are fetched from http:// and https:// URLs.")


class ReasoningMarks(Section):
    """The texts before and after a model's thoughts, or the name of a parser. unopened: whether an
    answer begins with a thought though neither the prompt nor the answer opens one."""

    start: Text
    end: Text
    unopened: bool = False

    @model_validator(mode="before")
    @classmethod
    def _of_a_parser(cls, value: object) -> Any:
        if not isinstance(value, str):
            return value
        from _inf.config.reasoning import PARSERS, parser_fault

        if fault := parser_fault(value):
            raise ValueError(fault)
        return PARSERS[value]
