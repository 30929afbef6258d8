"""Code for the scheduler's process, where it corrects sglang 0.5.9 (files under `srt/`)."""
