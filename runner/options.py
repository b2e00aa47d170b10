"""The options of the runner's programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from runner.logs.limits import QUOTA, SEGMENT_SIZE
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
    words = sys.argv[1:] if argv is None else argv
    given = _pairs(words) or _explained(program, words)
    settings = Settings(
        linger=given.get("--linger", LINGER), log_quota=given.get("--log-quota", QUOTA)
    )
    return Options(
        task=given["--task"],
        socket=given["--socket"],
        peers=given.get("--peers", Peers.NODE),
        settings=settings,
    )


def _pairs(words: Sequence[str]) -> dict[str, Any] | None:
    """Return the values of options that are given as the shim gives them, `--name value`; None when
    they are not, or one is wrong."""
    given = dict(zip(words[::2], words[1::2], strict=False))
    if 2 * len(given) != len(words) or not {"--task", "--socket"} <= given.keys() <= _KINDS.keys():
        return None
    try:
        return {name: _KINDS[name](value) for name, value in given.items()}
    except ValueError:
        return None


def _explained(program: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the same for any command line, or exit with what is wrong."""
    import argparse  # 3 ms and 0.3 MiB of each job

    parser = argparse.ArgumentParser(program, description="Runs one job and serves its output.")
    add = parser.add_argument
    add("--task", type=Path, required=True, help="the task's folder: logs/, exit.json, image.json")
    add("--socket", type=Path, required=True, help="unix socket to listen on")
    add("--peers", type=Peers, choices=list(Peers), default=Peers.NODE, help="who may connect")
    add("--linger", type=_seconds, default=LINGER, help="seconds to serve an ended job's log")
    add("--log-quota", type=_size, default=QUOTA, help="bytes of output to keep, 1 MiB or more")
    given = vars(parser.parse_args(words))
    return {"--" + name.replace("_", "-"): value for name, value in given.items()}


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
        raise ValueError(text)
    return value


_KINDS: dict[str, Callable[[str], Any]] = {
    "--task": Path,
    "--socket": Path,
    "--peers": Peers,
    "--linger": _seconds,
    "--log-quota": _size,
}
