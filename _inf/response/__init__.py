"""Turns a backend's outputs into a caller's results: rows, chunks, scores, a trainer's batch."""
