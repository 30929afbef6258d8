"""Ends requests that ask for more than SGLang's own checks, in the scheduler's process.

It corrects `srt/managers/schedule_batch.py` of sglang 0.5.9. Only a request with a grammar, with
stop strings, or with stop tokens beside `ignore_eos` becomes a `CheckedReq`, because the checks are
made for each row and step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.managers.schedule_batch import Req

from _inf.backends.verl.child.grammar_fixes import end_with_its_grammar


class CheckedReq(Req):
    """A request of SGLang's with corrected checks for its end."""

    tokenizer: Any
    eos_token_ids: Any

    def check_finished(self, *args: Any) -> None:
        """Under `ignore_eos` SGLang continues a row after the end of its grammar."""
        end_with_its_grammar(super().check_finished, self, *args)

    def _check_token_based_finish(self, new_accepted_tokens: list[int]) -> bool:
        """`ignore_eos` switches `stop_token_ids` off, too: check them with the EOS ids hidden."""
        params = self.sampling_params
        if not (params.ignore_eos and params.stop_token_ids):
            return bool(super()._check_token_based_finish(new_accepted_tokens))
        kept = self.tokenizer, self.eos_token_ids
        params.ignore_eos, self.tokenizer, self.eos_token_ids = False, None, None
        try:
            return bool(super()._check_token_based_finish(new_accepted_tokens))
        finally:
            params.ignore_eos, (self.tokenizer, self.eos_token_ids) = True, kept

    def tail_str(self) -> str:
        """Return the text in which stop strings are searched. SGLang takes as many tokens as the
        string has characters, but one character may be four tokens."""
        params = self.sampling_params
        longest = max((len(stop.encode()) for stop in params.stop_strs), default=0)
        # Begin at the token that fulfils min_new_tokens: stop strings before it do not count.
        start = max(len(self.output_ids) - longest - 1, params.min_new_tokens - 1, 0)
        return str(self.tokenizer.decode(self.output_ids[start:]))

    def _check_str_based_finish(self) -> bool:
        """A stop string ends an answer before `min_new_tokens`."""
        early = len(self.output_ids) < self.sampling_params.min_new_tokens
        return not early and bool(super()._check_str_based_finish())


def check_what_it_asks_for(init: Callable[..., None], req: Any, *args: Any, **kwargs: Any) -> None:
    """Wrap `Req.__init__`."""
    init(req, *args, **kwargs)
    params = req.sampling_params
    grammars = params.json_schema, params.regex, params.ebnf, params.structural_tag
    if any(grammars) or params.stop_strs or (params.ignore_eos and params.stop_token_ids):
        req.__class__ = CheckedReq
