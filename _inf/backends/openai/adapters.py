"""The LoRA adapters of vLLM (0.32.0, started with --enable-lora and the environment variable
VLLM_ALLOW_RUNTIME_LORA_UPDATING=1) and of `inf serve`."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import secrets

from _inf.backends.loaded_adapters import Adapter, LoadedAdapters, NewAdapter
from _inf.backends.openai.client import Server
from _inf.errors import ConfigError, PromptError, RequestFailure, strip_punctuation
from _inf.parts import adapters as parts
from _inf.parts.adapters import adapter_of
from _inf.types import Request

END_SECONDS = 3.0


class ServerAdapters(LoadedAdapters):
    """A server's adapters, by the names there of those that were loaded from here.

    vLLM refuses a name that is loaded, and its prefix cache knows an adapter by its name and its
    folder (0.32.0, `v1/core/kv_cache_utils.py`, `_gen_lora_extra_hash_keys`; vllm #30931): for new
    files in the same folder it would reuse keys and values of the old ones. So each load has a name
    that no engine has used before, NAME@RANDOM-NUMBER.
    """

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self._endings = map(f"{secrets.token_hex(4)}-{{}}".format, itertools.count())
        self._there: set[str] = set()  # names that the server has, or may have, from here

    async def listed(self) -> list[str]:
        """The adapters that can be asked for, also those that another client loaded."""
        models = (await self._server.control("/models"))["data"]
        there = [str(model["id"]) for model in models if model.get("parent")]
        ours = {adapter.key: name for name, adapter in self._loaded.items()}
        return list(dict.fromkeys(ours.get(name, name) for name in there))

    def of(self, name: str) -> Adapter:
        return self._loaded.get(name) or Adapter(name, 0)  # another client's

    def served(self, request: Request) -> tuple[Request, int | None]:
        """The request with the server's name of its adapter, and the version of those weights, if
        they were loaded from here."""
        params = request.params
        if (known := self._loaded.get(adapter_of(params) or "")) is None:
            return request, None
        others = (part for part in params.parts if not isinstance(part, parts.Adapter))
        params = dataclasses.replace(params, parts=(parts.Adapter(known.key), *others))
        return dataclasses.replace(request, params=params), known.version

    def checked(self, name: str, weights: object, peft_config: object) -> NewAdapter:
        if not isinstance(weights, str | os.PathLike) or peft_config is not None:
            raise ConfigError.of(
                f"adapters.{name}",
                "a server reads a folder of its own machine; save the adapter with PEFT's "
                "save_pretrained and give the path.",
            )
        return NewAdapter(folder=os.fspath(weights))

    async def _load(self, name: str, new: NewAdapter) -> str:
        key = f"{name}@{next(self._endings)}"
        self._there.add(key)
        try:
            about = {"lora_name": key, "lora_path": new.folder}
            await self._server.control("/load_lora_adapter", about)
        except (ConfigError, PromptError, RequestFailure) as refusal:
            if not isinstance(refusal, RequestFailure):  # after one it may be there
                self._there.discard(key)
            raise ConfigError.of(
                f"adapters.{name}",
                f"the server did not load {new.folder}, which must be a folder on its machine "
                f"({strip_punctuation(refusal)}). vLLM needs --enable-lora and the variable "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, inf serve --adapter-folder.",
            ) from refusal
        return key

    async def _unload(self, key: str) -> None:
        await self._server.control("/unload_lora_adapter", {"lora_name": key})
        self._there.discard(key)

    async def unload_all(self) -> None:
        """Unload what was loaded from here, at the engine's end; a server that is gone, or refuses,
        does not delay it."""
        ends = map(self._unload, list(self._there))
        await asyncio.wait_for(asyncio.gather(*ends, return_exceptions=True), END_SECONDS)
