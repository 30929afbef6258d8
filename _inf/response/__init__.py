"""Turns a backend's outputs into what callers get: rows, chunks, scores, a trainer's batch."""
