"""Run the agent loops of verl 0.8 to 0.9 against `inf serve`. This file needs verl, not inf.

    python verl_client.py http://127.0.0.1:8000 MODEL_FOLDER ["What is 12 * 7?" ...]

runs a row for each prompt through verl's `AgentLoopWorker`, without Ray, and prints the traces that
the server recorded. In a program of your own, use `InfServerClient` in place of verl's
`LLMServerClient` (docs/agent_loops_verl09.md).
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from urllib.parse import quote

import aiohttp
from verl.workers.rollout.replica import TokenOutput

CONNECT_SECONDS = 10.0
OURS = {"model", "prompt", "return_token_ids"}  # fields of a request that this client sets
# Fields that ask for more than one sequence of token ids and log probs, which is all verl takes.
MORE = {"n", "best_of", "stream", "stream_options", "echo", "prompt_logprobs"}
COMPLETED = {"stop", "length"}  # finish reasons for which verl's vLLM server says "completed"


class InfServerError(RuntimeError):
    """The server could not be reached, refused a request, or did not answer in time."""


class InfServerClient:
    """`inf serve` with the `generate` of verl's `LLMServerClient`.

    It holds no connection and no state, so it can be copied to other processes.

    base_url: the server's address, such as http://127.0.0.1:8000.
    config: verl's whole config; `actor_rollout_ref.rollout` limits the length of rows.
    api_key: the server's key, if it was started with one.
    timeout_seconds: the most seconds for one turn, including its time in the server's queue.
    record: keep the trace of each request id on the server until `take_traces` fetches it. A server
        keeps at most 1,024 of them.
    """

    def __init__(
        self,
        base_url: str,
        config: Any,
        *,
        api_key: str | None = None,
        timeout_seconds: float = 600.0,
        record: bool = True,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url: {base_url!r} does not begin with http:// or https://.")
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.config = config
        self.record = record
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_seconds = timeout_seconds

    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        audio_data: list[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> TokenOutput:
        """Sample one turn. The arguments are those of verl's `LLMServerClient.generate`.

        sampling_params: under vLLM's names, or SGLang's `max_new_tokens`; the server refuses
            unknown names. Without a limit a turn has at most `response_length` tokens and, with its
            prompt, at most `prompt_length + response_length` (as `generate` in verl 0.9.1's
            `sglang_rollout/async_sglang_server.py`).
        kwargs: `priority` has no effect, as with verl's own client for SGLang.

        `extra_fields` of the result has the `request_id`, which verl's loops copy to their rows,
        and the server's weight version under verl's names (`global_steps` ...).

        Raises `ValueError` for what the server cannot do, and `InfServerError`. Nothing is retried.
        """
        media = dict(image_data=image_data, video_data=video_data, audio_data=audio_data)
        given = media | {"mm_processor_kwargs": mm_processor_kwargs} | kwargs
        given.pop("priority", None)
        if refused := sorted(name for name, value in given.items() if value):
            raise ValueError(f"{', '.join(refused)}: inf serve takes token ids only.")

        ids = [int(token) for token in prompt_ids]
        fields = self._fields(len(ids), dict(sampling_params))
        body = {**fields, "prompt": ids, "return_token_ids": True}
        session = f"/sessions/{quote(str(request_id), safe='')}" if self.record else ""
        answer = await self._request("POST", f"{session}/v1/completions", body)

        [choice] = answer["choices"]
        if choice["prompt_token_ids"] != ids:
            raise InfServerError("The server changed the prompt: set truncate_prompt: null there.")
        token_ids, log_probs = choice["token_ids"], None
        if "logprobs" in fields:
            log_probs = (choice["logprobs"] or {}).get("token_logprobs")
            if log_probs is None or len(log_probs) != len(token_ids):
                raise InfServerError("The server gave no log prob for some of the tokens.")
        reason, version = choice["finish_reason"], choice["weight_version"]
        steps = dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), version)
        return TokenOutput(
            token_ids=token_ids,
            log_probs=log_probs,
            stop_reason="completed" if reason in COMPLETED else reason,
            extra_fields={"request_id": request_id, **steps},
        )

    async def take_traces(self, request_id: str) -> list[dict[str, Any]]:
        """Return the traces that the server recorded for a request id, and delete them there.

        A trace has `prompt_token_ids` and, for everything after the prompt, `token_ids`,
        `response_mask` (1: sampled) and `logprobs`. There is one trace, and another for each time
        that a prompt did not begin with all ids of an earlier turn.
        """
        session = f"/sessions/{quote(str(request_id), safe='')}"
        traces = (await self._request("GET", f"{session}/traces"))["traces"]
        await self._request("DELETE", session)
        return traces

    def _fields(self, prompt_tokens: int, params: dict[str, Any]) -> dict[str, Any]:
        """Return verl's sampling parameters as fields of a request."""
        for refused in sorted((OURS | MORE) & params.keys()):
            raise ValueError(f"sampling_params[{refused!r}]: this client cannot pass it on.")
        if "max_new_tokens" in params:
            if "max_tokens" in params:
                raise ValueError("sampling_params: max_new_tokens and max_tokens are the same.")
            params["max_tokens"] = params.pop("max_new_tokens")
        if params.get("max_tokens") is None:
            rollout = self.config.actor_rollout_ref.rollout
            longest = rollout.prompt_length + rollout.response_length
            if prompt_tokens >= longest:
                raise ValueError(
                    f"prompt_ids: {prompt_tokens} leave no room for an answer: prompt_length + "
                    f"response_length is {longest}. End the loop before, or set max_tokens."
                )
            params["max_tokens"] = min(rollout.response_length, longest - prompt_tokens)
        if params.pop("logprobs", False):  # verl: a flag; completions: how many others
            params["logprobs"] = 0
        return params

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        where = f"{method} {self.base_url}{path}"
        data = None if body is None else json.dumps(body, default=_plain_number)
        headers = {"Content-Type": "application/json", **self._headers}
        timeout = aiohttp.ClientTimeout(total=self._timeout_seconds, sock_connect=CONNECT_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as http,
                http.request(method, self.base_url + path, data=data) as response,
            ):
                status, text = response.status, await response.text()
        except asyncio.TimeoutError:
            raise InfServerError(
                f"{where}: no answer within {self._timeout_seconds:g} s (timeout_seconds), or no "
                f"connection within {CONNECT_SECONDS:g} s."
            ) from None
        except aiohttp.ClientError as failure:
            raise InfServerError(f"{where}: {failure}") from failure
        if status != 200:
            raise InfServerError(f"{where}: status {status}: {_message(text)}")
        return json.loads(text)


