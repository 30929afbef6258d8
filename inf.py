"""Run a language model with verl's rollout, `SGLangRollout`, with Transformers, or on a server.

    from inf import InferenceEngine

    with InferenceEngine() as engine:
        print(engine.generate("What is the capital of France?").completions[0])

`_inf.request` turns prompts into token ids, `_inf.backends` generates, `_inf.response` decodes.
"""

from __future__ import annotations

import importlib
import os
import warnings
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from _inf import __version__ as __version__
from _inf.backends import base, registry, updates
from _inf.backends.features import check_parts, check_supported
from _inf.config import Config
from _inf.conversation.configured import Configured
from _inf.errors import (
    ConfigError,
    EngineDeadError,
    GenerationTimeout,
    InferenceError,
    PromptError,
    ToolError,
)
from _inf.parts.adapters import check_loaded
from _inf.parts.found import readers
from _inf.parts.typed import GenerateParams
from _inf.request.call import PreparedCall, tokenize_call, with_parts
from _inf.request.keywords import names_keywords
from _inf.request.prompts import Form, normalize
from _inf.request.sampling import resolve, with_sampling_params
from _inf.request.special_tokens import escaped_json
from _inf.request.template import template_of
from _inf.request.values import one_of
from _inf.response.decode import decode
from _inf.response.output import GenerationOutput
from _inf.response.row import GenerationRow
from _inf.response.scores import Score, likeliest_tokens, scored_sequences, scores
from _inf.response.stats import Stats
from _inf.response.streaming import Stream, StreamChunk
from _inf.response.thoughts import thoughts_of
from _inf.runtime.calls import AwaitedCalls, CancelToken
from _inf.runtime.extras import require_verl
from _inf.runtime.progress import progress
from _inf.types import Prompt, Scored, SleepResult, ToolCall

T = TypeVar("T")

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self, Unpack
    from verl import DataProto

    from _inf.apps.check.measure import check
    from _inf.apps.eval.evaluate import evaluate
    from _inf.apps.ray.worker import InferenceWorker
    from _inf.apps.rollouts import (
        Rollout,
        as_rollouts,
        load_rollouts,
        load_traces,
        rollouts_to_data_proto,
        save_rollouts,
    )
    from _inf.apps.rollouts.traces import Trace
    from _inf.apps.runs import Run, load_run
    from _inf.apps.serve.server import InferenceServer

__all__ = ["Config", "GenerateParams", "GenerationOutput", "GenerationRow", "InferenceEngine"]
__all__ += ["InferenceWorker", "Rollout", "Score", "StreamChunk", "ToolCall", "check", "evaluate"]
__all__ += ["as_rollouts", "load_rollouts", "load_traces", "rollouts_to_data_proto"]
__all__ += ["save_rollouts", "ToolError", "ConfigError", "EngineDeadError", "GenerationTimeout"]
__all__ += ["InferenceError", "PromptError", "Run", "load_run"]
# Names that are imported when they are first used, from these modules of `_inf.apps`; those that
# are not here come from the same as `Rollout`.
LATER = {"InferenceWorker": "ray.worker", "check": "check.measure", "evaluate": "eval.evaluate"}
LATER |= {"Rollout": "rollouts", "Run": "runs", "load_run": "runs"}


def __dir__() -> list[str]:
    return [*__all__, "__version__", "__doc__"]


def __getattr__(name: str) -> Any:
    """Import on its first use what most programs do not need."""
    if name in __all__:
        module = LATER.get(name, LATER["Rollout"])
        return getattr(importlib.import_module(f"_inf.apps.{module}"), name)
    raise AttributeError(f"module 'inf' has no attribute {name!r}")


