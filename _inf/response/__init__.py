"""From a backend's outputs to what a caller gets: text, chunks, scores, tables, tensors, totals.

In: `RequestOutput`s. Out: `GenerationOutput`, `StreamChunk`, `Score`, a trainer's `DataProto`.
Knows the tokenizer's decoder, and no engine.
"""
