"""The table of all patches of SGLang, psutil and torch in the scheduler's process, and why.

Files are those of sglang 0.5.9, under `srt/`.
"""

from __future__ import annotations

import functools
from pathlib import Path

from sglang.srt.layers.rotary_embedding import RotaryEmbedding
from sglang.srt.utils import is_cuda

from _inf.backends.verl.child import (
    drawing,
    fair_scheduling,
    grammar_fixes,
    lazy_zeros,
    lora,
    model_code,
    model_files,
    packed_linear,
    penalties,
    scheduler,
    weight_loading,
)
from _inf.backends.verl.patch_table import Replace, Wrap


def patches(folder: Path, *, trust_remote_code: bool, pack_weights: bool) -> list[Replace]:
    """Return the table. `folder`: the engine's folder, for the processes' rendezvous file."""
    meet = functools.partial(scheduler.meet_in_a_file, folder / "rendezvous")
    load = functools.partial(weight_loading.load_checked, trust_remote_code)
    # fmt: off
    return [
        *(packing() if pack_weights else ()),
        *(kernels_on_a_gpu() if is_cuda() else ()),
        Wrap("psutil:Process.send_signal", scheduler.exit_instead_of_sigquit,
             "managers/scheduler.py: a child that fails sends SIGQUIT to its parent, which kills "
             "the caller's process"),
        Wrap("torch.distributed:init_process_group", meet,
             "distributed/parallel_state.py: the schedulers' rendezvous listens on every "
             "interface"),
        Replace("sglang.srt.models.registry:ModelRegistry.models",
                model_files.ModelClasses(model_files.registry.ModelRegistry.models),
                "it imports the files of all models, and wandb and timm with them, to serve one"),
        Wrap("sglang.srt.managers.scheduler:Scheduler.run_batch", scheduler.touch_log,
             "managers/scheduler_output_processor_mixin.py: its messages are too few to tell a "
             "slow scheduler from one that hangs: between two may be 50 tokens of each row and "
             "the prefill of all waiting rows, or minutes on a slow CPU"),
        Wrap("sglang.srt.managers.scheduler:Scheduler.maybe_sleep_on_idle",
             scheduler.sleep_without_work,
             "if all running rows end at once, its loop finds no batch once, and it sleeps for up "
             "to a second before the rows that wait"),
        Wrap("sglang.srt.managers.scheduler:Scheduler.init_tokenizer", scheduler.with_tokenizer,
             "without a tokenizer the scheduler dies of stop strings and min_new_tokens"),
        Wrap("sglang.srt.constrained.grammar_manager:GrammarManager.__init__",
             scheduler.with_tokenizer, "without a tokenizer there are no grammars"),
        Wrap("sglang.srt.managers.scheduler:Scheduler.init_tokenizer", scheduler.with_cached_eos,
             "managers/schedule_batch.py asks Transformers (4.57.1) for the EOS id in each step "
             "and row, which finds the token's name and then its id anew each time"),
        Wrap("sglang.srt.managers.schedule_batch:Req.__init__", scheduler.check_what_it_asks_for,
             "it ends rows with grammars, stop strings or stop tokens too late or too early"),
        Wrap("sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo.update_regex_vocab_mask",
             grammar_fixes.leave_a_token,
             "sampling/penaltylib/min_new_tokens.py rules out the only tokens that a grammar has "
             "left"),
        Wrap("sglang.srt.sampling.penaltylib:BatchedPenalizerOrchestrator.__init__",
             penalties.add_penalizers,
             "repetition_penalty is validated, and nothing applies it; min_new_tokens is slow"),
        Wrap("sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo.apply_logits_bias",
             penalties.penalize_last,
             "its penalties come before a logit_bias; Transformers' repetition_penalty after it"),
        Wrap("sglang.srt.layers.sampler:sampling_from_probs_torch", drawing.sample,
             "torch.multinomial draws a random number for each token of the vocabulary, on one "
             "core; on a GPU a row of NaN ends the process"),
        Wrap("sglang.srt.layers.sampler:top_k_top_p_min_p_sampling_from_probs_torch",
             drawing.sample_filtered, "it sorts the whole vocabulary to keep a few tokens"),
        Wrap("sglang.srt.layers.sampler:Sampler._sample_from_probs", drawing.sample_own_rows,
             "seeds need deterministic inference, which a CPU does not have; it does not say which "
             "tokens the filters leave, and beside min_p a GPU filters one after the other"),
        Wrap("sglang.srt.layers.moe.routed_experts_capturer:_RoutedExpertsHostCache.__init__",
             scheduler.unpinned_without_a_gpu,
             "its buffer is in pinned memory, which torch cannot allocate without a GPU"),
        Wrap("sglang.srt.layers.sampler:Sampler._attach_logprobs_to_output", drawing.return_kept,
             "it does not say which tokens the filters leave"),
        Wrap("sglang.srt.layers.sampler:Sampler._sample_from_probs", drawing.sample_beside_nan,
             "a row whose logits are NaN ends the whole process when it is sampled"),
        Wrap("sglang.srt.layers.sampler:Sampler._sample_from_probs", drawing.raise_zeros,
             "its logarithm of probabilities is slow on a CPU where a grammar or a low temperature "
             "leaves zeros"),
        Wrap("sglang.srt.layers.sampler:Sampler._attach_logprobs_to_output", drawing.return_zeros,
             "the other half of the row above"),
        Wrap("sglang.srt.layers.sampler:Sampler._sync_token_ids_across_tp",
             drawing.agree_with_others,
             "beside a grammar one rank, too, agrees on each step's tokens with itself"),
        Wrap("sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo.from_schedule_batch",
             scheduler.temperature_of_top_k_1,
             "a batch of top_k=1 rows counts as greedy, and their log probs lose the temperature "
             "that they have beside any other row"),
        Wrap("sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo.from_schedule_batch",
             penalties.penalties_of_retracted_rows,
             "sampling/penaltylib: a row that was taken out of a full cache and starts again with "
             "its generated tokens gets the penalties and min_new_tokens of a row that has "
             "generated nothing"),
        Wrap("sglang.srt.managers.schedule_policy:SchedulePolicy.calc_priority",
             fair_scheduling.take_turns,
             "all calls share one queue: a call after 1,000 rows waits for all of them, and its "
             "priorities can only put a call always first"),
        Wrap("sglang.srt.model_loader.loader:DefaultModelLoader.load_weights_and_postprocess",
             load,
             "load_weights of models/ silently drops a weight that a class does not know, and a "
             "parameter for which no weight was loaded keeps whatever was in memory"),
        Wrap("sglang.srt.model_executor.model_runner:ModelRunner.update_weights_from_tensor",
             weight_loading.answer_a_refused_update,
             "managers/scheduler_update_weights_mixin.py: an exception in an update ends the "
             "process"),
        Replace("sglang.srt.layers.rotary_embedding:"
                "DynamicNTKScalingRotaryEmbedding._compute_cos_sin_cache",
                RotaryEmbedding._compute_cos_sin_cache,
                "it uses the base of the longest context for every row; Transformers uses the "
                "model's own up to max_position_embeddings, and `support` refuses longer rows"),
        Wrap("sglang.srt.lora.layers:BaseLayerWithLoRA.__init__", lora.with_its_bias,
             "load_weights of models/ finds no bias of a layer that can have adapters, and dies"),
        Wrap("sglang.srt.layers.layernorm:RMSNorm.forward_native", model_code.normalize,
             "on a CPU it is eight operators, for a few numbers each"),
        Wrap("sglang.srt.mem_cache.memory_pool:MHATokenToKVPool._create_buffers",
             functools.partial(lazy_zeros.create_lazily, folder),
             "on a CPU it writes zeros to the whole cache, for a second at each start"),
        Wrap("sglang.srt.layers.activation:SiluAndMul.forward_native", model_code.silu_and_mul,
             "on a CPU it is two operators and a copy"),
        Wrap("sglang.srt.layers.rotary_embedding:RotaryEmbedding.forward_native",
             model_code.rotate, "on a CPU it is 40 operators, for a few numbers each"),
        Wrap("sglang.srt.layers.logits_processor:LogitsProcessor._compute_lm_head",
             model_code.add_head_bias, "the bias of a head (Phi's) is left out"),
        Wrap("sglang.srt.models.commandr:CohereAttention.__init__",
             model_code.cohere_with_its_own_window,
             "a token of Cohere 2 sees one token more than its window has"),
        Wrap("sglang.srt.models.gemma:GemmaForCausalLM.__init__",
             model_code.gemma_with_its_own_gelu,
             "Gemma 1 always computes the exact GELU, where its config names the tanh one"),
    ]
    # fmt: on


