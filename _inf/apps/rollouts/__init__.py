"""Rollouts as rows of one JSONL form (docs/rollouts.md), and the page that shows them."""

from _inf.apps.rollouts.rollout import Rollout, load_rollouts, rollouts_to_data_proto
from _inf.apps.rollouts.sources import as_rollouts, save_rollouts

__all__ = ["Rollout", "as_rollouts", "load_rollouts", "rollouts_to_data_proto", "save_rollouts"]
