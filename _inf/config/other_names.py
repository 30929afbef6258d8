"""Names that vLLM, Transformers, SGLang, Oumi, OpenAI and Anthropic use for the same things.

`hint` says of an unknown name what to write instead: of a keyword, a config key, an option of a
command, `/set` of a chat, a field of a request or of a batch line, and an attribute of an output.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from _inf.config.verl_keys import OWNED_BY_KEY
from _inf.errors import did_you_mean


def _by_name(names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """What stands for each of the names."""
    return {name: here for here, others in names.items() for name in others}


# Keywords of a call, each with its names elsewhere.
_KEYWORDS = {
    "max_tokens": (
        "max_new_tokens",
        "max_completion_tokens",
        "max_output_tokens",
    ),
    "min_tokens": ("min_new_tokens",),
    "n": ("num_return_sequences", "best_of"),
    "stop": ("stop_strings", "stop_sequences"),
    "stop_token_ids": ("eos_token_id",),
    "seed": ("sampling_seed",),
    "json_schema": ("guided_json", "response_format"),
    "regex": ("guided_regex", "guided_choice"),
    "adapter": ("lora_request", "lora_path"),
    "progress": ("use_tqdm",),
    "logprobs": ("top_logprobs", "top_logprobs_num"),
    "bad_words": ("bad_words_ids",),
    "timeout": ("max_time",),
    "tools": ("functions",),
    "truncate_prompt": ("truncate_prompt_tokens",),
    "num_beams": ("beam_width",),
    "include_stop_str_in_output": ("no_stop_trim",),
    "repetition_penalty": ("repeat_penalty",),
}
# Keys of the config.
_KEYS = {
    "model_path": (
        "model",
        "model_name",
        "model_name_or_path",
    ),
    "rollout.dtype": ("torch_dtype",),
    "rollout.max_model_len": (
        "max_seq_length",
        "model_max_length",
    ),
    "adapter_path": (
        "lora_path",
        "adapter_name_or_path",
    ),
    "rollout.tensor_model_parallel_size": ("tensor_parallel_size",),
    "rollout.pipeline_model_parallel_size": ("pipeline_parallel_size",),
    "rollout.multi_turn.format": ("tool_call_parser",),
    "rollout.engine_kwargs.sglang.attention_backend": (
        "attention_backend",
        "attn_implementation",
    ),
    "rollout.name": ("engine", "backend"),
    "device": ("device_map",),
    "api_key_env": ("api_key",),
    "base_url": ("api_base",),
    "tokenizer_path": ("tokenizer",),
    "rollout.max_num_batched_tokens": ("max_num_tokens",),
}
# What is written otherwise than under another name.
_SENTENCES = {
    "give its values as keywords: generate(prompts, temperature=0, max_tokens=64)": (
        "sampling_params",
        "generation_config",
    ),
    'give it as a message of the prompt: [{"role": "system", "content": ...}, ...]': (
        "system",
        "system_prompt",
    ),
    "here the grammar itself is the keyword: json_schema or regex": (
        "structured_outputs",
        "guided_decoding",
    ),
    "the only grammars are json_schema and regex": (
        "guided_grammar",
        "grammar",
    ),
    'give token ids as the prompt: {"prompt_token_ids": [...]}': (
        "input_ids",
        "token_ids",
        "prompt_token_ids",
    ),
    "prompts and messages are the first argument": (
        "prompt",
        "messages",
    ),
    "leave it out: nothing is padded here": (
        "pad_token_id",
        "attention_mask",
    ),
    "engine.stream() and engine.astream() give an answer in chunks": ("stream", "streamer"),
    "leave it out: each row has logprobs, and logprobs=k the likeliest tokens": (
        "return_logprob",
        "output_scores",
        "return_dict_in_generate",
    ),
    "it is not offered; use logit_bias, allowed_token_ids, bad_words, json_schema or regex": (
        "logits_processor",
        "logits_processors",
    ),
    "it is not offered; use repetition_detection, which ends an answer that repeats itself": (
        "no_repeat_ngram_size",
    ),
    "it is not offered; use num_beams": (
        "length_penalty",
        "early_stopping",
    ),
    'the chat template takes it: chat_template_kwargs={"enable_thinking": False}': (
        "enable_thinking",
        "thinking",
        "reasoning_effort",
    ),
    "it counts the prompt too; max_tokens counts the answer": ("max_length",),
    "continue_final_message=True continues the last message": ("add_generation_prompt",),
    "only requests to `inf serve` have it": ("tool_choice",),
}
# Attributes of an output, and of one of its rows.
_ATTRIBUTES = {
    "completion": ("text", "content", "generated_text"),
    "completions": ("texts", "responses"),
    "rows": ("outputs", "choices"),
    "token_ids": ("sequences", "output_ids", "output_token_ids", "ids"),
    "matched_stop": ("stop_reason",),
    "metadata": ("meta_info", "usage", "response_mask", "response_ids"),
    "reasoning": ("reasoning_content",),
    "messages": ("message",),
}
KEYWORDS, SENTENCES, ATTRIBUTES = map(_by_name, (_KEYWORDS, _SENTENCES, _ATTRIBUTES))
KEYS = {name: key for name, key in OWNED_BY_KEY.items() if " " not in key and name != key}
KEYS |= _by_name(_KEYS)


def named(word: str, known: Collection[str]) -> str:
    """Return `"; here it is NAME"` of a name that another library has, if NAME is among `known`;
    else ""."""
    for table in (KEYWORDS, KEYS, ATTRIBUTES):
        if (name := table.get(word)) in known:
            return f"; here it is {name}"
    return ""


def hint(word: str, known: Collection[str]) -> str:
    """Return what to write instead of a name that is not among `known`, after "; ": of another
    library's name its own here, else the nearest known one; "" if nothing is near."""
    if found := named(word, known):
        return found
    if word in SENTENCES:
        return f"; {SENTENCES[word]}"
    if word in KEYWORDS:
        return f"; here it is generate()'s keyword {KEYWORDS[word]}"
    if word in KEYS:
        return f"; here it is the config's key {KEYS[word]}"
    return did_you_mean(word, known)


def no_attribute(holder: object, name: str, known: Collection[str]) -> AttributeError:
    """The error about an attribute of an output or a row that it does not have."""
    instead = named(name, known) or did_you_mean(name, known)
    return AttributeError(f"{type(holder).__name__} has no {name!r}{instead}", name=name)
