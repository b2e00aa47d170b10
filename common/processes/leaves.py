"""The messages by which a shim gives a runner *leaves*: cgroups below the runner's own, one for
each job of a container that carries jobs.

The shim connects, so that no way leads from a container to it. Each message is a line of JSON, and
the descriptors of a supply come with its line. They are of files, never of folders: a job that is
root can open what its runner holds, and from a folder it would reach its own container's limits.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

BEGIN = b"LEAVES 1\n"
"""The first bytes of the connection. An older runner takes them for a broken request."""
MAX_LINE = 4096
MAX_LEAVES = 32
"""Leaves that wait for jobs in one container."""


class LeafFile(StrEnum):
    ENTER = "enter"
    """A 0 that is written here moves the writer; reading lists who is there."""
    KILL = "kill"
    """A 1 that is written here kills who is there."""
    EVENTS = "events"
    """How often its memory limit killed a process, among other lines."""


class LeafOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the runner says: at first which leaf it holds, later what it wants. `ended`: leaves that
    have no job any more."""

    want: int = 0
    holds: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()


class LeafSupply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the shim gives. The descriptors are `home`'s, then those of each leaf.

    `home`: the files of the runner's own cgroup, as many as a leaf has of ENTER. `files`: what each
    leaf has. Without `numbers` and `home` there are no leaves on this node.
    """

    home: int = 0
    numbers: tuple[int, ...] = ()
    files: tuple[LeafFile, ...] = ()


def line_of(message: LeafOrder | LeafSupply) -> bytes:
    return msgspec.json.encode(message) + b"\n"
