"""Which runners of a node listen, as its shim says over one connection."""

from __future__ import annotations

from controller.aio import Flag
from fairlead.wire.shim import TaskInfo, TaskStatus


class ListeningRunners:
    """Lets callers wait for a runner without knocking at its socket: over SSH each try in vain is
    a channel that is opened and refused."""

    def __init__(self) -> None:
        self._known: dict[str, Flag | None] = {}
        """By task: set when its runner listens; None: it listens, or its shim does not say."""
        self._closed = False

    def note(self, info: TaskInfo) -> None:
        """Note what the shim says of a task. A stale word does not take back that it listens."""
        if info.runner_listens is False and info.status is not TaskStatus.TERMINATED:
            self._known.setdefault(info.id, Flag())
        else:
            self._wake(self._known.get(info.id))
            self._known[info.id] = None

    def forget(self, task_id: str) -> None:
        """Forget a task that is gone from the shim."""
        self._wake(self._known.pop(task_id, None))

    async def until_it_listens(self, task_id: str) -> bool:
        """Return True once the task's runner listens, and at once if that is not known; False when
        the connection has ended."""
        listens = self._known.get(task_id)
        if listens is not None:
            await listens.wait()
        return not self._closed

    def close(self) -> None:
        """End all waiting: the connection has ended."""
        self._closed = True
        for listens in self._known.values():
            self._wake(listens)

    @staticmethod
    def _wake(listens: Flag | None) -> None:
        if listens is not None:
            listens.set()
