"""The life of a job's container: pid 1's duties, SSH, and the runner, all in one process.

A job pays only for the memory of one interpreter. As pid 1, or as a child subreaper where it is not
(process engine), it reaps whatever the job orphans. It ends with the job's exit code once the
runner is done.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

from entrypoint.ssh.port import SshPort
from runner.options import Options, complain
from runner.processes.signals import Signals
from runner.processes.spawn import Children
from runner.server import log_to, serve

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans(children: Children, signals: Signals) -> None:
    """Adopt and reap every process that loses its parent, except the `children` that have an owner:
    the kernel expects that of a container's first process.

    Raises OSError.
    """
    if os.getpid() != 1:
        _become_subreaper()
    children.adopts_orphans = True
    signals.on(signal.SIGCHLD, children.reap_orphans)
    children.reap_orphans()


def _become_subreaper() -> None:
    import ctypes  # costs a MiB that pid 1 of a container does not need

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


async def live(options: Options, listener: socket.socket) -> int:
    """Live one container's life; return the status to exit with."""
    children, signals = Children(), Signals()
    adopt_orphans(children, signals)
    ssh_port = SshPort(options.task, children)
    ssh_port.open()
    try:
        return await serve(options, children, listener=listener, signals=signals)
    finally:
        # The signals keep their functions until the process exits: asyncio.run still waits for
        # threads, and a SIGTERM would end it by 143.
        await ssh_port.close()


def run(program: str, options: Options, listener: socket.socket) -> None:
    """Run the container's life and exit; it does not return."""
    # Else asyncio.run sets a handler of its own. The one that follows it would be told that one's
    # whole description, for which `inspect` is loaded.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        log_to(options.task)
        status = asyncio.run(live(options, listener))
    except OSError as error:
        status = complain(program, f"--task: {options.task} cannot be used: {error.strerror}")
        options.socket.unlink(missing_ok=True)
    sys.stderr.flush()
    os._exit(status)
