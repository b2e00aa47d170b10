"""The messages between a shim and its fork server, one in each packet of their socket.

The fork server is a process that has loaded all that a task's first processes need. It forks them
when the shim asks, so a task does not pay for the start of two interpreters.
"""

from __future__ import annotations

import msgspec

MAX_MESSAGE = 128 << 10


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`reaper` and `entrypoint`: the command lines with which these two would be started, as
    lists of processes show them. `options`: those of the entrypoint. `env`: the environment of the
    reaper; `folder`: the working directory; `output`: a file for what both print."""

    reaper: tuple[str, ...]
    entrypoint: tuple[str, ...]
    options: tuple[str, ...]
    env: dict[str, str]
    folder: str
    output: str


class Forked(msgspec.Struct, frozen=True, tag=True):
    """The task's reaper has this pid."""

    pid: int


class NotForked(msgspec.Struct, frozen=True, tag=True):
    """Nothing was forked."""

    error: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A reaper has ended. `code` is 128 + n when signal n ended it."""

    pid: int
    code: int


ServerMessage = Forked | NotForked | Ended
"""What a fork server tells: one of the first two for each request, in their order."""
