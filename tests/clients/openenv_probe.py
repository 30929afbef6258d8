"""openenv's `validate_llm`: what an endpoint gives a trainer."""

from __future__ import annotations

from checks import FACTS, KEY, equal, seen
from openenv.core.harness.capture import validate_llm

where = (FACTS["scored_url"], FACTS["scored_model"])
report = validate_llm(*where, api_key=KEY, timeout=60, check_tools=False)  # 512 tokens otherwise
assert report.ok and report.trainable, report
equal(report.capture_level, "tokens")
equal((report.param_fixes, report.logprobs_mode), ([], "processed"))
assert report.n_prompt_ids > 0 and report.n_completion_ids > 0, report

report = validate_llm(FACTS["base_url"], FACTS["model"], api_key=KEY, timeout=60)
assert report.ok and report.capture_level == "tokens", report
equal(report.param_fixes, [])

seen("openenv")
