"""Corrects the layers of SGLang's models where they compute something else than Transformers, and
computes RMSNorm, SiLU and rotary embedding in float32 on a CPU by one call of C each.

For one row a PyTorch operator takes microseconds to start and next to nothing to compute, and there
are ten thousand of them in a step.

And imports the file of the model that is served, and not all 160 that `models/registry.py` does:
their texts are searched for a class that is asked for, and all are imported only if none of them
names it. Importing this module imports SGLang's registry.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sglang.srt.models
import torch
from sglang.srt.environ import envs
from sglang.srt.layers.activation import GeluAndMul
from sglang.srt.layers.rotary_embedding import RotaryEmbedding
from sglang.srt.server_args import get_global_server_args

from _inf.backends.model_info import FLOAT32
from _inf.backends.verl.child.kernels import Kernels
from _inf.backends.verl.patch_table import Process, Replace, Wrap

if TYPE_CHECKING:
    from sglang.srt.layers.layernorm import GemmaRMSNorm, RMSNorm
    from sglang.srt.layers.logits_processor import InputLogprobsResult
    from sglang.srt.models.commandr import CohereAttention
    from sglang.srt.models.gemma import GemmaForCausalLM
    from transformers import PretrainedConfig

# Where a file says which of its classes are models: one name, or a list of names.
ENTRY_CLASS = re.compile(r"^EntryClass\s*=\s*(\w+|\[[^\]]*\])", re.MULTILINE)
FILES = {
    path.stem: path for folder in sglang.srt.models.__path__ for path in Path(folder).glob("*.py")
}
TANH_GELU = "gelu_pytorch_tanh"


@contextlib.contextmanager
def _only(files: Collection[str]) -> Iterator[None]:
    """Let SGLang import these files and no others; the setting is its own."""
    setting = envs.SGLANG_DISABLED_MODEL_ARCHS
    skipped = {*setting.get(), *(name for name in FILES if name not in files)}
    with setting.override(",".join(sorted(skipped))):
        yield


with _only(()), envs.SGLANG_EXTERNAL_MODEL_PACKAGE.override(""):
    from sglang.srt.models import registry as registry

if external := envs.SGLANG_EXTERNAL_MODEL_PACKAGE.get():
    registry.ModelRegistry.register(external, overwrite=True)  # all its files, as SGLang does


class ModelClasses(dict[str, type[torch.nn.Module]]):
    """The classes of models by name; to ask for a name imports the files that have it."""

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            self._import([file for file in FILES if name in entry_classes(file)] or FILES)
        return super().__contains__(name)

    def keys(self) -> Any:
        """Itself, because SGLang asks the view of the keys for names."""
        return self

    def _import(self, files: Collection[str]) -> None:
        with _only(files):
            self.update(registry.import_model_classes.__wrapped__(sglang.srt.models.__name__))


def entry_classes(file: str) -> list[str]:
    """The models that a file names, read from its text."""
    found = ENTRY_CLASS.search(FILES[file].read_text())
    return re.findall(r"\w+", found[1]) if found else []


def add_head_bias(
    compute: Callable[..., torch.Tensor],
    self: object,
    hidden_states: object,
    lm_head: torch.nn.Module,
    *args: object,
) -> torch.Tensor:
    logits = compute(self, hidden_states, lm_head, *args)
    bias = getattr(lm_head, "bias", None)
    return logits if bias is None else logits + bias


def list_each_row_once(
    compute: Callable[..., tuple[InputLogprobsResult, torch.Tensor]],
    self: object,
    *args: Any,
) -> tuple[InputLogprobsResult, torch.Tensor]:
    result, sampled_logits = compute(self, *args)
    tokens_of_rows = args[-1].extend_logprob_pruned_lens_cpu
    for listed in (result.input_top_logprobs_val, result.input_top_logprobs_idx):
        if listed is not None:
            with_tokens = filter(None, listed)
            listed[:] = [next(with_tokens) if n > 0 else [] for n in tokens_of_rows]
    return result, sampled_logits


def gemma_with_its_own_gelu(
    build: Callable[..., None],
    self: GemmaForCausalLM,
    config: PretrainedConfig,
    *args: object,
    **kwargs: object,
) -> None:
    build(self, config, *args, **kwargs)
    if config.hidden_act == TANH_GELU:
        for layer in self.model.layers:
            layer.mlp.act_fn = GeluAndMul("tanh")


def cohere_with_its_own_window(
    build: Callable[..., None], self: CohereAttention, *args: object, **kwargs: object
) -> None:
    build(self, *args, **kwargs)
    if self.sliding_window_size > 0:
        self.attn.sliding_window_size = self.sliding_window_size - 1  # without the token itself


def native_in_float32(
    forward: Callable[..., object],
    self: RMSNorm | GemmaRMSNorm,
    x: torch.Tensor,
    *others: object,
    **named: object,
) -> object:
    if x.dtype is torch.float32:
        return self.forward_native(x, *others, **named)
    return forward(self, x, *others, **named)


def tiles_that_fit(
    sizes: Callable[[int, int], tuple[int, ...]], width: int, value_width: int
) -> tuple[int, ...]:
    """A head in float32 takes as much memory as one of twice its width in half precision."""
    own = sizes(width, value_width)
    if get_global_server_args().dtype not in FLOAT32:
        return own
    rows_and_columns = sizes(2 * width, value_width)[3:5]
    return (*own[:3], *rows_and_columns, *own[5:])


def accumulate_in_float32(
    float32: object, invoke: Callable[..., None], a: torch.Tensor, *others: object, **named: object
) -> None:
    """float32: Triton's."""
    if a.dtype is torch.float32:
        named["compute_type"] = float32
    invoke(a, *others, **named)


