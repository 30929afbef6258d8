"""Look at a language model through exactly the stack that trains it: verl's `SGLangRollout`.

    from inf import InferenceEngine

    with InferenceEngine() as engine:
        print(engine.generate("What is the capital of France?").completions[0])

The pipeline: prompts become messages and token ids, keywords become sampling parameters
(`_inf.request`), both become a verl `DataProto` that the rollout answers (`_inf.backends.verl`),
and the answer is decoded (`_inf.response`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import os
import warnings
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from _inf.backends.verl.environment import check_pins
from _inf.backends.verl.launch import launch
from _inf.config import Config, load_config
from _inf.conversation.loop import hold
from _inf.conversation.plan import ConversationPlan, PreparedCall
from _inf.errors import (
    ConfigError,
    EngineDeadError,
    GenerationTimeout,
    InferenceError,
    PromptError,
    ToolError,
)
from _inf.request.prompts import normalize
from _inf.request.sampling import GenerateParams, Sampling, names_keywords, resolve
from _inf.request.tokenize import check_room, tokenize
from _inf.response.decode import decode
from _inf.response.output import GenerationOutput, GenerationRow
from _inf.response.scores import Score, scored_sequences, scores
from _inf.response.stats import Stats
from _inf.response.streaming import Stream, StreamChunk, check_streamable
from _inf.response.trainer_batch import check_batch, given_columns, trainer_batch
from _inf.runtime.progress import progress
from _inf.tools.definition import as_tools
from _inf.tools.parsing import parse
from _inf.types import CancelToken, RequestOutput, SleepResult, ToolCall

if TYPE_CHECKING:
    from typing_extensions import Unpack
    from verl import DataProto

    from _inf.apps.ray.worker import InferenceWorker as InferenceWorker

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
    "InferenceWorker",
    "PromptError",
    "Score",
    "StreamChunk",
    "ToolCall",
    "ToolError",
]


def __dir__() -> list[str]:
    """What completion shows: the public names."""
    return [*__all__, "__version__", "__doc__"]


def __getattr__(name: str) -> Any:
    """`InferenceWorker`, which is made of the command's parts, and these of this module."""
    if name == "InferenceWorker":
        from _inf.apps.ray.worker import InferenceWorker

        return InferenceWorker
    raise AttributeError(f"module 'inf' has no attribute {name!r}")


check_pins()

# Calls of `agenerate` that may be under way at once; each holds a thread that only waits.
ASYNC_CALLS = 512


