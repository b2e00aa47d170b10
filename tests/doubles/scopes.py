"""What belongs to a job whose runner shares its process with a test."""

from __future__ import annotations

import contextlib
import os

import psutil


class SessionScope:
    """Only the processes of the job's session, and no other child of the test."""

    def kill_all(self, session: int) -> None:
        while pids := [pid for pid in psutil.pids() if _session_of(pid) == session]:
            for pid in pids:
                with contextlib.suppress(psutil.NoSuchProcess):
                    psutil.Process(pid).kill()


def _session_of(pid: int) -> int | None:
    """Return the session of a process that still runs."""
    try:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return None
        return os.getsid(pid)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None
