"""An engine whose scheduler is spawned, as on a GPU, and not forked from the fork server."""

import psutil
import pytest

from _inf.backends.verl import launch_sglang
from inf import EngineDeadError
from tests.support.engines import started
from tests.support.reference import assert_same_rows
from tests.support.scripts import GONE_SECONDS, QUESTION, SETTINGS, until
from tests.support.tiny import tiny_model
from tests.support.trained import loaded

pytestmark = [pytest.mark.slow, pytest.mark.verl]  # a start with all its imports, twice
PARAMETERS = (
    {"temperature": 1.0, "seed": 7, "top_p": 0.9, "repetition_penalty": 1.2},
    {"temperature": 1.0, "seed": 8, "regex": "[ab]{4}c"},
)


def test_spawned_scheduler_answers_as_a_forked_one_takes_new_weights_and_restarts(
    tiny, answer, monkeypatch
):
    """With everything that our patches and request parameters do there; weights are sent in shared
    memory, which a process must be allowed to open."""
    monkeypatch.setattr(launch_sglang, "_fork_server", lambda *args: None)
    with started(**SETTINGS) as spawned:
        host = spawned.rollout.host
        assert host.fork_server is None and tiny.rollout.host.fork_server is not None
        for each in PARAMETERS:
            asked = {"prompts": "Say something.", "max_tokens": 12, **each}
            assert_same_rows(spawned.generate(**asked), tiny.generate(**asked))
        assert spawned.update_weights(loaded(tiny_model(seed=1))) == 1
        assert spawned.generate(**QUESTION).token_ids != answer
        assert spawned.update_weights(loaded(tiny_model())) == 2
        assert spawned.generate(**QUESTION).token_ids == answer
        psutil.Process(host.children[0].pid).kill()
        with pytest.raises(EngineDeadError, match="exit code -9"):
            spawned.generate(**QUESTION)
        spawned.restart()
        assert spawned.generate(**QUESTION).token_ids == answer
        process = psutil.Process(spawned.rollout.host.children[0].pid)
    assert until(lambda: not process.is_running(), GONE_SECONDS)
