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

    @classmethod
    def inputs(cls, part: Images, tokens: int) -> translation.Inputs:
        """The processor's inputs; those with a value for each token say 0, text, for later ones."""
        of_tokens = (1, part.tokens)
        return {
            name: pad(value, (0, tokens - part.tokens)) if value.shape == of_tokens else value
            for name, value in part.inputs.items()
        }
