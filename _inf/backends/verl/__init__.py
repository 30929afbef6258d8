"""The backend on verl 0.6.1's `SGLangRollout` and sglang 0.5.9, which only this folder knows."""