def normalize(
    kernels: Kernels,
    forward: Callable[..., object],
    self: RMSNorm,
    x: torch.Tensor,
    residual: torch.Tensor | None = None,
    post_residual_addition: torch.Tensor | None = None,
) -> object:
    others = self.variance_size_override, self.override_orig_dtype, post_residual_addition
    odd = any(other is not None for other in others)
    tensors = x, self.weight, *(() if residual is None else (residual,))
    whole = x.shape[-1] == self.hidden_size and all(each.is_contiguous() for each in tensors)
    if odd or not whole or not all(map(_is_plain, tensors)):
        return forward(self, x, residual, post_residual_addition)
    both = kernels.normalize(x, residual, self.weight, self.variance_epsilon)
    return both[0] if residual is None else both


def rotate(
    kernels: Kernels,
    forward: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    self: RotaryEmbedding,
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    *others: object,
    **named: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    others_given = any(other is not None for other in (*others, *named.values()))
    odd = others_given or not self.is_neox_style
    numbered = positions.dim() == 1 and positions.dtype is torch.int64
    if odd or not numbered or not all(map(_is_plain, (query, key, self.cos_sin_cache))):
        return forward(self, positions, query, key, *others, **named)
    arguments = self.head_size, self.cos_sin_cache, positions
    return kernels.rotate(query, *arguments), kernels.rotate(key, *arguments)


def silu_and_mul(
    kernels: Kernels, forward: Callable[..., torch.Tensor], self: object, x: torch.Tensor
) -> torch.Tensor:
    if _is_plain(x) and x.is_contiguous():
        return kernels.silu_and_mul(x)
    return forward(self, x)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.dtype is torch.float32 and tensor.is_cpu


def patches(process: Process) -> list[Replace]:
    layers, kernels = "sglang.srt.layers", process.kernels
    # fmt: off
    in_c = [] if kernels is None else [
        Wrap(f"{layers}.activation:SiluAndMul.forward_native",
             functools.partial(silu_and_mul, kernels),
             "on a CPU it is two operators and a copy"),
        Wrap(f"{layers}.layernorm:RMSNorm.forward_native", functools.partial(normalize, kernels),
             "on a CPU it is eight operators, for a few numbers each"),
        Wrap(f"{layers}.rotary_embedding:RotaryEmbedding.forward_native",
             functools.partial(rotate, kernels),
             "on a CPU it is 40 operators, for a few numbers each"),
    ]
    return [
        *(() if process.device == "cpu" else gpu_patches()),
        *in_c,
        Replace("sglang.srt.models.registry:ModelRegistry.models",
                ModelClasses(registry.ModelRegistry.models),
                "it imports the files of all models, and wandb and timm with them, to serve one"),
        Replace(f"{layers}.rotary_embedding:DynamicNTKScalingRotaryEmbedding._compute_cos_sin_cache",
                RotaryEmbedding._compute_cos_sin_cache,
                "it uses the base of the longest context for every row; Transformers uses the "
                "model's own up to max_position_embeddings, and `support` refuses longer rows"),
        Wrap(f"{layers}.logits_processor:LogitsProcessor._compute_lm_head", add_head_bias,
             "the bias of a head (Phi's) is left out"),
        Wrap(f"{layers}.logits_processor:LogitsProcessor.process_input_logprobs_by_chunk",
             list_each_row_once,
             "layers/utils/logprob.py: where two pieces of a prefill meet at a row without log "
             "probs of its prompt, that row is listed twice, and the likeliest tokens of the next "
             "rows are another row's"),
        Wrap("sglang.srt.models.commandr:CohereAttention.__init__", cohere_with_its_own_window,
             "a token of Cohere 2 sees one token more than its window has"),
        Wrap("sglang.srt.models.gemma:GemmaForCausalLM.__init__", gemma_with_its_own_gelu,
             "Gemma 1 always computes the exact GELU, where its config names the tanh one"),
    ]
    # fmt: on


def gpu_patches() -> list[Replace]:
    """Rows that replace kernels by those that are compiled in sgl-kernel's wheel."""
    import sgl_kernel  # none of it is needed on a CPU
    import triton.language

    needs_toolkit = "it is compiled at first use, for which CUDA's toolkit and ninja are needed"
    # Newer wheels of sgl-kernel lack it.
    in_place = filter(None, [getattr(sgl_kernel, "apply_rope_with_cos_sin_cache_inplace", None)])
    accumulate = functools.partial(accumulate_in_float32, triton.language.float32)
    # fmt: off
    return [
        *(Replace("sglang.srt.layers.rotary_embedding:apply_rope_with_cos_sin_cache_inplace", each,
                  needs_toolkit)
          for each in in_place),
        Replace("sglang.jit_kernel.pos_enc:rotary_embedding", sgl_kernel.rotary_embedding,
                f"{needs_toolkit}; for head sizes that the other kernel lacks"),
        *(Wrap(f"sglang.srt.layers.layernorm:{norm}.forward_cuda", native_in_float32,
               "sgl-kernel has no kernel of it for float32")
          for norm in ("RMSNorm", "GemmaRMSNorm")),
        Wrap("sglang.srt.layers.attention.triton_ops.extend_attention:"
             "_get_block_sizes_for_extend_attention", tiles_that_fit,
             "its tiles are sized for half precision: in float32 those for heads of 128 need 192 "
             "KB of shared memory on an A100, which has 163, and 128 on an RTX 4090, which has 99"),
        Wrap("sglang.srt.layers.moe.fused_moe_triton.fused_moe:invoke_fused_moe_kernel",
             accumulate,
             "layers/moe/moe_runner/triton.py accumulates every dtype but bfloat16 in float16"),
    ]
    # fmt: on
