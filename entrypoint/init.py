"""The kernel expects a container's first process to wait for orphans; this module does that."""

from __future__ import annotations

import asyncio
import os
import signal

from runner.processes.spawn import Children

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans(children: Children) -> None:
    """Adopt and reap every process that loses its parent, except the `children` that have an owner.

    Call it inside the loop. Raises OSError.
    """
    if os.getpid() != 1:
        _become_subreaper()
    children.adopts_orphans = True
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, children.reap_orphans)
    children.reap_orphans()


def _become_subreaper() -> None:
    import ctypes  # costs a MiB that pid 1 of a container does not need

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