class InferenceEngine:
    """A model on verl's rollout and SGLang, on Transformers, or on a server (`rollout.name`).

    config: a path to a YAML file, a mapping, or None. `overrides` are merged over it, deeply:
        `InferenceEngine("config.yaml", rollout={"dtype": "float32"})`. Without a `model_path` it
        is the embedded model (SmolLM2-135M-Instruct, no download, any machine), with defaults of
        its own (docs/config.md).

    Use it as a context manager; it also stops with `shutdown`, when garbage-collected and at
    interpreter exit. Threads, `async` code and notebooks can share it; a call in a fork raises.

    Attributes: `config` (frozen); `supports`, the backend's features beyond `generate`
    (docs/backends.md); `on_cpu`, whether it computes on a CPU; `tokenizer` (Transformers'; None if
    a server tokenizes); `model`, with the EOS ids and limits; `model_folder`, with the model's
    files; and verl's `model_config` (`HFModelConfig`) and `rollout` (`SGLangRollout`), None without
    verl. Raises `ConfigError`, `EngineDeadError` if the engine dies while it starts, and
    `InferenceError` in a process that cannot have an engine (daemonic, or a fork of a process that
    had one).
    """

    def __init__(
        self,
        config: str | os.PathLike[str] | Mapping[str, Any] | Config | None = None,
        **overrides: Any,
    ) -> None:
        self.config: Config = registry.read_config(config, overrides)
        registry.describe(self.config).prepare(self.config)
        self._stats = Stats()
        self._awaited = AwaitedCalls()
        self._configured = Configured(self.config)
        weakref.finalize(self, self._configured.close)
        try:
            self._launch()
        except BaseException:
            self._configured.close()
            raise

    @classmethod
    def from_verl(
        cls,
        source: str | os.PathLike[str] | Mapping[str, object],
        overrides: Mapping[str, object] | Iterable[str] | None = None,
    ) -> Self:
        """Start the engine of a verl trainer's config (docs/verl.md).

        source: the path of a YAML file as Hydra composes it (`.hydra/config.yaml` of a run), a
            mapping or an OmegaConf node; the whole config, or its `actor_rollout_ref`.
        overrides: over it, deep or as assignments (`["rollout.n=4", "data.truncation=left"]`).
        The keys of the trainer are left out, and listed in `engine.config.source`: its
        parallelism, `load_format: dummy`, `free_cache_engine`. Raises `ConfigError` with all keys
        that would change an answer and have no equal here.
        """
        return cls(registry.read_trainers_config(source, overrides))

    def _launch(self) -> None:
        self._backend, self.config = registry.launch(self.config, self._stats)
        self._finalizer = weakref.finalize(self, self._backend.close)
        self._readers = readers(self.config)
        self.supports, self.on_cpu = self._backend.supports, self._backend.on_cpu
        self.model, self.model_folder = self._backend.model, self._backend.model.folder
        self.rollout: Any = getattr(self._backend, "rollout", None)
        self.model_config: Any = getattr(self.rollout, "model_config", None)
        self.tokenizer: Any = self.model.tokenizer
        self._thoughts = thoughts_of(self.config, self.model)

    @names_keywords
    def generate(
        self, prompts: object, sampling_params: object = None, **params: Unpack[GenerateParams]
    ) -> GenerationOutput:
        """Answer `prompts`; rows are returned in order, prompt-major.

        prompts: one or a list (an array, a Series, a column) of these forms, in any mixture:
            `"text"` (one user message), a list of messages (a conversation; `{"role", "content"}`
            or objects with these), `{"prompt_token_ids": [...]}`, `{"text": "..."}` (text without
            the chat template), or a row that `pause("abort")` ended, which is continued
            (docs/training.md). An empty list gives an empty output. If the chat template does not
            show the role `developer`, it becomes `system`. A message that the template leaves out
            is refused; for an assistant's text there is a warning instead. Special tokens in a text
            act as control tokens, as if the template had written them (`escape_special_tokens`).
        sampling_params: keywords as a dict, or an object with vLLM's fields; one without an equal
            here is refused, with the call to write. None means what the config says.

        Raises `PromptError` with the prompt's index or `ConfigError` with the keyword, before
        anything is sent; `EngineDeadError` after a death or a shutdown; and `GenerationTimeout`.
        """
        params = with_sampling_params("generate()", sampling_params, params)
        return self._generate(prompts, params, CancelToken())

    @names_keywords
    async def agenerate(
        self, prompts: Any, sampling_params: object = None, **params: Unpack[GenerateParams]
    ) -> GenerationOutput:
        """`generate` for async code; cancelling it aborts the requests in the engine."""
        params = with_sampling_params("agenerate()", sampling_params, params)
        self._backend.check_process()  # a fork lacks the threads
        return await self._awaited.run(lambda cancel: self._generate(prompts, params, cancel))

    def _offering(self, ability: type[T], call: str, **asked: object) -> T:
        """The backend, which has what this call needs."""
        check_supported(self._backend, {call: True, **asked})
        return cast(T, self._backend)

    def _generate(
        self, prompts: object, params: GenerateParams, cancel: CancelToken
    ) -> GenerationOutput:
        call = self._prepare(prompts, params)
        if not call.prompts:
            return GenerationOutput()
        if why := call.sampling.same_samples:
            warnings.warn(why, stacklevel=3)
        return self._roll_out(call, cancel)

    def _prepare(self, prompts: object, params: GenerateParams) -> PreparedCall:
        """Check a call completely: its prompts, then its keywords, then its token ids."""
        on_error = params.get("on_error")
        if isinstance(on_error, str) and on_error == "row":
            from _inf.parts.failures.calls import prepare_each

            return prepare_each(self._checked, prompts, params, self._readers)
        forms = normalize(prompts, self._readers)
        return self._checked(forms, params, range(len(forms)))

    def _checked(
        self, forms: Sequence[Form], params: GenerateParams, indexes: Sequence[int]
    ) -> PreparedCall:
        """Check the keywords, then render and tokenize. indexes: the prompts' numbers."""
        check_supported(self._backend, params)
        sampling = resolve(
            params, self.config.rollout, indexes, self.model, self._configured.keywords
        )
        own = [form for form in forms if isinstance(form, Prompt)]
        if any(form.continues for form in own):
            check_supported(self._backend, {"generate(row)": True})
            from _inf.parts.continued.calls import continued

            sampling = continued(sampling, forms, self.model.limits)
        check_parts(self._backend, sampling.params)
        if sampling.has_turns(self._configured.tools):
            from _inf.conversation.turn_call import turn_call

            return turn_call(forms, sampling, indexes, self.config, self._configured, self.model)
        template = template_of(self.model, sampling.template_kwargs)
        tokenized = tokenize_call(forms, template, self.model.limits, sampling, indexes)
        whole = with_parts(sampling, tokenized, self.model)
        if whole is not sampling:
            check_parts(self._backend, whole.params)
        return PreparedCall(tokenized, whole, template)

    def _roll_out(self, call: PreparedCall, cancel: CancelToken) -> GenerationOutput:
        """Answer the rows, plain ones as one batch, and decode them."""
        cancel.expire_in(call.sampling.timeout)
        with self._stats.call(), progress(call.size, call.sampling.progress) as report:
            outputs = call.answers(self._backend, cancel, report)
        self._stats.add_rows(outputs, call.sampling.rows)
        for why in call.warnings(outputs):
            warnings.warn(why, stacklevel=4)
        width = self.config.rollout.response_length
        output = decode(outputs, call.prompts, call.sampling, self.tokenizer, width)
        if self._thoughts is None:
            return output
        return self._thoughts.split_rows(output, outputs, call.sampling)

    @names_keywords
    def stream(
        self, prompt: object, sampling_params: object = None, **params: Unpack[GenerateParams]
    ) -> Iterator[StreamChunk]:
        """Answer one prompt in chunks, with `generate`'s keywords (n is 1).

        The joined chunks are the row's text and token ids; a slow reader gets larger chunks.
        Closing the iterator aborts the request. A wrong call raises here, not at the first chunk.
        """
        params = with_sampling_params("stream()", sampling_params, params)
        return self._stream(prompt, params).chunks()

    @names_keywords
    def astream(
        self, prompt: Any, sampling_params: object = None, **params: Unpack[GenerateParams]
    ) -> AsyncIterator[StreamChunk]:
        """`stream` for async code: `async for chunk in engine.astream(...)`."""
        params = with_sampling_params("astream()", sampling_params, params)
        return self._stream(prompt, params).achunks()

    def _stream(self, prompt: object, params: GenerateParams) -> Stream:
        if params.get("n") is None:
            params = {**params, "n": 1}  # the config's is `generate`'s
        call = self._prepare(prompt, params)
        request, begin = call.streamed_request(), self._backend.stream
        of_call = (call.sampling, call.finish_reason, self.tokenizer, self._stats)
        return Stream(begin, request, *of_call, self._thoughts)

    def score(
        self,
        prompts: object,
        responses: object,
        *,
        top_logprobs: int | None = None,
        adapter: str | None = None,
    ) -> list[Score]:
        """Score given responses: their log probs, and whether greedy decoding would agree.

        prompts: as in `generate`; longer than `prompt_length` if the config does not truncate them.
        responses: one per prompt, in order, or one for a single prompt; as text (encoded without
            special tokens) or token ids.
        top_logprobs: how many of the likeliest tokens to return per position, as from a teacher.
        adapter: the name of the LoRA adapter that scores.
        Raises `PromptError`, also if prompt and response together exceed `max_model_len`.
        """
        backend = self._offering(base.Scoring, "score()", adapter=adapter)
        sequences = self._scored(prompts, responses, adapter)
        likeliest = likeliest_tokens(top_logprobs, self.model.limits.vocabulary)
        with self._stats.call():
            outputs = backend.score(sequences, CancelToken(), likeliest, adapter)
        return scores(sequences, outputs, tops=top_logprobs is not None)

    def _scored(self, prompts: Any, responses: Any, adapter: str | None) -> list[Scored]:
        check_loaded(self.adapters, [adapter])
        template = self._prepare([], {}).template  # of any call without keywords
        return scored_sequences(prompts, responses, template, self.model, self._readers)

    def get_logprobs(
        self, prompts: object, responses: object, *, adapter: str | None = None
    ) -> list[list[float]]:
        """Return only the log probs of `score`: log(softmax(logits)), one per response token."""
        return [row.logprobs for row in self.score(prompts, responses, adapter=adapter)]

    def get_logits(self, prompts: Any, responses: Any, *, adapter: str | None = None) -> Tensor:
        """Return float32 logits, responses x longest x vocabulary, padded with NaN (only `hf`)."""
        backend = self._offering(base.Logits, "get_logits()", adapter=adapter)
        sequences = self._scored(prompts, responses, adapter)
        return backend.logits(sequences, CancelToken(), adapter)

    def parse_tool_calls(
        self, text: str, *, format: str | None = None, tools: Sequence[Any] | None = None
    ) -> list[ToolCall]:
        """Return the tool calls in `text`, in order. format: one of docs/tools.md; tools: as in
        `generate`; both default to the config's."""
        return self._configured.tool_calls(text, format, tools)

    def escape_special_tokens(self, text: str) -> str:
        """Put a space into each special token of a text that you did not write, such as a document
        or a user's question, before you put it into a message: `<|im_end|>` would end the message
        there.

        Results of tools that `generate` runs are already escaped. Raises `ConfigError` without
        `tokenizer_path` if a server tokenizes, because its special tokens are then unknown.
        """
        if self.tokenizer is None:
            raise ConfigError.of(
                "tokenizer_path", "it must be set: the special tokens come from the tokenizer."
            )
        return str(escaped_json(text, self.tokenizer))

    @names_keywords
    def rollout_batch(
        self,
        prompts: Any,
        sampling_params: object = None,
        *,
        uid: Any = None,
        extra: Any = None,
        **params: Unpack[GenerateParams],
    ) -> DataProto:
        """`generate` for a verl trainer: returns a `DataProto` with `n` rows per prompt, whose
        columns docs/training.md lists.

        uid: a list or an array with an id per prompt; by default new ids.
        extra: columns to pass through, `{"data_source": [...], ...}`, with one value per prompt,
            repeated for its rows.

        Raises the exceptions of `generate`, and `ConfigError` about `uid`, `extra`, `max_tokens`
        above `rollout.response_length`, and rows of one prompt that would be the same.
        """
        params = with_sampling_params("rollout_batch()", sampling_params, params)
        check_supported(self._backend, {"rollout_batch()": True})
        require_verl("rollout_batch()")
        from _inf.response import trainer_batch as batches

        call = self._prepare(prompts, params)
        batches.check_batch(call.prompts, call.sampling, self.config.rollout.response_length)
        columns = batches.given_columns(uid, extra, len(call.prompts))
        output = self._roll_out(call, CancelToken())
        pad, widths = self.tokenizer.pad_token_id, self.config.rollout.widths
        batch = batches.trainer_batch(output, pad, widths, columns)
        return batches.with_parts(batch, output.rows, call.prompts, self.tokenizer)

    def trainer_batch(
        self,
        traces: Sequence[Trace],
        rewards: Sequence[float] | None = None,
        uid: Sequence[Any] | None = None,
    ) -> DataProto:
        """Return traces of a served engine as a `DataProto` with `rollout_batch`'s columns, and
        `rollout`, which is the same for all traces of a rollout (docs/serving.md).

        traces: from `server.traces`, a row each; keep their order within a session.
        rewards: one per trace, by default its own, or its rollout's if it has none.
        uid: one per trace, by default its task's; without a task, rollouts whose first traces have
            equal prompts share one.

        Raises `ConfigError` if a trace is wider than `prompt_length` or `response_length`.
        """
        require_verl("trainer_batch()")
        from _inf.apps.rollouts.traces import traces_to_data_proto

        of_model = (self.tokenizer, self.config.rollout.widths)
        return traces_to_data_proto(traces, rewards, uid, *of_model)

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str | None = None,
        adapter_folder: str | Path | None = None,
        traces: str | Path | None = None,
    ) -> InferenceServer:
        """Serve this engine over OpenAI's HTTP API until the `with` block ends (docs/serving.md).

        host: an address other than this machine's own needs an `api_key`.
        port: 0 takes a free one, which is in `server.base_url`.
        api_key: the key that requests must send.
        adapter_folder: requests may load LoRA adapters from folders below it; None: no adapters.
        traces: a file for the traces of sessions, which `inf.load_traces` reads.
        Raises `ConfigError` if it cannot listen there.
        """
        asked = {"serve()": True, "load_adapter()": adapter_folder}
        check_supported(self._backend, asked)
        from _inf.apps.serve.server import InferenceServer

        return InferenceServer(self, host, port, api_key, adapter_folder, traces)

    @property
    def weight_version(self) -> int:
        """The version of the weights in use; 0 until they are updated."""
        return self._backend.weight_version

    def pause(self, mode: str = "wait") -> None:
        """Make every later call wait until `resume`; returns when no more tokens are computed.

        mode: what happens to running rows. `wait`: they end normally first. `abort`: they return
            their partial output (`finish_reason` `abort`), while `score` finishes. `keep`: they
            stop between two tokens, and continue after `resume`.

        While paused, new weights, adapters, `sleep` and `shutdown` work (docs/training.md). If
        `pause` is interrupted, nothing is paused. Raises `InferenceError` in a tool.
        """
        self._offering(base.Pausing, "pause()").pause(one_of("mode", mode, base.PAUSES))

    def resume(self) -> None:
        """Continue the rows and calls that `pause` holds; does nothing if nothing is paused."""
        self._offering(base.Pausing, "resume()").resume()

    @property
    def paused(self) -> bool:
        """Whether calls wait for `resume`."""
        return self._backend.paused

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache: no later row uses keys and values that were computed before."""
        self._offering(base.Pausing, "reset_prefix_cache()").reset_prefix_cache()

    def update_weights(
        self,
        weights: object,
        *,
        version: int | None = None,
        running: str = "wait",
        recompute: bool = False,
    ) -> int:
        """Load new weights, and return their version, which is in every later row's metadata.

        weights: a Transformers module, its state dict, or pairs of (name, tensor), on any device,
            with all of the model's weights (docs/training.md). They are not changed.
        version: the number of these weights; by default one more than before.
        running: `wait`: running calls finish with the old weights and later calls wait, so no row
            mixes the two. `keep`: running rows use the new weights from their next token on
            (`weight_versions`). Rows that `pause("keep")` holds always do so.
        recompute: whether such rows compute the keys and values of their earlier tokens again.

        Raises `ConfigError` with the name and shape at fault before anything is sent.
        """
        backend = self._offering(base.Updating, "update_weights()")
        number, keep = updates.checked_update(self._backend, version, running, recompute)
        return backend.update_weights(weights, number, keep=keep, recompute=recompute)

    @property
    def adapters(self) -> list[str]:
        """The names of the LoRA adapters that `generate(adapter=...)` can take."""
        return self._backend.adapters

    def load_adapter(
        self,
        name: str,
        path_or_state_dict: object,
        *,
        peft_config: object = None,
        version: int | None = None,
    ) -> int:
        """Load a LoRA adapter next to the model's weights; return its version (docs/adapters.md).

        name: the name for `adapter=`; an adapter that has it is replaced.
        path_or_state_dict: a PEFT folder or a checkpoint of verl's LoRA actor, or the tensors that
            PEFT's `get_peft_model_state_dict` returns.
        peft_config: PEFT's `LoraConfig` or a mapping; by default the replaced adapter's.
        version: the number of its weights; by default 0 at first, then one more than before.

        Raises `ConfigError` about `adapters.NAME` before anything changes.
        """
        backend = self._offering(base.Adapting, "load_adapter()")
        number = updates.check_new_adapter(self.config, name, version)
        return backend.load_adapter(name, path_or_state_dict, peft_config, number)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter after the running calls have ended; raises `ConfigError`."""
        backend = self._offering(base.Adapting, "unload_adapter()")
        check_loaded(self.adapters, [name], "name")
        backend.unload_adapter(name)

    def sleep(self) -> SleepResult:
        """Free the accelerator's memory until `wake_up`; running calls finish first.

        Returns the freed bytes (on a CPU none, and `note` says so). Until `wake_up`, calls raise
        `InferenceError`. Raises `ConfigError` without `rollout.free_cache_engine: true`.
        """
        return self._offering(base.Sleeping, "sleep()").sleep()

    def wake_up(self) -> None:
        """Allocate the memory again and load the same weights; does nothing if already awake."""
        self._offering(base.Sleeping, "wake_up()").wake_up()

    @property
    def dead(self) -> bool:
        """Whether the engine has died or was shut down."""
        return self._backend.dead

    @property
    def closed(self) -> bool:
        """Whether `shutdown` was called; a dead engine that was not shut down can be restarted."""
        return not self._finalizer.alive

    def __repr__(self) -> str:
        name = type(self).__name__
        if "_finalizer" not in vars(self):
            return f"<{name}: not started>"
        where = registry.describe(self.config).where(self.config, self._backend)
        state = ", shut down" if self.closed else ", dead: restart() starts it" if self.dead else ""
        return f"<{name}: {self.config.model_name} ({where}){state}>"

    def __reduce__(self) -> Any:
        raise InferenceError(
            "An engine cannot be copied or sent to another process; make an InferenceEngine there, "
            "or send the prompts to this one."
        )

    def stats(self) -> dict[str, float]:
        """Totals since the start: `calls`, `requests` (rows), `prompt_tokens`, `completion_tokens`,
        `cached_tokens`, `generation_cache_hits` (rows and turns answered from memory), `restarts`,
        `busy_seconds`, and the `tokens_per_second` generated in those busy seconds."""
        return self._stats.snapshot()

    def clear_cache(self) -> None:
        """Forget the answers that `generation_cache` keeps, as new weights and `restart` do."""
        self._backend.clear()

    def restart(self) -> None:
        """Start a new engine in this process, with `model_path`'s weights (version 0)."""
        with registry.restarting(self.config):
            self._finalizer()
            self._launch()
        self._stats.add_restart()

    def shutdown(self) -> None:
        """Stop the engine and its child processes; safe to call twice; does nothing in a fork."""
        self._finalizer()
        self._configured.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
