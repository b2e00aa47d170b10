"""The progress of image pulls: no decision uses it and nothing stores it.

Node sessions write it as into a dict. A change of an attempt's progress wakes only those that watch
its run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping

from controller.aio import Flag
from fairlead.wire.shim import PullProgress


class PullsInProgress(MutableMapping[str, PullProgress]):
    """Attempt id → its pull progress."""

    def __init__(self) -> None:
        self._progress: dict[str, PullProgress] = {}
        self._watchers: dict[str, set[Flag]] = {}

    def __getitem__(self, attempt_id: str) -> PullProgress:
        return self._progress[attempt_id]

    def __setitem__(self, attempt_id: str, progress: PullProgress) -> None:
        if self._progress.get(attempt_id) != progress:
            self._progress[attempt_id] = progress
            self._wake(attempt_id)

    def __delitem__(self, attempt_id: str) -> None:
        del self._progress[attempt_id]
        self._wake(attempt_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._progress)

    def __len__(self) -> int:
        return len(self._progress)

    def watch(self, changed: Flag) -> ProgressWatch:
        """Return a watch; `changed` is set at each change of the attempts that it attends to."""
        return ProgressWatch(self._watchers, changed)

    def _wake(self, attempt_id: str) -> None:
        for event in self._watchers.get(attempt_id, ()):
            event.set()


class ProgressWatch:
    def __init__(self, watchers: dict[str, set[Flag]], changed: Flag) -> None:
        self._watchers = watchers
        self._changed = changed
        self._attended: frozenset[str] = frozenset()

    def attend(self, attempt_ids: Iterable[str]) -> None:
        """Attend to these attempts, and no longer to the ones before."""
        attended = frozenset(attempt_ids)
        for attempt_id in self._attended - attended:
            watchers = self._watchers[attempt_id]
            watchers.discard(self._changed)
            if not watchers:
                del self._watchers[attempt_id]
        for attempt_id in attended - self._attended:
            self._watchers.setdefault(attempt_id, set()).add(self._changed)
        self._attended = attended
