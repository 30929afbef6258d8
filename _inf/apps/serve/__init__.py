"""Serves a running engine over HTTP, in OpenAI's form, and in vLLM's and SGLang's for token ids,
and keeps the sampled ids. `server` has the server, `app` the routes, `bodies` and `token_bodies`
the requests, `calls` what is sent to the engine, `responses` and `token_responses` what is made of
it. Anthropic's Messages (`message_*`) and OpenAI's Responses (`item_*`) are chats in another form.
"""
