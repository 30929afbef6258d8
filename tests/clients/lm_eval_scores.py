"""lm-eval's `local-completions`: scores and greedy answers, with the server's tokenizer."""

from __future__ import annotations

from checks import FACTS, close, equal, seen
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

EXPECTED = FACTS["lm_eval"]
model = LocalCompletionsAPI(
    base_url=f"{FACTS['scored_url']}/completions",
    model=FACTS["scored_model"],
    tokenizer_backend="remote",
    max_retries=1,
)


def instances(kind: str) -> list[Instance]:
    asked = [tuple(each) for each in EXPECTED[kind]["requests"]]
    return [Instance(kind, {}, each, index) for index, each in enumerate(asked)]


for kind in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
    found = getattr(model, kind)(instances(kind), disable_tqdm=True)
    answers = EXPECTED[kind]["answers"]
    if kind == "generate_until":
        equal(found, answers)
    elif kind == "loglikelihood_rolling":
        close(found, answers)
    else:
        close([value for value, _ in found], [value for value, _ in answers])
        equal([is_greedy for _, is_greedy in found], [is_greedy for _, is_greedy in answers])

seen(
    "lm-eval",
    "`local-completions`, with the server's tokenizer",
    "log likelihoods, rolling ones and greedy answers equal to those of the model `inf`",
)
