"""`fairlead-entrypoint`: the first process of a job's container.

It listens before anything else but for its ear for SIGTERM, so that whoever wants its runner is not
refused, and need not try again. As pid 1 it also answers, and starts a job, while the larger part
of the program is still being loaded (see `runner.early`); meanwhile who visits by SSH waits.
"""

from __future__ import annotations

from entrypoint import lean  # isort: skip  (before anything that would load OpenSSL)

import os
import sys

from runner import listening

__all__ = ["lean", "main"]

PROGRAM = "fairlead-entrypoint"
PARTS = (
    "entrypoint.parts",
    "logging",
    "inspect",
    "asyncio",
    "shutil",
    "attr",
    "email.policy",
    "urllib.request",
    "yarl",
    "aiohttp.abc",
    "aiohttp.helpers",
    "aiohttp.http",
    "aiohttp.web_app",
    "aiohttp.web",
    "runner.runner",
    "entrypoint.life",
)
"""The larger part in pieces, each a few milliseconds; who waits is looked after between them."""


def main() -> None:
    import signal

    stop_asked: list[int] = []
    is_first = os.getpid() == 1
    if is_first:
        signal.signal(signal.SIGTERM, lambda number, _: stop_asked.append(number))
    listener = _listen(sys.argv[1:])
    lean.load_msgspec()

    from importlib import import_module

    from entrypoint.ssh.port import open_early
    from runner.early import Early
    from runner.job.spawning import Children
    from runner.options import UMASK, parse
    from runner.sockets import opened

    options = parse(PROGRAM)
    children = Children()
    early = None if listener is None else Early(opened(listener), options, children)
    port = None
    if early is not None and is_first:
        os.umask(UMASK)
        signal.signal(signal.SIGTERM, early.ask_to_stop)
        if stop_asked:
            early.ask_to_stop()
        port = open_early(options.task)
        for part in PARTS:
            early.turn()
            import_module(part)
        early.turn()

    from entrypoint import life

    life.run(PROGRAM, options, children, early, port)


def _listen(arguments: list[str]) -> int | None:
    """None when that cannot be: who reads the arguments for good says why."""
    if "--socket" not in arguments[:-1]:
        return None
    try:
        return listening.listen(arguments[arguments.index("--socket") + 1])
    except listening.SocketUnusable:
        return None


if __name__ == "__main__":
    main()
