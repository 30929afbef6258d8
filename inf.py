"""Look at a language model through exactly the stack that trains it: verl's `SGLangRollout`.

    from inf import InferenceEngine

    with InferenceEngine() as engine:
        print(engine.generate("What is the capital of France?").completions[0])

The pipeline, one step a room: prompts become messages and token ids (`_inf.tokens`), keywords
become sampling parameters (`_inf.sampling`), both become a verl `DataProto` (`_inf.batch`), the
rollout answers it (`_inf.upstream`), and the answer is decoded (`_inf.output`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from _inf.batch import data_proto
from _inf.config import Config, load_config
from _inf.errors import (
    ConfigError,
    EngineDeadError,
    GenerationTimeout,
    InferenceError,
    PromptError,
    ToolError,
)
from _inf.output import GenerationOutput, GenerationRow, decode
from _inf.progress import progress
from _inf.sampling import GenerateParams, Sampling, resolve
from _inf.stats import Stats
from _inf.streaming import Stream, StreamChunk, check_streamable
from _inf.tokens import Prompt, check_room, normalize, tokenize, tokenize_responses
from _inf.upstream.environment import check_pins
from _inf.upstream.host import Ticket
from _inf.upstream.launch import Launched, launch

if TYPE_CHECKING:
    from typing_extensions import Unpack

__version__ = "0.1.0"
__all__ = [
    "Config",
    "ConfigError",
    "EngineDeadError",
    "GenerateParams",
    "GenerationOutput",
    "GenerationRow",
    "GenerationTimeout",
    "InferenceEngine",
    "InferenceError",
    "PromptError",
    "StreamChunk",
    "ToolError",
]

check_pins()

# Calls of `agenerate` that may be under way at once; each holds a thread that only waits.
ASYNC_CALLS = 512


class InferenceEngine:
    """A model on verl's rollout and SGLang's engine, in this process and its child.

    config: a path to a YAML file, a mapping, or None for the embedded default
        (SmolLM2-135M-Instruct, no download, any machine). `overrides` are merged over it, deeply:
        `InferenceEngine("config.yaml", rollout={"dtype": "float32"})`.

    A context manager. It is stopped by `shutdown`, when it is garbage, or at interpreter exit. It
    may be used from any thread, from several at once, inside `async` code and in notebooks.

    Attributes: `config` (frozen), `tokenizer` (Transformers), `model_config` (verl's
    `HFModelConfig`), `rollout` (verl's `SGLangRollout` itself).

    Raises `ConfigError`, and `EngineDeadError` where the engine dies while it starts.
    """

    def __init__(
        self, config: str | os.PathLike[str] | Mapping[str, Any] | None = None, **overrides: Any
    ) -> None:
        self.config: Config = load_config(config, overrides)
        self._stats = Stats()
        self._threads = concurrent.futures.ThreadPoolExecutor(ASYNC_CALLS, "inf-call")
        self._launch()

    def _launch(self) -> None:
        self._engine: Launched = launch(self.config)
        self.rollout: Any = self._engine.rollout
        self.model_config: Any = self._engine.model_config
        self.tokenizer: Any = self._engine.tokenizer
        self._finalizer = weakref.finalize(self, self._engine.host.stop)

    def generate(self, prompts: Any, **params: Unpack[GenerateParams]) -> GenerationOutput:
        """Answer `prompts`; rows come back in order, prompt-major.

        prompts: each alone or in a list, mixed as one likes: `"text"` (one user message), a list of
            `{"role", "content"}` messages (a conversation), or `{"prompt_token_ids": [...]}`. An
            empty list gives an empty output.

        Keywords, where None means what the config says:
            temperature: 0 is greedy. top_p in (0, 1], top_k (-1: all tokens), min_p in [0, 1].
            do_sample: False means greedy; refused beside a temperature above 0.
            max_tokens: tokens to generate at most, a row. n: samples a prompt.
            min_tokens: no EOS, stop id or stop string before so many (Transformers' rule).
            stop: a string or several; the answer ends before it.
            stop_token_ids: ids that end an answer, besides the model's own EOS ids.
            ignore_eos: go on past EOS; `stop` and `stop_token_ids` still count.
            presence_penalty, frequency_penalty: in [-2, 2], over generated tokens (OpenAI's).
            repetition_penalty: above 0, over prompt and generated tokens (Transformers' rule).
            seed: the same tokens each time, whatever else is in the batch (float32 on a CPU).
            json_schema (a dict or JSON text), regex: what the answer must match.
            chat_template_kwargs: for the template, e.g. `{"enable_thinking": False}`.
            skip_special_tokens: False keeps them, and the stop token, in the text.
            prompt_logprobs: also score the prompt's tokens.
            timeout: seconds; past them the call is aborted in the engine.
            progress: a bar; by default on a terminal or in a notebook, if it takes long.
        All but the last six take a list too, one value a prompt (`stop`: a list of lists).

        Raises `PromptError` (which prompt), `ConfigError` (which keyword), both before anything is
        sent; `EngineDeadError` when the engine has died or was shut down; `GenerationTimeout`.
        """
        return self._generate(prompts, params)

    async def agenerate(self, prompts: Any, **params: Unpack[GenerateParams]) -> GenerationOutput:
        """`generate` for async code; cancelling it aborts it in the engine."""
        ticket = Ticket()
        call = self._threads.submit(self._generate, prompts, params, ticket)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            ticket.cancel()
            raise

    def _generate(
        self, prompts: Any, params: GenerateParams, ticket: Ticket | None = None
    ) -> GenerationOutput:
        ticket = ticket or Ticket()
        tokenized, sampling = self._prepared(prompts, params)
        if not tokenized:
            return GenerationOutput.empty()
        ticket.expire_in(sampling.timeout)
        batch = data_proto(tokenized, sampling, self.tokenizer, self._engine.eos_token_ids)
        with self._stats.call(), progress(len(batch), sampling.progress) as report:
            answered = self.rollout.generate_sequences(batch, ticket=ticket, report=report)
        output = decode(answered, tokenized, sampling, self.tokenizer)
        self._stats.add_rows(output.metadata)
        return output

    def _prepared(self, prompts: Any, params: GenerateParams) -> tuple[list[Prompt], Sampling]:
        engine = self._engine
        conversations = normalize(prompts)
        sampling = resolve(
            params,
            self.config.rollout,
            len(conversations),
            engine.eos_token_ids,
            engine.limits.vocabulary,
        )
        tokenized = tokenize(
            conversations, self.tokenizer, engine.limits, sampling.chat_template_kwargs
        )
        check_room(tokenized, sampling.max_tokens, engine.limits)
        return tokenized, sampling

    def stream(self, prompt: Any, **params: Unpack[GenerateParams]) -> Iterator[StreamChunk]:
        """Answer one prompt, chunk by chunk, with `generate`'s keywords (n is 1).

        The chunks' texts joined are the completion, their token ids the row's. Abandoning the
        iterator (break, an exception, garbage) aborts the request in the engine. Raises what
        `generate` does, for a wrong call before the first chunk is asked for.
        """
        return self._stream(prompt, params).chunks()

    def astream(self, prompt: Any, **params: Unpack[GenerateParams]) -> AsyncIterator[StreamChunk]:
        """`stream` for async code: `async for chunk in engine.astream(...)`."""
        return self._stream(prompt, params).achunks()

    def _stream(self, prompt: Any, params: GenerateParams) -> Stream:
        tokenized, sampling = self._prepared(prompt, params)
        check_streamable(len(tokenized), sampling)
        return Stream(self.rollout, tokenized[0].token_ids, sampling, self.tokenizer, self._stats)

    def get_logprobs(self, prompts: Any, responses: Any) -> list[list[float]]:
        """Score given responses: one float a response token, the natural log of softmax(logits).

        prompts: as in `generate`. responses: one each, in the same order, as text (encoded without
            special tokens) or as token ids; a single prompt takes a single response.

        Raises `PromptError`, also where prompt and response together are above `max_model_len`.
        """
        engine = self._engine
        conversations = normalize(prompts)
        tokenized = tokenize(conversations, self.tokenizer, engine.limits)
        answers = tokenize_responses(responses, len(tokenized), self.tokenizer, engine.limits)
        check_room(tokenized, list(map(len, answers)), engine.limits)
        sequences = [
            (prompt.token_ids + answer, len(prompt.token_ids))
            for prompt, answer in zip(tokenized, answers, strict=True)
        ]
        with self._stats.call():
            rows = self.rollout.score(sequences, Ticket())
        return [row.prompt_logprobs[1:] for row in rows]

    def stats(self) -> dict[str, float]:
        """Totals since the start: `calls`, `requests` (rows), `prompt_tokens`,
        `completion_tokens`, `cached_tokens`, `restarts`, `busy_seconds` and the
        `tokens_per_second` generated in them."""
        return self._stats.snapshot()

    def restart(self) -> None:
        """Start a new engine in this process, with `model_path`'s weights (version 0)."""
        self._finalizer()
        self._launch()
        self._stats.add_restart()

    def shutdown(self) -> None:
        """Stop the engine and its child processes; safe to call twice."""
        self._finalizer()

    def __enter__(self) -> InferenceEngine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
