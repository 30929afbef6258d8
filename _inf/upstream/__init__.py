"""The room that leans on internals of verl and SGLang; the others know only public names."""
