"""`fairlead-entrypoint`: the first process of a job's container, and the runner in the same
process (one interpreter is all the memory a job pays for).

As pid 1, or where it is not (process engine) as a child subreaper, it reaps whatever the job
orphans; it ends with the job's exit code once the runner is done.
"""

from __future__ import annotations

from entrypoint import lean  # isort: skip  (before anything that would load OpenSSL)

import asyncio
import os
import sys

from entrypoint.init import adopt_orphans
from entrypoint.ssh.door import Door
from runner.children import Children
from runner.main import complain, parse
from runner.serving import Options, log_to, serve
from runner.sockets import SocketUnusable

__all__ = ["live", "main"]

_PROGRAM = "fairlead-entrypoint"


async def live(options: Options) -> int:
    """One container's life; the status to exit with."""
    children = Children()
    adopt_orphans(children)
    door = Door(options.task, children)
    door.open()
    try:
        return await serve(options, children)
    finally:
        await door.close()


def main() -> None:
    options = parse(_PROGRAM)
    try:
        log_to(options.task)
        lean.settle()
        status = asyncio.run(live(options))
    except SocketUnusable as error:
        status = complain(_PROGRAM, str(error))
    except OSError as error:
        status = complain(_PROGRAM, f"--task: {options.task} cannot be used: {error.strerror}")
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
