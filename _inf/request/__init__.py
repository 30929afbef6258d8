"""Turns a call into requests: prompts into token ids, keywords into sampling parameters."""