def kernels_on_a_gpu() -> list[Replace]:
    """Rows that replace kernels by those that are compiled in sgl-kernel's wheel."""
    import sgl_kernel  # none of it is needed on a CPU
    import triton.language

    needs_toolkit = "it is compiled at first use, for which CUDA's toolkit and ninja are needed"
    accumulate = functools.partial(model_code.accumulate_in_float32, triton.language.float32)
    # fmt: off
    return [
        Replace("sglang.srt.layers.rotary_embedding:apply_rope_with_cos_sin_cache_inplace",
                sgl_kernel.apply_rope_with_cos_sin_cache_inplace, needs_toolkit),
        Replace("sglang.jit_kernel.pos_enc:rotary_embedding", sgl_kernel.rotary_embedding,
                f"{needs_toolkit}; for head sizes that the other kernel lacks"),
        *(Wrap(f"sglang.srt.layers.layernorm:{norm}.forward_cuda", model_code.native_in_float32,
               "sgl-kernel has no kernel of it for float32")
          for norm in ("RMSNorm", "GemmaRMSNorm")),
        Wrap("sglang.srt.layers.moe.fused_moe_triton.fused_moe:invoke_fused_moe_kernel",
             accumulate,
             "layers/moe/moe_runner/triton.py accumulates every dtype but bfloat16 in float16"),
    ]
    # fmt: on


def packing() -> list[Replace]:
    """The rows that multiply by packed weights, before those that correct the same functions."""
    # fmt: off
    return [
        Wrap("sglang.srt.layers.quantization.unquant:UnquantizedLinearMethod.apply",
             packed_linear.packed_linear, "its products on a CPU do not use packed weights"),
        Wrap("sglang.srt.layers.logits_processor:LogitsProcessor._compute_lm_head",
             packed_linear.packed_head, "its products on a CPU do not use packed weights"),
        Wrap("sglang.srt.model_executor.model_runner:ModelRunner.update_weights_from_tensor",
             packed_linear.with_plain_weights, "it changes weights, which are packed"),
    ]
    # fmt: on
