"""The options of the runner's programs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from runner.logs.segments import QUOTA, SEGMENT_SIZE
from runner.sockets import Peers

USAGE_ERROR = 2
UMASK = 0o007
"""The runner's own umask: what it makes in the task's folder is also for the node's group."""
LINGER = 10.0
"""Seconds for which an ended job's log is served without an acknowledgement; the files stay, and
then the shim serves them."""

BACKSTOP = 60.0
"""Seconds after `max_duration` before the runner ends the job. The controller owns the deadline, so
this is longer than a restart of the controller or a new connection takes."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    linger: float = LINGER
    backstop: float = BACKSTOP
    log_quota: int = QUOTA
    segment_size: int = SEGMENT_SIZE


class Options(msgspec.Struct, frozen=True, kw_only=True):
    task: Path
    socket: Path
    peers: Peers
    settings: Settings = Settings()


def parse(program: str, argv: Sequence[str] | None = None) -> Options:
    """Return the options. Exits with a usage message when the arguments are wrong."""
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


def complain(program: str, message: str) -> int:
    """Print the message; return the status to exit with."""
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
