"""Rollouts as rows of one JSONL form (docs/rollouts.md), and the page that shows them."""

from _inf.apps.rollouts.rollout import Rollout, rollouts_to_data_proto
from _inf.apps.rollouts.row_files import load_rollouts
from _inf.apps.rollouts.sources import as_rollouts, save_rollouts
from _inf.apps.rollouts.traces import load_traces

__all__ = ["Rollout", "as_rollouts", "load_rollouts", "load_traces"]
__all__ += ["rollouts_to_data_proto", "save_rollouts"]
