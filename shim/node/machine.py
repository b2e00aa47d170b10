"""Facts about the machine: its name, addresses, boot, and how much of it may be allocated."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
from pathlib import Path

from fairlead.wire.sizes import MAX_SIZE, size_of
from shim.errors import StartError
from shim.node.ledger import Capacity

_SIOCGIFADDR = 0x8915
_NOT_OURS = ("lo", "docker", "podman", "cni", "br-", "fl-", "veth", "virbr")
_RESERVED_MEMORY = 256 << 20
MIN_MEMORY = 6 << 20
"""Bytes: with less, the engine starts nothing."""


def parse_size(text: str, option: str) -> int:
    """Return bytes of `8GB`, `512MiB` or a plain number. Raises StartError."""
    size = size_of(f"{text}B" if text.strip().isdecimal() else text)
    if size is None or not 1 <= size <= MAX_SIZE:
        raise StartError(f"{option} {text!r}: expected a size such as 512MB or 16GiB")
    return round(size)


def parse_memory(text: str, option: str) -> int:
    """Return bytes as `parse_size` does, at least what a task needs. Raises StartError."""
    size = parse_size(text, option)
    if size < MIN_MEMORY:
        raise StartError(f"{option} {text!r}: no task fits, at least 6MB are needed (16GB, 512MB)")
    return size


def capacity(
    data: Path, cpu: float | None = None, memory: int | None = None, disk: int | None = None
) -> Capacity:
    """Return the capacity. What is not given is measured; some memory is kept for the machine's own
    daemons."""
    return Capacity(
        cpu=cpu if cpu is not None else float(len(os.sched_getaffinity(0))),
        memory=memory if memory is not None else max(_memory() - _RESERVED_MEMORY, 0),
        disk=disk if disk is not None else shutil.disk_usage(data).free,
    )


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def infiniband(dev: Path = Path("/dev")) -> tuple[str, ...]:
    """Return the names of InfiniBand's device files, without udev's folders of links, which an
    engine refuses."""
    folder = dev / "infiniband"
    try:
        return tuple(sorted(name for name in os.listdir(folder) if not (folder / name).is_dir()))
    # A node without InfiniBand has no such folder.
    except OSError:
        return ()


def addresses() -> tuple[str, ...]:
    """Return the IPv4 addresses of the machine's own interfaces, without bridges of containers."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            if name.startswith(_NOT_OURS):
                continue
            # struct ifreq of netdevice(7): a name of at most 15 bytes (IFNAMSIZ), then the address.
            request = struct.pack("256s", name[:15].encode())
            try:
                # EADDRNOTAVAIL: it has no IPv4 address (netdevice(7)).
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            found.append(socket.inet_ntoa(answer[20:24]))
    return tuple(found)