class InferenceEngine:
    """A model on verl's rollout and SGLang's engine, in this process and its child.

    config: a path to a YAML file, a mapping, or None for the embedded default
        (SmolLM2-135M-Instruct, no download, any machine). `overrides` are merged over it, deeply:
        `InferenceEngine("config.yaml", rollout={"dtype": "float32"})`.

    A context manager. It is stopped by `shutdown`, when it is garbage, or at interpreter exit. It
    may be used from any thread, from several at once, inside `async` code and in notebooks; not
    from a fork of the process (`os.fork`, multiprocessing's "fork"), where calls raise
    `InferenceError`.

    Attributes: `config` (frozen), `tokenizer` (Transformers), `model_config` (verl's
    `HFModelConfig`), `rollout` (verl's `SGLangRollout` itself).

    Raises `ConfigError`, `EngineDeadError` where the engine dies while it starts, and
    `InferenceError` in a process that cannot have one (daemonic, or a fork of one that had one).
    """

    def __init__(
        self, config: str | os.PathLike[str] | Mapping[str, Any] | None = None, **overrides: Any
    ) -> None:
        self.config: Config = load_config(config, overrides)
        self._stats = Stats()
        self._threads = concurrent.futures.ThreadPoolExecutor(ASYNC_CALLS, "inf-call")
        self._launch()

    def _launch(self) -> None:
        self._backend = launch(self.config)
        self.rollout: Any = self._backend.rollout
        self.model_config: Any = self.rollout.model_config
        self.tokenizer: Any = self._backend.model.tokenizer
        self._finalizer = weakref.finalize(self, self._backend.close)

    def __reduce__(self) -> Any:
        raise InferenceError(
            "An engine cannot be copied or sent to another process; make an InferenceEngine there, "
            "or send the prompts to this one."
        )

    @names_keywords
    def generate(self, prompts: Any, **params: Unpack[GenerateParams]) -> GenerationOutput:
        """Answer `prompts`; rows come back in order, prompt-major.

        prompts: each alone or in a list (an array, a Series, a column), mixed as one likes:
            `"text"` (one user message), a list of messages (a conversation; `{"role", "content"}`
            or objects with these), `{"prompt_token_ids": [...]}`, or `{"text": "..."}`, which no
            template touches. An empty list gives an empty output.

        Keywords, where None means what the config says:
            temperature: 0 is greedy. top_p in (0, 1], top_k (-1: all tokens), min_p in [0, 1].
            do_sample: False means greedy, which is the default without a config of one's own. A
                temperature above 0, a filter or a seed samples all the same; beside
                `do_sample=False` in one call they are refused. With temperature 0 filters and seeds
                change nothing.
            max_tokens: tokens to generate at most, a row. n: samples a prompt (a warning where they
                are greedy, and so all the same).
            min_tokens: no EOS, stop id or stop string before so many (Transformers' rule).
            stop: a string or several; the answer ends before it.
            stop_token_ids: ids that end an answer, besides the model's own EOS ids.
            ignore_eos: go on past EOS; `stop` and `stop_token_ids` still count.
            presence_penalty, frequency_penalty: in [-2, 2], over generated tokens (OpenAI's).
            repetition_penalty: above 0, over prompt and generated tokens (Transformers' rule).
            logit_bias: `{token id: number}`, in [-100, 100], added to the logits before all else.
            seed: the same tokens each time, whatever else is in the batch (float32 on a CPU); of
                one seed for all, prompt i has (seed + i * 0x9E3779B97F4A7C15) % 2**63.
            json_schema (a dict or JSON text), regex: what the answer must match.
            chat_template_kwargs: for the template, e.g. `{"enable_thinking": False}`.
            truncate_prompt: "left" or "right", where a prompt above `prompt_length` is cut.
            skip_special_tokens: False keeps them, and the stop token, in the text.
            tools: schemas, verl tools or Python functions; those that can run do, inside the
                rollout, and a schema's call ends the row (docs/tools.md). [] means none.
            tools_kwargs, interaction_kwargs: verl's, e.g. `{"calculator": {"create_kwargs": {}}}`.
            max_tokens_per_turn: as max_tokens, for each turn; max_tokens counts all of them.
            logprobs: how many of the likeliest tokens to tell of each place (`top_logprobs`).
            prompt_logprobs: also score the prompt's tokens.
            timeout: seconds; past them the call is aborted in the engine.
            progress: a bar; by default on a terminal or in a notebook, if it takes long.
        All take a list too, one value a prompt (`stop`, `stop_token_ids`: a list of lists), but for
        n, tools, chat_template_kwargs, skip_special_tokens and the last three.

        Raises `PromptError` (which prompt), `ConfigError` (which keyword), both before anything is
        sent; `EngineDeadError` when the engine has died or was shut down; `GenerationTimeout`.
        """
        return self._generate(prompts, params)

    @names_keywords
    async def agenerate(self, prompts: Any, **params: Unpack[GenerateParams]) -> GenerationOutput:
        """`generate` for async code; cancelling it aborts it in the engine."""
        self._backend.check_process()  # a fork has none of the pool's threads
        cancel = CancelToken()
        context = contextvars.copy_context()  # a tool's call is let through where its row's is
        call = self._threads.submit(context.run, self._generate, prompts, params, cancel)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            cancel.cancel()
            raise

    def _generate(
        self, prompts: Any, params: GenerateParams, cancel: CancelToken | None = None
    ) -> GenerationOutput:
        call = self._prepare(prompts, params)
        if not call.prompts:
            return GenerationOutput.empty()
        if why := call.sampling.same_samples:
            warnings.warn(why, stacklevel=3)
        return self._decode(call, self._roll_out(call, cancel or CancelToken()))

    def _prepare(self, prompts: Any, params: GenerateParams) -> PreparedCall:
        """Messages, then parameters, then token ids, each of them checked."""
        conversations = normalize(prompts)
        sampling, plan = self._plan(params, len(conversations))
        limits = self._backend.model.limits.truncating(sampling.truncate_prompt)
        tokenized = tokenize(conversations, plan.template, limits)
        plan.check(tokenized)
        check_room(tokenized, [each.max_tokens for each in sampling.params], limits)
        return PreparedCall(tokenized, sampling, plan)

    def _plan(self, params: GenerateParams, prompts: int) -> tuple[Sampling, ConversationPlan]:
        backend = self._backend
        backend.check_process()
        sampling = resolve(params, self.config.rollout, prompts, backend.model)
        plan = ConversationPlan.of(
            sampling, self.config, backend.model, backend.tools, backend.interactions
        )
        return sampling, plan

    def _roll_out(self, call: PreparedCall, cancel: CancelToken) -> list[RequestOutput]:
        backend, sampling = self._backend, call.sampling
        cancel.expire_in(sampling.timeout)
        with self._stats.call(), progress(call.rows, sampling.progress) as report:
            if call.plan.rules is None:
                outputs = backend.generate(call.requests(), cancel, report)
            else:
                rows = call.plan.episodes(call.prompts, sampling)
                loop = functools.partial(hold, rows, backend, backend.interactions, report)
                outputs = backend.converse(loop, cancel)
        self._stats.add_rows(outputs)
        return outputs

    def _decode(self, call: PreparedCall, outputs: Sequence[RequestOutput]) -> GenerationOutput:
        width = self.config.rollout.response_length
        return decode(outputs, call.prompts, call.sampling, self.tokenizer, width)

    @names_keywords
    def stream(self, prompt: Any, **params: Unpack[GenerateParams]) -> Iterator[StreamChunk]:
        """Answer one prompt, chunk by chunk, with `generate`'s keywords (n is 1).

        The chunks' texts joined are the completion, their token ids the row's. Abandoning the
        iterator (break, an exception, garbage) aborts the request in the engine. Raises what
        `generate` does, for a wrong call before the first chunk is asked for.
        """
        return self._stream(prompt, params).chunks()

    @names_keywords
    def astream(self, prompt: Any, **params: Unpack[GenerateParams]) -> AsyncIterator[StreamChunk]:
        """`stream` for async code: `async for chunk in engine.astream(...)`."""
        return self._stream(prompt, params).achunks()

    def _stream(self, prompt: Any, params: GenerateParams) -> Stream:
        call = self._prepare(prompt, params)
        check_streamable(len(call.prompts), call.sampling)
        call.plan.check_one_turn(call.sampling)
        [request], backend = call.requests(), self._backend
        finish_reason = call.plan.finish_reason
        return Stream(
            backend.stream, request, call.sampling, finish_reason, self.tokenizer, self._stats
        )

    def score(self, prompts: Any, responses: Any) -> list[Score]:
        """How likely each given response is: its log probs, and whether greedy would say the same.

        prompts: as in `generate`; where the config has `truncate_prompt` they are cut as there,
            else they may be longer than `prompt_length`. responses: one each, in the same order, as
            text (encoded without special tokens) or as token ids; a single prompt takes a single
            response. An empty one has no log probs, and is greedy.

        Raises `PromptError`, also where prompt and response together are above `max_model_len`.
        """
        _, plan = self._plan({}, 1)
        limits = self._backend.model.limits
        sequences = scored_sequences(prompts, responses, plan.template, self.tokenizer, limits)
        with self._stats.call():
            return scores(sequences, self._backend.score(sequences, CancelToken()))

    def get_logprobs(self, prompts: Any, responses: Any) -> list[list[float]]:
        """`score`'s log probs alone: one float a response token, the log of softmax(logits)."""
        return [row.logprobs for row in self.score(prompts, responses)]

    def parse_tool_calls(
        self, text: str, *, format: str | None = None, tools: Sequence[Any] | None = None
    ) -> list[ToolCall]:
        """The tool calls that `text` holds, in order.

        format: how they are written (docs/tools.md lists the names); by default
            `rollout.multi_turn.format`. tools: as in `generate`, for the formats that need to know
            them; by default the config's.
        """
        given = self._backend.tools if tools is None else as_tools(tools)
        return parse(text, format or self.config.rollout.multi_turn.format, given).calls

    @names_keywords
    def rollout_batch(
        self, prompts: Any, *, uid: Any = None, extra: Any = None, **params: Unpack[GenerateParams]
    ) -> DataProto:
        """`generate`, as what a verl trainer consumes: a `DataProto`, `n` rows a prompt.

        uid: a list or an array, one a prompt, kept; by default new ones. extra: columns to pass
        through, `{"data_source": [...], ...}`, one value a prompt, repeated for its rows.

        Tensors, P = `rollout.prompt_length` and R = `rollout.response_length` wide, so that
        batches concatenate: `prompts` (rows x P, padded left), `responses` and `response_mask`
        (rows x R, padded right; 1 = sampled), `input_ids`, `attention_mask`, `position_ids` (rows x
        (P + R)), `rollout_log_probs` (rows x R, 0 where the mask is 0). In `non_tensor_batch`:
        `uid` (one a prompt: its group of samples), `completions`, `prompt_index`,
        `finish_reason`, `weight_version` and, after tools or interactions, `messages`,
        `reward_scores` and `__num_turns__` (verl's names).

        Raises what `generate` does; `ConfigError` where `max_tokens` is above R, where `n` is
        above 1 and a prompt greedy (rows that are all the same have no advantage), or where
        `uid` or a column of `extra` has another length, or a name that the batch has itself.
        """
        call = self._prepare(prompts, params)
        if why := call.sampling.same_samples:
            raise ConfigError(why)
        rollout = self.config.rollout
        widths = rollout.prompt_length, rollout.response_length
        check_batch(call.prompts, [each.max_tokens for each in call.sampling.params], widths)
        columns = given_columns(uid, extra, len(call.prompts))
        outputs = self._roll_out(call, CancelToken())
        pad, decoded = self.tokenizer.pad_token_id, self._decode(call, outputs)
        return trainer_batch(outputs, call.prompts, decoded, pad, widths, columns)

    def update_weights(self, weights: Any, *, version: int | None = None) -> int:
        """Serve new weights, and return their version, which every row's metadata names.

        weights: a Transformers module, its state dict, or pairs of (name, tensor), on any device,
            with all of the model's weights (of tied ones either or both); an iterator is drained
            first. The caller's tensors stay as they are.
        version: what to call them; by default one more than before.

        Calls in flight finish on the old weights, later ones wait: no row sees some of each. The
        prefix cache is emptied. Raises `ConfigError` (which name, which shape) before anything is
        sent: the old weights serve on.
        """
        return self._backend.update_weights(weights, version)

    def sleep(self) -> SleepResult:
        """Give the accelerator's memory back, until `wake_up`; calls in flight finish first.

        Returns how many bytes came free (on a CPU none, and its `note` says so). Meanwhile calls
        raise `InferenceError`. Raises `ConfigError` without `rollout.free_cache_engine: true`.
        """
        return self._backend.sleep()

    def wake_up(self) -> None:
        """Take the memory again and serve the same weights; nothing where it is awake."""
        self._backend.wake_up()

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
        """Stop the engine and its child processes; safe to call twice. In a fork: nothing."""
        self._finalizer()

    def __enter__(self) -> InferenceEngine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
