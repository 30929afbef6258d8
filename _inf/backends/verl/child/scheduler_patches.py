"""The table of all patches of SGLang, psutil and torch in the scheduler's process.

A row names what is replaced, the function of this folder that replaces it, the file of sglang 0.5.9
(under `srt/`), and the reason.
"""

from __future__ import annotations

import functools
from pathlib import Path

import psutil
import torch.distributed
from sglang.srt.constrained.grammar_manager import GrammarManager
from sglang.srt.layers import sampler
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.moe.routed_experts_capturer import _RoutedExpertsHostCache
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.layers.rotary_embedding import DynamicNTKScalingRotaryEmbedding, RotaryEmbedding
from sglang.srt.layers.sampler import Sampler
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang.srt.models.commandr import CohereAttention
from sglang.srt.models.gemma import GemmaForCausalLM
from sglang.srt.sampling.penaltylib import BatchedPenalizerOrchestrator
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.utils import is_cuda

from _inf.backends.verl.child import (
    drawing,
    fair_scheduling,
    fewer_operators,
    finishing,
    grammar_fixes,
    heartbeat,
    model_files,
    model_fixes,
    packed_linear,
    repetition,
    scheduler,
    weight_loading,
)
from _inf.backends.verl.child.setup import exit_instead_of_sigquit, meet_in_a_file
from _inf.backends.verl.patch_table import Replace, Wrap


