"""inspect-ai: a task with a tool and a scorer, log probs, and an answer by a schema."""

from __future__ import annotations

import tempfile

from checks import FACTS, GREETING, KEY, QUESTION, Color, called_once, close, equal, seen
from checks import calculator as calculated
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, ResponseSchema, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool
from inspect_ai.util import json_schema

folder = tempfile.TemporaryDirectory()  # logs are read late


@tool
def calculator():
    async def execute(expression: str) -> str:
        """The calculator.

        Args:
            expression: The expression.
        """
        return calculated(expression)

    return execute


def run(task: Task, **config: object) -> object:
    model = get_model(
        f"openai-api/inf/{FACTS['model']}",
        base_url=FACTS["base_url"],
        api_key=KEY,
        config=GenerateConfig(temperature=0, **config),
    )
    [log] = eval(task, model=model, display="none", log_dir=folder.name)
    equal(log.status, "success")
    return log


solver = [use_tools(calculator()), generate()]
sample = Sample(input=QUESTION["prompt"], target="84")
log = run(Task(dataset=[sample], solver=solver, scorer=includes()), parallel_tool_calls=False)
equal(log.samples[0].output.completion, QUESTION["text"])
equal(log.results.scores[0].metrics["accuracy"].value, 1.0)
called_once()

greet = Task(dataset=[Sample(input=GREETING["prompt"], target=GREETING["text"])], scorer=includes())
log = run(greet, logprobs=True, top_logprobs=2)
equal(log.samples[0].output.completion, GREETING["text"])
content = log.samples[0].output.choices[0].logprobs.content
close([each.logprob for each in content], GREETING["logprobs"])

schema = ResponseSchema(name="color", json_schema=json_schema(Color))
log = run(greet, response_schema=schema)
Color.model_validate_json(log.samples[0].output.completion)

seen("inspect-ai")
