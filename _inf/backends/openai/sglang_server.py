"""SGLang's own server, read against 0.5.9: its route /generate, and new weights from a folder."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from _inf.backends.openai.client import Server
from _inf.backends.openai.text import Answer
from _inf.errors import ConfigError, InferenceError, PromptError, RequestFailure, error_text
from _inf.parts.part import values_of
from _inf.types import Request, RequestOutput, SamplingParams

if TYPE_CHECKING:
    from _inf.backends.new_weights import ExpectedWeights, NamedTensors

IDLE_SECONDS = 60.0  # for the server to end what was cancelled, and what other clients asked
PAUSE_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class GenerateForm:
    """The form of the route /generate, at `url`, whose log probs are by our definition."""

    url: str
    in_stream: ClassVar[Mapping[str, object]] = {}

    def sent(self, request: Request) -> tuple[str, dict[str, object]]:
        return self.url, {
            "input_ids": request.token_ids,
            "sampling_params": _sampling_params(request.params),
            "return_logprob": True,
        }

    def answer(self, request: Request) -> Answer:
        return functools.partial(_row, request)


@dataclasses.dataclass(frozen=True)
class WeightsFolder:
    """New weights for a server that reads the files of this machine.

    config_of: the folder or the Hub id with the model's config.json. version: of the weights that
    the server had at the start; 0 if it names no number.
    """

    config_of: str
    trust_remote_code: bool
    version: int

    @functools.cached_property
    def expected(self) -> ExpectedWeights:
        """What the model's weights are; raises `ConfigError` if Transformers does not know it."""
        from _inf.backends.new_weights import expected_weights  # PyTorch

        return expected_weights(self._config, self.trust_remote_code)

    @functools.cached_property
    def _config(self) -> Any:
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(
                self.config_of, trust_remote_code=self.trust_remote_code
            )
        except Exception as failure:
            raise ConfigError.of(
                "weights",
                "they cannot be compared with the model's, because Transformers cannot load a "
                f"config from {self.config_of}: {error_text(failure)}.",
            ) from failure

    async def load(self, server: Server, tensors: NamedTensors, version: int) -> None:
        """Have the server load them while none of its requests runs.

        The scheduler of 0.5.9 (`managers/scheduler_update_weights_mixin.py`) dies if requests run
        when it empties the prefix cache after the update, and cancelled ones run a little longer.
        """
        with tempfile.TemporaryDirectory(prefix="inf-weights-") as folder:
            await asyncio.to_thread(self._save, Path(folder), tensors)
            await self._idle(server)
            about = {"model_path": folder, "load_format": "auto", "weight_version": str(version)}
            try:
                await server.ask(f"{server.root}/update_weights_from_disk", about)
            except (ConfigError, PromptError) as refusal:
                raise InferenceError(
                    f"The server did not load the weights ({refusal}) It reads the folder of "
                    "TMPDIR as its own user; if it failed halfway, update again with all weights."
                ) from refusal

    def _save(self, folder: Path, tensors: NamedTensors) -> None:
        from safetensors.torch import save_file

        self._config.save_pretrained(folder)
        whole = {
            name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            for name, tensor in tensors
        }
        saved = {name: tensor.detach().cpu().contiguous() for name, tensor in whole.items()}
        for name, tensor in saved.items():
            if tensor.untyped_storage().nbytes() != tensor.nbytes:  # a part of another's memory
                saved[name] = tensor.clone()
        save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})

    async def _idle(self, server: Server) -> None:
        """Wait until the server empties its prefix cache, which it refuses while requests run."""
        for _ in range(round(IDLE_SECONDS / PAUSE_SECONDS)):
            try:
                await server.ask(f"{server.root}/flush_cache", {})
            except PromptError:  # a 400
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return
        raise InferenceError(
            f"{server.root} had requests for {IDLE_SECONDS:.0f} s without a pause, and weights are "
            "not changed while requests run; it keeps its old weights. End its other clients first."
        )


def weight_version(about: Mapping[str, object]) -> int:
    """The version of the weights; 0 if the server was given none."""
    said = str(about.get("weight_version"))
    return int(said) if said.isdecimal() else 0


def _sampling_params(params: SamplingParams) -> dict[str, object]:
    if params.ignore_eos and params.stop_token_ids:
        raise ConfigError.of(
            "ignore_eos", "SGLang's server then ignores stop_token_ids too; leave one of them out."
        )
    named: dict[str, object] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "ignore_eos": params.ignore_eos,
        "stop": list(params.stop),
        "stop_token_ids": list(params.stop_token_ids),
        "max_new_tokens": params.max_tokens,
        "min_new_tokens": params.min_tokens,
    }
    return named | values_of(params.parts)  # SGLang's names are those of the keywords


def _row(request: Request, chunk: Mapping[str, Any]) -> RequestOutput:
    """Return the answer so far, which each chunk has from its beginning on."""
    ids, about = list(chunk["output_ids"]), chunk["meta_info"]
    reason = about["finish_reason"] or {}
    if reason and reason["type"] == "abort":
        raise RequestFailure(f"The server aborted the request: {reason.get('message')}.")
    return RequestOutput(
        token_ids=ids,
        logprobs=[logprob for logprob, *_ in about["output_token_logprobs"]][: len(ids)],
        finish_reason=reason.get("type"),
        matched_stop=reason.get("matched"),
        prompt_tokens=len(request.token_ids),
        completion_tokens=len(ids),
        cached_tokens=about.get("cached_tokens") or 0,
        weight_versions=[(weight_version(about), 0)],
    )
