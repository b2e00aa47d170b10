"""`fairlead-entrypoint`: the first process of a job's container.

It listens before it loads its larger part, so a request that comes meanwhile waits and is not
refused. SIGTERM waits too: without a handler, a first process would lose it.

TLS stays out of this process, which serves a unix socket: aiohttp would read the machine's
certificates during its import. Without `ssl` and `_hashlib`, asyncio, aiohttp and hashlib still
work. That saves 46 of 200 ms of CPU time until the runner serves, and 7 of 39 MiB as long as the
job runs (rows "first log line" and "runner, idle" of `./dev bench`).
"""

from __future__ import annotations

import signal
import sys

PROGRAM = "fairlead-entrypoint"


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for module in ("ssl", "_hashlib"):
        sys.modules.setdefault(module, None)  # type: ignore[arg-type]  # ImportError from then on

    from runner.options import complain, parse
    from runner.sockets import SocketUnusable, listen

    options = parse(PROGRAM)
    try:
        listener = listen(options.socket)
    except SocketUnusable as error:
        sys.exit(complain(PROGRAM, str(error)))

    from entrypoint import life

    life.run(PROGRAM, options, listener)


if __name__ == "__main__":
    main()
