"""The controller learns that a client watches a run, and that it leaves (docs/rules.md 2.15)."""

from __future__ import annotations

import threading
from contextlib import suppress
from uuid import uuid4

from fairlead.errors import FairleadError
from fairlead.model.starts import LEASE_SECONDS
from fairlead.rest import ControllerClient

_RENEWALS_IN_A_LEASE = 3
_FAREWELL_SECONDS = 3.0


class Presence:
    """Renews the lease of the run that is watched now, in a thread with a client of its own."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client
        self._watcher = uuid4().hex
        self._run_id: str | None = None
        self._turn = threading.Lock()
        self._leaves = threading.Event()
        self._comes = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def at(self, run_id: str) -> None:
        """Watch this run from now on, and no other."""
        self._run_id = run_id
        self._comes.set()

    def leave(self) -> None:
        """Give the lease back; where that is not possible, it runs out."""
        self._leaves.set()
        self._comes.set()
        # Ctrl-C must not wait for a controller that does not answer.
        farewell = threading.Thread(target=self._tell, args=(0.0,), daemon=True)
        farewell.start()
        farewell.join(_FAREWELL_SECONDS)

    def _renew(self) -> None:
        while not self._leaves.is_set():
            self._comes.wait(LEASE_SECONDS / _RENEWALS_IN_A_LEASE)
            self._comes.clear()
            self._tell(LEASE_SECONDS)

    def _tell(self, seconds: float) -> None:
        # A renewal on its way must not come after the farewell.
        with self._turn:
            if self._run_id is None or (seconds and self._leaves.is_set()):
                return
            body = {"watcher": self._watcher, "seconds": seconds}
            # An older controller knows no watchers, and one that is away is told the next time.
            with suppress(FairleadError):
                path = f"/v1/runs/{self._run_id}/watchers"
                self._client.post(path, body, repeatable=bool(seconds))
