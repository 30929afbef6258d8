"""Scripted servers of token ids: vLLM 0.32.0's form, and SGLang 0.5.9's. The real ones are in
`tests/soak/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from inf import InferenceEngine
from tests.support import scripted_server
from tests.support.scripted_server import MODEL, USAGE, Reply, ScriptedServer
from tests.support.tiny import tiny_model

IM_END = 2
ANSWER = [40, 41, 42, IM_END]
BEST, SECOND, OWN, SAMPLED = -1.6, -2.0, -3.5, -2.5  # log probs


def connected(server: ScriptedServer, /, **config: Any) -> InferenceEngine:
    """An engine that sends token ids."""
    given = {"tokenizer_path": str(tiny_model()), **config}
    return scripted_server.connected(server, **given)


class Vllm:
    """vLLM's /completions.

    sampled, hot: the log prob of an answer's tokens, the latter at temperatures above 1; own: of a
    prompt's. adapters: those that are loaded, by name their folders; None: it has no such routes.
    ever: the names of all loads. unloads: the status with which it unloads.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.answer, self.finish, self.stop_reason = list(ANSWER), "stop", None
        self.prompt_ids: list[int] | None = None  # other ones than the tokenizer's
        self.own, self.sampled, self.hot = OWN, SAMPLED, SAMPLED
        self.forced = list(ANSWER)  # with `thinking_token_budget`
        self.adapters: dict[str, str] | None = None
        self.ever: list[str] = []
        self.unloads = 200
        self.version = "0.32.1.dev3"

    def __call__(self, path: str, body: Any) -> Reply:
        if path == "/v1/completions":
            return self._completion(body)
        if path == "/v1/models":
            loaded = [{"id": name, "parent": MODEL} for name in self.adapters or ()]
            return Reply({"data": [{"id": MODEL, "parent": None, "owned_by": "vllm"}, *loaded]})
        if path == "/version":
            return Reply({"version": self.version})
        if self.adapters is None or not path.endswith("_lora_adapter"):
            return _refusal(404, "Not Found")
        name = body["lora_name"]
        if path == "/v1/unload_lora_adapter":
            if self.unloads != 200:
                return _refusal(self.unloads, "busy")
            del self.adapters[name]
        elif not (name and body["lora_path"]):
            return _refusal(400, "Both 'lora_name' and 'lora_path' must be provided.", param=None)
        elif body["lora_path"] == "/nowhere":
            return _refusal(404, "No adapter found for /nowhere")
        elif name in self.adapters:
            return _refusal(400, f"The lora adapter '{name}' has already been loaded.")
        else:
            self.ever.append(name)
            self.adapters[name] = body["lora_path"]
        text = {"content-type": "text/plain"}
        return Reply(b"Success: LoRA adapter changed successfully.", headers=text)

    def _completion(self, body: Any) -> Reply:
        prompt, constrained = body["prompt"], body.get("structured_outputs")
        read = self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        digits = self.tokenizer("777")["input_ids"] + [IM_END]
        free = body.get("allowed_token_ids") or self.answer
        if "thinking_token_budget" in body:
            free = self.forced
        ids = (digits if constrained else free)[: body["max_tokens"]]
        finish = "repetition" if "repetition_detection" in body else self.finish
        choice = {
            "text": "?",
            "token_ids": ids,
            "logprobs": self._logprobs(ids, body),
            "prompt_logprobs": None,
            "prompt_token_ids": self.prompt_ids or read,
            "finish_reason": "stop" if constrained else finish,
            "stop_reason": self.stop_reason,
        }
        if (scored := body.get("prompt_logprobs")) is not None:
            choice["prompt_logprobs"] = [None, *(self.entry(i, scored) for i in read[1:])]
        if not body.get("stream"):
            return Reply({"choices": [choice], "usage": USAGE})
        events = [
            {"choices": [{"token_ids": [each], "logprobs": self._logprobs([each], body)}]}
            for each in ids
        ]
        last = {"token_ids": [], "finish_reason": self.finish, "stop_reason": self.stop_reason}
        return Reply(events=[*events, {"choices": [last]}, {"choices": [], "usage": USAGE}])

    def _logprobs(self, ids: list[int], body: Any) -> dict[str, Any]:
        own = self.hot if body["temperature"] > 1 else self.sampled
        rest = -10 if own > -0.1 else 0  # beside a token that is certain
        tops = [
            {f"token_id:{each}": value + rest for each, value in _tops(i, body["logprobs"]).items()}
            | {f"token_id:{i}": own}
            for i in ids
        ]
        for top in tops if "logprob_token_ids" in body else ():
            top.update({f"token_id:{each}": SECOND for each in body["logprob_token_ids"]})
        return {"token_logprobs": [own for _ in ids], "top_logprobs": tops}

    def entry(self, token: int, most: int) -> dict[str, Any]:
        """Of a prompt's token."""
        values = {**_tops(token, most), token: self.own}
        return {
            str(each): {"logprob": value, "rank": 1, "decoded_token": "?"}
            for each, value in values.items()
        }


def _tops(token: int, most: int) -> dict[int, float]:
    """As vLLM lists them: the token itself first, though it is not the likeliest."""
    return {token: OWN, **dict([(10, BEST), (11, SECOND)][:most])}


def _refusal(status: int, message: str, **about: Any) -> Reply:
    return Reply({"error": {"message": message, **about}}, status=status)


class Sglang:
    """SGLang's own server.

    busy: so many requests to empty its cache are refused. fails: it loads no weights. aborts: it
    answers no request. loaded: the weights that it was given.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.path, self.version = str(tiny_model()), "default"
        self.busy, self.fails, self.aborts = 0, False, False
        self.loaded: dict[str, torch.Tensor] = {}

    def __call__(self, path: str, body: Any) -> Reply:
        if path == "/v1/models":
            return Reply({"data": [{"id": MODEL, "owned_by": "sglang"}]})
        if path == "/generate":
            return self._generated(body)
        if path == "/model_info":
            return Reply({"model_path": self.path, "weight_version": self.version})
        if path == "/flush_cache":
            self.busy -= 1
            text = {"content-type": "text/plain"}
            return Reply(b"Cache flushed.", 200 if self.busy < 0 else 400, headers=text)
        if path != "/update_weights_from_disk":
            return _refusal(404, "Not Found")
        if self.fails:
            return Reply({"success": False, "message": "Failed to load"}, status=400)
        self.loaded = load_file(Path(body["model_path"]) / "model.safetensors")
        self.path, self.version = body["model_path"], body["weight_version"]
        return Reply({"success": True, "message": "Succeeded"})

    def _generated(self, body: Any) -> Reply:
        ids = ANSWER[: body["sampling_params"]["max_new_tokens"]]
        if self.aborts:
            ended = {"finish_reason": {"type": "abort", "message": "Out of memory"}}
            return Reply({"output_ids": [], "meta_info": ended})

        def state(count: int) -> dict[str, Any]:
            about = {"finish_reason": None, "cached_tokens": 4}
            about["prompt_tokens"] = len(self.tokenizer(body.get("text", ""))["input_ids"])
            about |= {"weight_version": self.version}
            about["output_token_logprobs"] = [[-0.5, each, None] for each in ids[:count]]
            if count == len(ids):
                about["finish_reason"] = {"type": "stop", "matched": IM_END}
            return {"output_ids": ids[:count], "meta_info": about}

        if body.get("stream"):
            return Reply(events=[state(count + 1) for count in range(len(ids))])
        return Reply(state(len(ids)))
