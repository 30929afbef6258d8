"""Serves a running engine over HTTP, in OpenAI's form, and keeps the sampled ids. `server` has the
server, `app` the routes, `calls` what is sent to the engine, `responses` what is made of it."""
