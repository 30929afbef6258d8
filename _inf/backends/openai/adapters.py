"""The LoRA adapters of vLLM (0.32.0, started with --enable-lora and the environment variable
VLLM_ALLOW_RUNTIME_LORA_UPDATING=1) and of `inf serve`."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import secrets

from _inf.backends.openai.client import Server
from _inf.backends.openai.failures import AccessRefused
from _inf.errors import (
    ConfigError,
    InferenceError,
    PromptError,
    RequestFailure,
    strip_punctuation,
)
from _inf.runtime import quiet
from _inf.types import Request

LOAD, UNLOAD = "/load_lora_adapter", "/unload_lora_adapter"
END_SECONDS = 3.0


async def takes_adapters(server: Server) -> bool:
    """Whether the server has the routes, which refuse an adapter without a name."""
    try:
        await server.post_text(LOAD, {"lora_name": "", "lora_path": ""})
    except AccessRefused:
        raise
    except PromptError:  # a 400
        return True
    except ConfigError as refusal:  # a 400 about a field, or a 404
        return refusal.key is not None
    except RequestFailure:
        return False
    return True


class ServedAdapters:
    """A server's adapters, and the names there of those that were loaded from here.

    vLLM refuses a name that is loaded, and its prefix cache knows an adapter by its name and its
    folder (0.32.0, `v1/core/kv_cache_utils.py`, `_gen_lora_extra_hash_keys`; vllm #30931): of new
    files in the same folder it would go on with the old ones' keys and values. So each load has a
    name that no engine has used before, NAME@RANDOM-NUMBER.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._endings = map(f"{secrets.token_hex(4)}-{{}}".format, itertools.count())
        self._served: dict[str, tuple[str, int]] = {}  # the server's name, and the version
        self._there: set[str] = set()  # names that the server has, or may have, from here
        self._versions: dict[str, int] = {}

    async def names(self) -> list[str]:
        """The adapters that can be asked for, also those that another client loaded."""
        models = (await self._server.look("/models"))["data"]
        there = [str(each["id"]) for each in models if each.get("parent")]
        ours = {served: name for name, (served, _) in self._served.items()}
        return list(dict.fromkeys(ours.get(each, each) for each in there))

    def served(self, request: Request) -> tuple[Request, int | None]:
        """The request with the server's name of its adapter, and the version of those weights, if
        they were loaded from here."""
        if request.params.adapter not in self._served:
            return request, None
        name, version = self._served[request.params.adapter]
        params = dataclasses.replace(request.params, adapter=name)
        return dataclasses.replace(request, params=params), version

    async def load(self, name: str, path: str, version: int | None) -> int:
        served = f"{name}@{next(self._endings)}"
        self._there.add(served)
        try:
            await self._server.post_text(LOAD, {"lora_name": served, "lora_path": path})
        except (ConfigError, PromptError, RequestFailure) as refusal:
            if not isinstance(refusal, RequestFailure):  # after one it may be there
                self._there.discard(served)
            raise ConfigError.of(
                f"adapters.{name}",
                f"the server did not load {path}, which must be a folder on its machine "
                f"({strip_punctuation(refusal)}).",
            ) from refusal
        old = self._served.get(name)
        version = self._versions.get(name, -1) + 1 if version is None else version
        self._served[name], self._versions[name] = (served, version), version
        if old is not None:
            try:
                await self._unload(old[0])
            except InferenceError as failure:  # the new one answers, so the load has not failed
                quiet.warn(f"adapters.{name}: the server still has the weights before: {failure}")
        return version

    async def unload(self, name: str) -> None:
        served, _ = self._served.get(name, (name, 0))
        await self._unload(served)
        self._served.pop(name, None)

    async def _unload(self, served: str) -> None:
        await self._server.post_text(UNLOAD, {"lora_name": served})
        self._there.discard(served)

    async def unload_all(self) -> None:
        """Unload what was loaded from here, at the engine's end; a server that is gone, or refuses,
        does not delay it."""
        ends = map(self._unload, list(self._there))
        await asyncio.wait_for(asyncio.gather(*ends, return_exceptions=True), END_SECONDS)
