"""instructor: typed answers by a forced call and by a schema, whole and in parts."""

from __future__ import annotations

import instructor
from checks import FACTS, GREETING, SERVER, Color, seen
from openai import OpenAI

ASK = [{"role": "user", "content": GREETING["prompt"]}]


for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    typed = instructor.from_openai(OpenAI(**SERVER), mode=mode)
    asked = {"model": FACTS["model"], "messages": ASK, "temperature": 0, "max_retries": 0}
    assert isinstance(typed.create(response_model=Color, **asked), Color)
    *_, last = typed.create_partial(response_model=Color, **asked)
    Color.model_validate(last.model_dump())

seen("instructor")
