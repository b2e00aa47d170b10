"""Who waits for which child process.

The runner waits for its job through a pidfd. As pid 1 (or child subreaper) its process also
inherits every orphan of the container and must reap those, and only those: reaping the job's
process by accident would lose its exit code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Children:
    """Owned children are left alone by `reap_orphans`; while one is being started, when its pid
    is not known yet, nothing is reaped at all."""

    def __init__(self) -> None:
        self._owned: set[int] = set()
        self._starting = 0
        self._listeners: list[Callable[[], None]] = []
        self.adopts_orphans = False

    def on_reaped(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after orphans were reaped; gives the way to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @contextmanager
    def starting(self) -> Iterator[None]:
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1
            if self.adopts_orphans:
                self.reap_orphans()

    def own(self, pid: int) -> None:
        self._owned.add(pid)

    def disown(self, pid: int) -> None:
        """Its owner has waited for it."""
        self._owned.discard(pid)
        if self.adopts_orphans:
            self.reap_orphans()

    def reap_orphans(self) -> None:
        """Reap until none is left or an owned one comes first (its owner calls `disown`)."""
        if self._starting:
            return
        reaped = False
        while (pid := self._next_dead()) is not None and pid not in self._owned:
            os.waitpid(pid, 0)
            reaped = True
        if reaped:
            for listener in tuple(self._listeners):
                listener()

    def _next_dead(self) -> int | None:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        return None if found is None else found.si_pid
