"""Pauses an engine, and changes it while rows are frozen between two tokens."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Coroutine
from typing import TypeVar

from _inf.backends.base import Pausing
from _inf.runtime.calls import finished
from _inf.runtime.host import Host

T = TypeVar("T")


class PausingRows(Pausing):
    """`pause`, `resume` and changes of a backend whose rows run on its `Host`. The backend itself
    says how they stand still (`freeze`), go on (`thaw`) and end early (`ending`)."""

    host: Host

    @abc.abstractmethod
    async def freeze(self) -> None:
        """Stop the running rows between two tokens; rows that were not sent wait."""

    @abc.abstractmethod
    async def thaw(self) -> None:
        """Continue frozen rows. Raises if that fails; they then stay frozen."""

    @abc.abstractmethod
    def ending(self) -> contextlib.AbstractContextManager[None]:
        """Within it running rows return their partial output, and their calls' later rows none;
        `finish_reason` is `abort`."""

    @property
    def paused(self) -> bool:
        return self.host.lock.paused

    def pause(self, mode: str) -> None:
        self.host.run_beside(self._pause(mode))

    async def _pause(self, mode: str) -> None:
        lock = self.host.lock
        async with lock.changing():
            lock.paused = True
            try:
                if mode == "keep":
                    await self._freeze()
                    return
                await self._thaw()
                with self.ending() if mode == "abort" else contextlib.nullcontext():
                    await lock.calls_ended()
            except BaseException:  # interrupted, or rows cannot go on, or the engine is dead
                lock.paused = lock.frozen
                raise

    def resume(self) -> None:
        self.host.run_beside(self._resume())

    async def _resume(self) -> None:
        lock = self.host.lock
        async with lock.changing():
            try:
                await self._thaw()
            finally:
                lock.paused = lock.frozen

    async def _freeze(self) -> None:
        """Noted before it begins, and undone if it fails or is interrupted: rows that stand still
        and are not known to would do so for good."""
        if self.host.lock.frozen:
            return
        self.host.lock.frozen = True
        try:
            await finished(self.freeze())
        except BaseException:
            await self._thaw()
            raise

    async def _thaw(self) -> None:
        if self.host.lock.frozen:
            await finished(self._go_on())

    async def _go_on(self) -> None:
        await self.thaw()
        self.host.lock.frozen = False

    def change(self, work: Coroutine[object, None, T], *, keep: bool) -> T:
        """Do `work` while no call runs; keep: while the running rows stand still."""
        return self.host.run_alone(work, self._under_rows if keep else None)

    async def _under_rows(self, work: Coroutine[object, None, T]) -> T:
        lock = self.host.lock
        try:
            async with lock.changing():
                held = lock.frozen
                try:
                    await self._freeze()
                    try:
                        return await finished(work)
                    finally:
                        if not held:
                            await self._thaw()
                finally:  # rows that could not go on are held, until a `resume` succeeds
                    lock.paused = lock.paused or lock.frozen
        finally:
            work.close()  # if it never began
