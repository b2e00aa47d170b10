"""`fairlead-runner`: the runner alone, for images and machines with their own init."""

from __future__ import annotations

import asyncio
import sys

from runner.options import Options, complain, parse
from runner.server import log_to, serve
from runner.sockets import SocketUnusable


def main() -> None:
    program = "fairlead-runner"
    sys.exit(run(program, parse(program)))


def run(program: str, options: Options) -> int:
    try:
        log_to(options.task)
        return asyncio.run(serve(options))
    except SocketUnusable as error:
        return complain(program, str(error))
    except OSError as error:
        return complain(program, f"--task: {options.task} cannot be used: {error.strerror}")


if __name__ == "__main__":
    main()
