"""Who is connected to the job: what tells whether a dev environment is idle.

Counted are TCP connections that somebody outside made to a port that one of the container's
processes listens on. What the job's processes say to one another does not count, nor, with host
networking, what other processes of the machine do.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

_ESTABLISHED, _LISTENING = "01", "0A"
_SOCKET = "socket:["


class _Row(msgspec.Struct, frozen=True):
    """Of /proc/net/tcp; the ends are `address:port` in hex, as the kernel writes them."""

    local: str
    remote: str
    state: str
    inode: str

    @property
    def port(self) -> str:
        return self.local.rpartition(":")[2]


def count_visitors(root: Path = Path("/"), pids: Collection[int] | None = None) -> int:
    """`pids`: whose sockets count; None: those of all processes that we can see, which are the
    container's."""
    ours = _inodes(root / "proc", pids)
    rows = [row for row in _rows(root / "proc/net") if row.inode in ours]
    ports = {row.port for row in rows if row.state == _LISTENING}
    ends = {row.local for row in rows}
    return sum(
        row.state == _ESTABLISHED and row.port in ports and row.remote not in ends for row in rows
    )


def _rows(net: Path) -> Iterator[_Row]:
    for name in ("tcp", "tcp6"):
        try:
            lines = (net / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) > 9:
                yield _Row(words[1], words[2], words[3], words[9])


def _inodes(proc: Path, pids: Collection[int] | None) -> set[str]:
    """Of the processes' sockets."""
    found: set[str] = set()
    for process in proc.iterdir():
        if not process.name.isdecimal() or (pids is not None and int(process.name) not in pids):
            continue
        try:
            with os.scandir(process / "fd") as descriptors:
                targets = [os.readlink(descriptor.path) for descriptor in descriptors]
        except OSError:
            continue
        found.update(t[len(_SOCKET) : -1] for t in targets if t.startswith(_SOCKET))
    return found
