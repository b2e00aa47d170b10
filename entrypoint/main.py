"""`fairlead-entrypoint`: the first process of a job's container.

It listens before anything else: whoever wants its runner is not refused, and need not try again,
while the larger part of the program is still being loaded.
"""

from __future__ import annotations

from entrypoint import lean  # isort: skip  (before anything that would load OpenSSL)

import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from runner.sockets import SocketUnusable, listen

__all__ = ["lean", "main"]


def main() -> None:
    listener = _listen(sys.argv[1:])

    from entrypoint import life  # loads most of what a job waits for

    life.run(listener)


def _listen(arguments: Sequence[str]) -> socket.socket | None:
    """None when that cannot be: who reads the arguments for good says why."""
    if "--socket" not in arguments[:-1]:
        return None
    try:
        return listen(Path(arguments[arguments.index("--socket") + 1]))
    except SocketUnusable:
        return None


if __name__ == "__main__":
    main()
