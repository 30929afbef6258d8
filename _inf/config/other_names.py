"""Names that vLLM, Transformers, SGLang, Oumi, OpenAI and Anthropic have for what is here, too.

`hint` says of an unknown name what to write instead: of a keyword, a config key, an option of a
command, `/set` of a chat, a field of a request or of a batch line, and an attribute of an output.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from _inf.config.verl_keys import OWNED_BY_KEY
from _inf.errors import did_you_mean

# Keywords of a call.
KEYWORDS: Mapping[str, str] = {
    **dict.fromkeys(("max_new_tokens", "max_completion_tokens", "max_output_tokens"), "max_tokens"),
    **dict.fromkeys(("n_predict", "max_gen_toks", "max_gen_len"), "max_tokens"),
    "min_new_tokens": "min_tokens",
    **dict.fromkeys(("num_return_sequences", "best_of", "num_samples"), "n"),
    **dict.fromkeys(("stop_strings", "stop_sequences", "stop_words"), "stop"),
    **dict.fromkeys(("eos_token_id", "stop_ids"), "stop_token_ids"),
    **dict.fromkeys(("sampling_seed", "random_seed"), "seed"),
    **dict.fromkeys(("guided_json", "response_format", "response_schema"), "json_schema"),
    **dict.fromkeys(("guided_regex", "guided_choice"), "regex"),
    **dict.fromkeys(("lora_request", "lora_path", "lora_name", "lora_id"), "adapter"),
    **dict.fromkeys(("use_tqdm", "show_progress", "verbose"), "progress"),
    **dict.fromkeys(("top_logprobs", "num_logprobs", "top_logprobs_num"), "logprobs"),
    "bad_words_ids": "bad_words",
    "max_time": "timeout",
    "functions": "tools",
    "truncate_prompt_tokens": "truncate_prompt",
    **dict.fromkeys(("beam_width", "best_of_beams"), "num_beams"),
    "no_stop_trim": "include_stop_str_in_output",
    **dict.fromkeys(("repeat_penalty", "repetition_penalties"), "repetition_penalty"),
    "template_kwargs": "chat_template_kwargs",
}
# Keys of the config.
KEYS: Mapping[str, str] = {
    **{name: key for name, key in OWNED_BY_KEY.items() if " " not in key and name != key},
    **dict.fromkeys(("model", "model_name", "model_id", "model_name_or_path"), "model_path"),
    "pretrained_model_name_or_path": "model_path",
    **dict.fromkeys(("torch_dtype", "torch_dtype_str", "precision"), "rollout.dtype"),
    **dict.fromkeys(("max_seq_len", "max_seq_length", "model_max_length"), "rollout.max_model_len"),
    **dict.fromkeys(("context_window", "n_ctx"), "rollout.max_model_len"),
    **dict.fromkeys(("lora_path", "lora_adapter", "adapter_model"), "adapter_path"),
    **dict.fromkeys(("adapter_name_or_path", "peft_path", "lora_paths"), "adapter_path"),
    "tensor_parallel_size": "rollout.tensor_model_parallel_size",
    "pipeline_parallel_size": "rollout.pipeline_model_parallel_size",
    **dict.fromkeys(("tool_call_parser", "tool_parser"), "rollout.multi_turn.format"),
    **dict.fromkeys(
        ("attention_backend", "attn_implementation", "attn_backend"),
        "rollout.engine_kwargs.sglang.attention_backend",
    ),
    **dict.fromkeys(("engine", "backend", "inference_engine"), "rollout.name"),
    **dict.fromkeys(("device_map", "device_type"), "device"),
    **dict.fromkeys(("api_key", "openai_api_key"), "api_key_env"),
    **dict.fromkeys(("api_base", "server_url", "remote_url"), "base_url"),
    "tokenizer": "tokenizer_path",
    "max_num_tokens": "rollout.max_num_batched_tokens",
}
# What is written otherwise than under another name.
SENTENCES: Mapping[str, str] = {
    **dict.fromkeys(
        ("sampling_params", "generation_config", "generation_params", "gen_kwargs"),
        "give its values as keywords: generate(prompts, temperature=0, max_tokens=64)",
    ),
    **dict.fromkeys(
        ("system", "system_prompt", "system_message", "instructions"),
        'give it as a message of the prompt: [{"role": "system", "content": ...}, ...]',
    ),
    **dict.fromkeys(
        ("structured_outputs", "guided_decoding", "guided_decoding_params"),
        "here the grammar itself is the keyword: json_schema or regex",
    ),
    **dict.fromkeys(
        ("guided_grammar", "grammar", "ebnf", "structural_tag"),
        "only grammars of json_schema and regex are offered",
    ),
    **dict.fromkeys(
        ("input_ids", "token_ids", "prompt_token_ids", "inputs"),
        'give token ids as the prompt: {"prompt_token_ids": [...]}',
    ),
    **dict.fromkeys(
        ("prompt", "messages", "conversation", "conversations", "input"),
        "prompts and messages are the first argument",
    ),
    **dict.fromkeys(
        ("pad_token_id", "pad_token", "attention_mask", "padding", "padding_side"),
        "leave it out: nothing is padded here",
    ),
    **dict.fromkeys(
        ("stream", "streamer"), "engine.stream() and engine.astream() give an answer in chunks"
    ),
    **dict.fromkeys(
        ("return_logprob", "output_scores", "output_logits", "return_dict_in_generate"),
        "leave it out: each row has logprobs, and logprobs=k the likeliest tokens",
    ),
    **dict.fromkeys(
        ("logits_processor", "logits_processors", "custom_logit_processor"),
        "it is not offered; logit_bias, allowed_token_ids, bad_words, json_schema and regex are",
    ),
    **dict.fromkeys(
        ("no_repeat_ngram_size", "dry_multiplier"),
        "it is not offered; repetition_detection ends an answer that repeats itself",
    ),
    **dict.fromkeys(
        ("length_penalty", "early_stopping", "num_beam_groups", "diversity_penalty"),
        "it is not offered; num_beams is",
    ),
    **dict.fromkeys(
        ("typical_p", "top_a", "epsilon_cutoff", "eta_cutoff", "mirostat", "tfs_z"),
        "it is not offered; top_p, top_k and min_p are",
    ),
    **dict.fromkeys(
        ("enable_thinking", "thinking", "reasoning_effort"),
        'the chat template takes it: chat_template_kwargs={"enable_thinking": False}',
    ),
    "max_length": "it counts the prompt too; max_tokens counts the answer",
    "add_generation_prompt": "continue_final_message=True goes on with the last message",
    "tool_choice": "only requests to `inf serve` have it",
}
# Attributes of an output, and of one of its rows.
ATTRIBUTES: Mapping[str, str] = {
    **dict.fromkeys(("text", "content", "generated_text", "answer"), "completion"),
    **dict.fromkeys(("texts", "responses", "answers"), "completions"),
    **dict.fromkeys(("outputs", "choices", "samples"), "rows"),
    **dict.fromkeys(("sequences", "output_ids", "output_token_ids", "ids"), "token_ids"),
    "stop_reason": "matched_stop",
    **dict.fromkeys(("meta_info", "usage"), "metadata"),
    "reasoning_content": "reasoning",
    "message": "messages",
}


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