def _plain_number(value: Any) -> Any:
    """Convert a number of NumPy or torch, as in a row's columns, to Python's."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"sampling_params: {value!r} cannot be sent as JSON.")


def _message(text: str) -> str:
    """The message in a server's error body."""
    try:
        return json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return text[:500]


def verl_config(model_folder: str) -> Any:
    """verl's own config with the keys that its agent loops need."""
    import verl.trainer.config
    from omegaconf import OmegaConf

    folder = verl.trainer.config.__path__[0]
    config = OmegaConf.load(f"{folder}/_generated_ppo_trainer.yaml")
    config.actor_rollout_ref.model.path = model_folder
    config.actor_rollout_ref.rollout.name = "sglang"
    return config


async def main(base_url: str, model_folder: str, *prompts: str) -> None:
    import numpy as np
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.protocol import DataProto

    config = verl_config(model_folder)
    client = InfServerClient(base_url, config)
    worker = AgentLoopWorker(config, client)

    rows = np.empty(len(prompts), dtype=object)
    rows[:] = [[{"role": "user", "content": prompt}] for prompt in prompts]
    output = await worker.generate_sequences(DataProto.from_dict(non_tensors={"raw_prompt": rows}))
    for request_id in output.non_tensor_batch["request_id"]:
        for trace in await client.take_traces(request_id):
            print(worker.tokenizer.decode(trace["token_ids"]))
            print({name: trace[name] for name in ("token_ids", "response_mask", "logprobs")})


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:3], *(sys.argv[3:] or ["What is the capital of France?"])))
    except KeyboardInterrupt:
        sys.exit(130)
