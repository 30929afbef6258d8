"""Tiny random models with a real tokenizer, for tests that start engines again and again.

`tiny_model()` answers with a Transformers folder (some 800 KB, float32) in the cache, built in a
second and the same on every machine: seeded weights, 384 tokens of byte-level BPE, ChatML. Greedy
answers vary from token to token and are not nearly tied, so comparing token ids is meaningful.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from _inf.models.cache import build_once, by_transformers

FORMAT = 1  # raise it when what is built here changes
VOCABULARY = 384
END_OF_TEXT, IM_START, IM_END, PAD = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"

_SPECIAL = [END_OF_TEXT, IM_START, IM_END, PAD]  # ids 0 to 3
_TEXT = """What is the capital of France? The capital of France is Paris. You are an assistant.
<think> Let me think about it. </think> If she buys 12 apples and gives away 7, how many are left?
def main(args): return [line.strip() for line in open(path)] # comments, 3.14 and 1,000
system user assistant tool: {"name": "calculator", "arguments": {"expression": "2 + 2"}}
Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."""
_TEMPLATE = """{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking -%}
<think>

</think>

{% endif -%}
{%- endif -%}"""


def tiny_model(
    kind: Literal["qwen3", "llama"] = "qwen3",
    *,
    pad: Literal["distinct", "eos"] = "distinct",
    eos: tuple[str, ...] = (IM_END,),
    bos: bool = False,
    initializer_range: float = 0.3,
    context: int = 4096,
    seed: int = 0,
    layers: int = 2,
    tied: bool = False,
) -> Path:
    """The folder of a tiny model.

    `eos`: what generation_config.json names (the tokenizer's EOS is the first of them); `pad`:
    a token of its own, or the tokenizer's EOS; `bos`: plain text gets a BOS token before it;
    `tied`: the head is the embeddings.
    """
    spec = dict(
        kind=kind, pad=pad, eos=eos, bos=bos, range=initializer_range, context=context, seed=seed
    )
    spec |= {"layers": layers} if layers != 2 else {}
    spec |= {"tied": True} if tied else {}

    def build(folder: Path) -> None:
        tokenizer = _tokenizer(spec)
        tokenizer.save_pretrained(folder)
        _model(spec, tokenizer).save_pretrained(folder)

    return built_once(kind, spec, build)


def built_once(name: str, spec: Any, build: Callable[[Path], None]) -> Path:
    """The folder of the tiny model of this specification, filled by `build` if it is missing."""
    text = json.dumps([spec, FORMAT], sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    return build_once(f"tiny-{name}-{by_transformers()}-{digest}", build)


def _tokenizer(spec: dict[str, Any]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        _TEXT.splitlines(),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=_SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if spec["bos"]:
        backend.post_processor = processors.TemplateProcessing(
            single=[END_OF_TEXT, "$A"], special_tokens=[(END_OF_TEXT, 0)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=END_OF_TEXT if spec["bos"] else None,
        eos_token=spec["eos"][0],
        pad_token=PAD if spec["pad"] == "distinct" else spec["eos"][0],
        chat_template=_TEMPLATE,
        model_max_length=spec["context"],
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(folder: Path, context: int) -> Any:
    """That of the others, for a model of 384 tokens, into `folder`."""
    tokenizer = _tokenizer(dict(eos=(IM_END,), bos=False, pad="distinct", context=context))
    tokenizer.save_pretrained(folder)
    return tokenizer


def save_tiny(config: Any, seed: int, folder: Path, context: int) -> None:
    """A random model of `config`, with the tokenizer of the others, into `folder`."""
    tokenizer = save_tokenizer(folder, context)
    config.bos_token_id, config.pad_token_id = None, tokenizer.pad_token_id
    config.eos_token_id = tokenizer.eos_token_id
    _random(config, seed).save_pretrained(folder)


def _model(spec: dict[str, Any], tokenizer: Any) -> Any:
    from transformers import GenerationConfig, LlamaConfig, Qwen3Config

    ends = [tokenizer.convert_tokens_to_ids(token) for token in spec["eos"]]
    ids = dict(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=ends[0] if len(ends) == 1 else ends,
        pad_token_id=tokenizer.pad_token_id,
    )
    config = {"qwen3": Qwen3Config, "llama": LlamaConfig}[spec["kind"]](
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=spec.get("layers", 2),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=spec["context"],
        rope_theta=10000.0,
        tie_word_embeddings=spec.get("tied", False),
        initializer_range=spec["range"],
        **{**ids, "eos_token_id": ends[0]},
    )
    model = _random(config, spec["seed"])
    model.generation_config = GenerationConfig(**ids)
    return model


def _random(config: Any, seed: int) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
