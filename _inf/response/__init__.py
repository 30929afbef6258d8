"""Turns a backend's outputs into what callers get: text, chunks, scores, tables, tensors, totals.

In: `RequestOutput`s. Out: `GenerationOutput`, `StreamChunk`, `Score`, a trainer's `DataProto`.
Uses the tokenizer's decoder, and knows no engine.
"""
