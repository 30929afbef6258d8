"""Images on Transformers: the model gets its processor's inputs with the prompt's ids."""

from __future__ import annotations

from torch.nn.functional import pad

from _inf.backends.hf import translation
from _inf.parts.images import Images
from _inf.types import ModelInfo, Request


class Translation(translation.Translation[Images]):
    def __init__(self, part: Images, request: Request, model: ModelInfo) -> None:
        super().__init__(part, request, model)
        self.prompt_key = part.digests

    def inputs(self, tokens: int) -> translation.Inputs:
        """The processor's inputs; those with a value for each token say 0, text, for the answer."""
        prompt = len(self.request.token_ids)
        return {
            name: pad(value, (0, tokens - prompt)) if value.shape == (1, prompt) else value
            for name, value in self.part.inputs.items()
        }
