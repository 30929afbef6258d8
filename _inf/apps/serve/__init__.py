"""Serves a running engine over HTTP, in OpenAI's form, and keeps the sampled ids.

In: HTTP requests. Out: responses in the form of the `openai` package's types. Tools are schemas,
whose calls the caller runs. `server` has the server, `app` the routes, `bodies` what a request may
hold, `calls` what is sent to the engine, `responses` what is made of its answer.
"""
