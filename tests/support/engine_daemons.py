"""What the dockerd and the Podman of the tests share: a socket that answers, mounts that stay."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from tests.support.daemons import run


def answers(path: Path) -> bool:
    """Return whether the engine at this socket answers."""
    with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
        client.settimeout(10)
        client.connect(str(path))
        client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        return b"200" in client.recv(64)
    return False


def unmount_all_below(folder: Path) -> None:
    """Unmount what a killed engine has left, the latest first."""
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in reversed(points):
        if point.startswith(f"{folder}/"):
            run(["umount", "--lazy", point])
