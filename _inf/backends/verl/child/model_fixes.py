"""What SGLang's model code computes differently from Transformers', corrected before it is used.

sglang 0.5.9, under `srt/`:

- `layers/rotary_embedding.py`: dynamic NTK scaling uses the base of the longest context for every
  row; Transformers uses the model's own base up to `max_position_embeddings`, above which
  `_inf.backends.verl.support` lets no row come;
- `layers/logits_processor.py`: the bias of a head (Phi's) is left out;
- `models/commandr.py`: a token of Cohere 2 sees one token more than its window has;
- `models/gemma.py`: Gemma 1 always computes the exact GELU, where its config names the tanh one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

TANH_GELU = "gelu_pytorch_tanh"


def fix_models() -> None:
    """Called once, in the scheduler's process, before the model is built."""
    from sglang.srt.layers.activation import GeluAndMul
    from sglang.srt.layers.logits_processor import LogitsProcessor
    from sglang.srt.layers.rotary_embedding import (
        DynamicNTKScalingRotaryEmbedding,
        RotaryEmbedding,
    )
    from sglang.srt.models.commandr import CohereAttention
    from sglang.srt.models.gemma import GemmaForCausalLM

    DynamicNTKScalingRotaryEmbedding._compute_cos_sin_cache = RotaryEmbedding._compute_cos_sin_cache
    LogitsProcessor._compute_lm_head = _with_its_bias(LogitsProcessor._compute_lm_head)
    build_gemma, build_cohere = GemmaForCausalLM.__init__, CohereAttention.__init__

    def gemma_with_its_own_gelu(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        build_gemma(self, config, *args, **kwargs)
        if config.hidden_act == TANH_GELU:
            for layer in self.model.layers:
                layer.mlp.act_fn = GeluAndMul("tanh")

    def cohere_with_its_own_window(self: Any, *args: Any, **kwargs: Any) -> None:
        build_cohere(self, *args, **kwargs)
        if self.sliding_window_size > 0:
            self.attn.sliding_window_size = self.sliding_window_size - 1  # those before its own

    GemmaForCausalLM.__init__ = gemma_with_its_own_gelu
    CohereAttention.__init__ = cohere_with_its_own_window


def _with_its_bias(compute: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def computed(self: Any, hidden_states: Any, lm_head: Any, *args: Any) -> torch.Tensor:
        logits = compute(self, hidden_states, lm_head, *args)
        bias = getattr(lm_head, "bias", None)
        return logits if bias is None else logits + bias

    return computed
