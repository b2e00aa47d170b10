"""The life of a job's container: pid 1's duties, SSH, and the runner in the same process (one
interpreter is all the memory a job pays for).

As pid 1, or where it is not (process engine) as a child subreaper, it reaps whatever the job
orphans; it ends with the job's exit code once the runner is done.
"""

from __future__ import annotations

from entrypoint import lean  # isort: skip  (before anything that would load OpenSSL)

import asyncio
import os
import socket
import sys

from entrypoint.init import adopt_orphans
from entrypoint.ssh.door import Door
from runner.children import Children
from runner.options import Options, complain, parse
from runner.serving import log_to, serve
from runner.sockets import SocketUnusable

__all__ = ["live", "run"]

_PROGRAM = "fairlead-entrypoint"


async def live(options: Options, listener: socket.socket | None) -> int:
    """One container's life; the status to exit with. `listener`: already at the socket's path."""
    children = Children()
    adopt_orphans(children)
    door = Door(options.task, children)
    door.open()
    try:
        return await serve(options, children, listener=listener)
    finally:
        await door.close()


def run(listener: socket.socket | None = None) -> None:
    """Does not return."""
    options = parse(_PROGRAM)
    try:
        log_to(options.task)
        lean.settle()
        status = asyncio.run(live(options, listener))
    except SocketUnusable as error:
        status = complain(_PROGRAM, str(error))
    except OSError as error:
        status = complain(_PROGRAM, f"--task: {options.task} cannot be used: {error.strerror}")
    if listener is not None:
        options.socket.unlink(missing_ok=True)  # where nothing came of it
    sys.stderr.flush()
    os._exit(status)
