"""`fairlead-runner`: the runner alone, for images and machines that have an init of their own."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from runner.lifecycle import LINGER, Settings
from runner.segments import QUOTA
from runner.serving import Options, log_to, serve
from runner.sockets import Peers, SocketUnusable

USAGE_ERROR = 2


def parse(program: str, argv: Sequence[str] | None = None) -> Options:
    """Exits with a usage message when the arguments are wrong."""
    parser = argparse.ArgumentParser(program, description="Runs one job and serves its output.")
    add = parser.add_argument
    add("--task", type=Path, required=True, help="the task's folder: logs/, exit.json, image.json")
    add("--socket", type=Path, required=True, help="unix socket to listen on")
    add("--peers", type=Peers, choices=list(Peers), default=Peers.NODE, help="who may connect")
    add("--linger", type=_seconds, default=LINGER, help="seconds to serve an ended job's log")
    add("--log-quota", type=_size, default=QUOTA, help="bytes of output to keep")
    given = parser.parse_args(argv)
    settings = Settings(linger=given.linger, log_quota=given.log_quota)
    return Options(task=given.task, socket=given.socket, peers=given.peers, settings=settings)


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


def complain(program: str, message: str) -> int:
    sys.stderr.write(f"{program}: {message}\n")
    return USAGE_ERROR


def _seconds(text: str) -> float:
    value = float(text)
    if value < 0:
        raise ValueError(text)
    return value


def _size(text: str) -> int:
    value = int(text)
    if value < 1 << 20:
        raise argparse.ArgumentTypeError("must be at least 1048576 bytes")
    return value


if __name__ == "__main__":
    main()
