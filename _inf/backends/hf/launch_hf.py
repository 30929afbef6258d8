"""Loads a model with Transformers and starts the backend, from a checked config."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from _inf.backends.hf.backend import HfBackend
from _inf.backends.hf.decoding import Decoder
from _inf.backends.hf.forward import Forward
from _inf.backends.hf.next_token import Chooser
from _inf.backends.model_info import (
    auto_class,
    check_length,
    context_length,
    eos_token_ids,
    limits_of,
    weight_bytes,
    with_dtype,
    with_padding,
    with_template,
)
from _inf.config import Config
from _inf.errors import ConfigError, at_fault, error_text
from _inf.models.resolve import model_folder
from _inf.runtime import quiet
from _inf.runtime.forks import check_start
from _inf.runtime.free_memory import free_bytes
from _inf.runtime.host import Host
from _inf.types import Limits, ModelInfo

# On a CPU more rows or longer prompts at once are not faster, and a step should not take seconds.
CPU_TOKENS, CPU_NEW_TOKENS = 32_768, 2_048
DTYPES = {"half": "float16", "float": "float32"}


def launch(config: Config) -> HfBackend:
    """Load the model; raises `ConfigError` if it cannot be used."""
    check_start(children=False)
    with quiet.starting(config.model_name, "about 5 seconds"), quiet.third_party():
        device = _device(config)
        folder = model_folder(config)
        trusted = {"trust_remote_code": config.trust_remote_code}
        tokenizer = with_padding(AutoTokenizer.from_pretrained(folder, **trusted))
        tokenizer = with_template(tokenizer, folder)
        host = Host()

        def build() -> HfBackend:
            model = _model(folder, config, device)
            eos = eos_token_ids(model.generation_config, tokenizer)
            model.generation_config = GenerationConfig()  # else beams take what a call leaves out
            dtype = str(model.dtype).removeprefix("torch.")
            info = ModelInfo(tokenizer, eos, _limits(config, model.config), folder, dtype)
            forward = _forward(model, info.limits.total)
            decoder = _decoder(forward, Chooser(info, device), info.limits.total, config)
            host.keep("decoding", decoder.serve())
            host.on_stop.append(lambda: _free(forward, device))
            return HfBackend(forward, decoder, host, info)

        return host.start(build)


@at_fault(key="model_path")
def _forward(model: object, total: int) -> Forward:
    """The model's forward pass, if it decodes text."""
    refused = f"model_path: {type(model).__name__} does not run with rollout.name: hf:"
    try:
        forward = Forward(model, total)
    except Exception as failure:
        raise ConfigError(
            f"{refused} it cannot compute a row from token ids alone: {error_text(failure)}."
        ) from failure
    if not forward.causal:
        raise ConfigError(
            f"{refused} a token's logits depend on the tokens after it. Use a model that decodes "
            "text."
        )
    return forward


def _free(forward: Forward, device: torch.device) -> None:
    """Give the model's memory back, a GPU's to the next engine, which measures what is free."""
    del forward.model
    forward.adapters.free()
    if device.type == "cuda":
        gc.unfreeze()  # a command, or a program, may have frozen the model
        gc.collect()
        torch.cuda.empty_cache()


@at_fault(key="device")
def _device(config: Config) -> torch.device:
    found = config.device != "cpu" and torch.cuda.is_available()
    if config.device == "cuda" and not found:
        raise ConfigError(
            "device: 'cuda' was asked for, but torch finds no GPU; use device: cpu, or auto to "
            "take what the machine has"
        )
    return torch.device("cuda" if found else "cpu")


def _dtype(folder: Path, about: object, config: Config, device: torch.device) -> str:
    """The dtype of the computation; `ConfigError` if a CPU has no memory for the weights in it."""
    on_cpu = device.type == "cpu"
    dtype = with_dtype(config, on_cpu, about).rollout.dtype
    needed, free = weight_bytes(folder, about, dtype), free_bytes()
    if on_cpu and needed > free:
        raise ConfigError.of(
            "rollout.dtype",
            f"the weights would take {needed / 1e9:.1f} GB in {dtype}, and {free / 1e9:.1f} GB of "
            "memory are free; bfloat16 takes two bytes a weight.",
        )
    return DTYPES.get(dtype, dtype)


@at_fault(key="model_path")
def _model(folder: Path, config: Config, device: torch.device) -> Any:
    try:
        trusted = {"trust_remote_code": config.trust_remote_code}
        about = AutoConfig.from_pretrained(folder, **trusted)
        dtype = _dtype(folder, about, config, device)
        with quiet.no_bars():
            model, loading = auto_class(about).from_pretrained(
                folder, dtype=dtype, output_loading_info=True, **trusted
            )
    except ConfigError:
        raise
    except Exception as failure:
        raise ConfigError.of(
            "model_path", f"Transformers cannot load {folder}: {error_text(failure)}."
        ) from failure
    if missing := sorted(loading["missing_keys"]):
        raise ConfigError(
            f"model_path: the weights in {folder} lack {missing[0]}, in all {len(missing)} that "
            "Transformers would fill with random numbers."
        )
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # PyTorch's own attention leaves soft caps out
    return model.to(device).eval()


def _limits(config: Config, hf_config: Any) -> Limits:
    text = hf_config.get_text_config()
    context = context_length(text)
    limits = limits_of(config, text.vocab_size, context)
    check_length(limits.total, context, "the model's context")
    return limits


@at_fault(key="rollout.max_model_len")
def _decoder(forward: Forward, chooser: Chooser, total: int, config: Config) -> Decoder:
    rollout, size = config.rollout, max(1, forward.bytes_per_token)
    if forward.device.type == "cpu":
        tokens = min(max(CPU_TOKENS, total), free_bytes() // 4 // size)
        new_tokens = min(CPU_NEW_TOKENS, rollout.max_num_batched_tokens)
    else:
        tokens = torch.cuda.mem_get_info(forward.device)[0] // 3 // size
        new_tokens = rollout.max_num_batched_tokens
    if tokens < total:
        raise ConfigError(
            f"rollout.max_model_len: the keys and values of {total} tokens do not fit into the "
            f"memory that is left; at most {tokens} do."
        )
    return Decoder(forward, chooser, rollout.max_num_seqs, tokens, new_tokens)
