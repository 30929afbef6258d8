"""The backend on an OpenAI-compatible server: a cloud API, vLLM, SGLang's server, or `inf serve`.

In: `Request`s and a config with `base_url`. Out: `RequestOutput`s, of text, or of token ids where
`tokenizer_path` is set and the server takes and gives them. Nothing is computed here.

`launch.py` starts the backend and finds out what the server offers, `backend.py` implements the
protocol, `server.py` sends requests with the `openai` client, `pace.py` limits how many, and
`failures.py` words what goes wrong. `text.py`, `tokens.py` and `generate.py` are the three forms of
requests and answers: OpenAI's, vLLM's with token ids, and SGLang's `/generate`.
"""
