"""The life of a job's container: pid 1's duties, SSH, and the runner in the same process (one
interpreter is all the memory a job pays for).

As pid 1, or where it is not (process engine) as a child subreaper, it reaps whatever the job
orphans; it ends with the job's exit code once the runner is done.
"""

from __future__ import annotations

from entrypoint import lean, parts  # isort: skip  (before what they leave out is loaded)

import asyncio
import os
import sys

from entrypoint.init import adopt_orphans
from entrypoint.ssh.door import Door
from entrypoint.ssh.port import OpenPort
from runner.early import Early
from runner.job.spawning import Children
from runner.options import Options, complain
from runner.server import log_to, serve
from runner.sockets import SocketUnusable

__all__ = ["live", "parts", "run"]


async def live(
    options: Options, children: Children, early: Early | None, port: OpenPort | None
) -> int:
    """One container's life; the status to exit with."""
    adopt_orphans(children)
    door = Door(options.task, children, port)
    door.open()
    try:
        return await serve(options, children, early=early)
    finally:
        await door.close()


def run(
    program: str,
    options: Options,
    children: Children,
    early: Early | None,
    port: OpenPort | None,
) -> None:
    """`early` and `port`: what has begun already. Does not return."""
    try:
        log_to(options.task)
        lean.settle()
        status = asyncio.run(live(options, children, early, port))
    except SocketUnusable as error:
        status = complain(program, str(error))
    except OSError as error:
        status = complain(program, f"--task: {options.task} cannot be used: {error.strerror}")
    if early is not None:
        options.socket.unlink(missing_ok=True)  # where nothing came of it
    sys.stderr.flush()
    os._exit(status)
