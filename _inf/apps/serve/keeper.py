"""Watches the served engine: restarts one that died, and says whether requests can be answered.

A dead engine is restarted once. It may be restarted again only after it has answered a request, so
that one that dies of its first request, or cannot start, stays dead. One whose weights were updated
stays dead too: a restart would load the first weights again.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Literal

from _inf.errors import EngineDeadError, InferenceError, error_text

if TYPE_CHECKING:
    from inf import InferenceEngine

logger = logging.getLogger("inf.serve")


class EngineKeeper:
    """Used on the server's thread; a restart runs on its own."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine = engine
        self.restarts = 0
        self._may_restart = True
        self._restart: threading.Thread | None = None

    @property
    def status(self) -> Literal["ok", "restarting", "dead"]:
        """Whether the engine answers; a dead one begins to restart here."""
        if self._restart is not None and self._restart.is_alive():
            return "restarting"
        if not self.engine.dead:
            return "ok"
        if self.engine.closed or not self._may_restart:
            return "dead"
        self._may_restart = False
        if version := self.engine.weight_version:
            logger.error(
                "The engine died, and its weights were updated (version %d): the program that "
                "serves it must call restart() and update_weights().",
                version,
            )
            return "dead"
        self._restart = threading.Thread(target=self._run_restart, name="inf-serve-restart")
        self._restart.start()
        return "restarting"

    def check(self) -> None:
        if (status := self.status) != "ok":
            raise EngineDeadError(f"The engine has died; it is {status}.")

    def answered(self) -> None:
        self._may_restart = True

    def _run_restart(self) -> None:
        logger.warning("The engine died and is being restarted.")
        try:
            self.engine.restart()
        except InferenceError as failure:
            logger.error("The engine could not be restarted: %s", error_text(failure))
        else:
            self.restarts += 1
            logger.warning("The engine was restarted.")

    def stop(self, timeout: float) -> None:
        if self._restart is not None:
            self._restart.join(timeout)
