"""Rollouts as rows of one JSONL form (docs/rollouts.md), and the page that shows them.

In: what `generate`, `rollout_batch`, a served session or a file gives. Out: `Rollout`s, which
become a file, a `DataProto` or an HTML page. Knows no engine; it may know a tokenizer.
"""

from _inf.apps.rollouts.data_proto import rollouts_to_data_proto
from _inf.apps.rollouts.file import load_rollouts, save_rollouts
from _inf.apps.rollouts.rollout import Rollout
from _inf.apps.rollouts.sources import as_rollouts

__all__ = ["Rollout", "as_rollouts", "load_rollouts", "rollouts_to_data_proto", "save_rollouts"]
