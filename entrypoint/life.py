"""The life of a job's container: pid 1's duties, SSH, and the runner, all in one process.

A job pays only for the memory of one interpreter. As pid 1, or as a child subreaper where it is not
(process engine), it reaps whatever the job orphans. It ends with the job's exit code once the
runner is done.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from entrypoint.init import adopt_orphans
from entrypoint.ssh.door import Door
from runner.options import Options, complain
from runner.processes.spawn import Children
from runner.server import log_to, serve


async def live(options: Options, listener: socket.socket) -> int:
    """Live one container's life; return the status to exit with."""
    children = Children()
    adopt_orphans(children)
    door = Door(options.task, children)
    door.open()
    try:
        return await serve(options, children, listener=listener)
    finally:
        await door.close()


def run(program: str, options: Options, listener: socket.socket) -> None:
    """Run the container's life and exit; it does not return."""
    try:
        log_to(options.task)
        status = asyncio.run(live(options, listener))
    except OSError as error:
        status = complain(program, f"--task: {options.task} cannot be used: {error.strerror}")
        options.socket.unlink(missing_ok=True)
    sys.stderr.flush()
    os._exit(status)