def patches(folder: Path, *, trust_remote_code: bool, pack_weights: bool) -> list[Replace]:
    """Return the table. `folder`: the engine's folder, for the processes' rendezvous file."""
    meet = functools.partial(meet_in_a_file, folder / "rendezvous")
    load = functools.partial(weight_loading.load_checked, trust_remote_code)
    # fmt: off
    return [
        *(packing() if pack_weights else ()),
        *(kernels_on_a_gpu() if is_cuda() else ()),
        Wrap(psutil.Process, "send_signal", exit_instead_of_sigquit,
             "managers/scheduler.py",
             "a child that fails sends SIGQUIT to its parent, which kills the caller's process"),
        Wrap(torch.distributed, "init_process_group", meet,
             "distributed/parallel_state.py",
             "the schedulers' rendezvous listens on every interface"),
        Replace(model_files.registry.ModelRegistry, "models",
                model_files.ModelClasses(model_files.registry.ModelRegistry.models),
                "models/registry.py",
                "it imports the files of all models, and wandb and timm with them, to serve one"),
        Wrap(Scheduler, "run_batch", heartbeat.touch_log,
             "managers/scheduler_output_processor_mixin.py",
             "its messages are too few to tell a slow scheduler from one that hangs"),
        Wrap(Scheduler, "init_tokenizer", scheduler.with_tokenizer,
             "managers/scheduler.py",
             "without a tokenizer the scheduler dies of stop strings and min_new_tokens"),
        Wrap(GrammarManager, "__init__", scheduler.with_tokenizer,
             "constrained/grammar_manager.py", "without a tokenizer there are no grammars"),
        Wrap(Scheduler, "init_tokenizer", scheduler.with_cached_eos,
             "managers/schedule_batch.py",
             "it asks Transformers for the EOS id in each step and row, which is slow"),
        Wrap(Req, "__init__", finishing.check_what_it_asks_for,
             "managers/schedule_batch.py",
             "it ends rows with grammars, stop strings or stop tokens too late or too early"),
        Wrap(SamplingBatchInfo, "update_regex_vocab_mask", grammar_fixes.leave_a_token,
             "sampling/penaltylib/min_new_tokens.py",
             "it rules out the only tokens that a grammar has left"),
        Wrap(BatchedPenalizerOrchestrator, "__init__", repetition.add_penalizer,
             "sampling/penaltylib", "nothing applies repetition_penalty"),
        Wrap(SamplingBatchInfo, "apply_logits_bias", repetition.penalize_last,
             "sampling/sampling_batch_info.py",
             "its penalties come before a logit_bias; Transformers' repetition_penalty after it"),
        Wrap(sampler, "sampling_from_probs_torch", drawing.sample,
             "layers/sampler.py",
             "torch.multinomial draws a random number for each token of the vocabulary, on one "
             "core; on a GPU a row of NaN ends the process"),
        Wrap(sampler, "top_k_top_p_min_p_sampling_from_probs_torch", drawing.sample_filtered,
             "layers/sampler.py", "it sorts the whole vocabulary to keep a few tokens"),
        Wrap(Sampler, "_sample_from_probs", drawing.sample_own_rows,
             "layers/sampler.py",
             "seeds need deterministic inference, which a CPU does not have; it does not say which "
             "tokens the filters leave, and beside min_p a GPU filters one after the other"),
        Wrap(_RoutedExpertsHostCache, "__init__", scheduler.unpinned_without_a_gpu,
             "layers/moe/routed_experts_capturer.py",
             "its buffer is in pinned memory, which torch cannot allocate without a GPU"),
        Wrap(Sampler, "_attach_logprobs_to_output", drawing.return_kept,
             "layers/sampler.py", "it does not say which tokens the filters leave"),
        Wrap(Sampler, "_sample_from_probs", drawing.sample_beside_nan,
             "layers/sampler.py",
             "a row whose logits are NaN ends the whole process when it is sampled"),
        Wrap(SamplingBatchInfo, "from_schedule_batch", scheduler.temperature_of_top_k_1,
             "sampling/sampling_batch_info.py",
             "a batch of top_k=1 rows counts as greedy, and their log probs lose the temperature "
             "that they have beside any other row"),
        Wrap(SamplingBatchInfo, "from_schedule_batch", scheduler.penalties_of_retracted_rows,
             "sampling/penaltylib",
             "a row that was taken out of a full cache and starts again with its generated tokens "
             "gets the penalties and min_new_tokens of a row that has generated nothing"),
        Wrap(SchedulePolicy, "calc_priority", fair_scheduling.take_turns,
             "managers/schedule_policy.py", "a call after 1,000 rows waits for all of them"),
        Wrap(DefaultModelLoader, "load_weights_and_postprocess", load,
             "model_loader/loader.py and load_weights of models/",
             "a weight that a class does not know is silently dropped, and a parameter for which "
             "no weight was loaded keeps whatever was in memory"),
        Wrap(ModelRunner, "update_weights_from_tensor", weight_loading.answer_a_refused_update,
             "managers/scheduler_update_weights_mixin.py",
             "an exception in an update ends the process"),
        Replace(DynamicNTKScalingRotaryEmbedding, "_compute_cos_sin_cache",
                RotaryEmbedding._compute_cos_sin_cache,
                "layers/rotary_embedding.py",
                "it uses the base of the longest context for every row; Transformers uses the "
                "model's own up to max_position_embeddings, and `support` refuses longer rows"),
        Wrap(RMSNorm, "forward_native", fewer_operators.normalize,
             "layers/layernorm.py", "on a CPU it is eight operators, for a few numbers each"),
        Wrap(RotaryEmbedding, "forward_native", fewer_operators.rotate,
             "layers/rotary_embedding.py", "on a CPU it is 40 operators, for a few numbers each"),
        Wrap(LogitsProcessor, "_compute_lm_head", model_fixes.add_head_bias,
             "layers/logits_processor.py", "the bias of a head (Phi's) is left out"),
        Wrap(CohereAttention, "__init__", model_fixes.cohere_with_its_own_window,
             "models/commandr.py", "a token of Cohere 2 sees one token more than its window has"),
        Wrap(GemmaForCausalLM, "__init__", model_fixes.gemma_with_its_own_gelu,
             "models/gemma.py",
             "Gemma 1 always computes the exact GELU, where its config names the tanh one"),
    ]
    # fmt: on


def kernels_on_a_gpu() -> list[Replace]:
    from _inf.backends.verl.child import cuda_kernels  # imports what no CPU needs

    return cuda_kernels.rows()


def packing() -> list[Replace]:
    """The rows that multiply by packed weights, before those that correct the same functions."""
    # fmt: off
    return [
        Wrap(UnquantizedLinearMethod, "apply", packed_linear.packed_linear,
             "layers/quantization/unquant.py", "its products on a CPU do not use packed weights"),
        Wrap(LogitsProcessor, "_compute_lm_head", packed_linear.packed_head,
             "layers/logits_processor.py", "its products on a CPU do not use packed weights"),
        *(Wrap(ModelRunner, method, packed_linear.with_plain_weights,
               "model_executor/model_runner.py", "it reads or changes weights, which are packed")
          for method in ("update_weights_from_tensor", "update_weights_from_disk",
                         "update_weights_from_distributed", "update_weights_from_ipc",
                         "get_weights_by_name", "save_sharded_model", "save_remote_model",
                         "check_weights")),
    ]
    # fmt: on
