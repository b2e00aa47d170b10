"""What a machine of a given size has for jobs once it is a node.

An offer that promised the whole size would be bought for a job that then fits nowhere, again and
again.
"""

from __future__ import annotations

_MIB = 1 << 20
_GIB = 1 << 30
_KERNEL = 0.025
"""The part of memory that the kernel and the firmware keep: 8 GiB of EC2 and Hetzner show 7.6 to
7.8 GiB, and 16 GiB show 15.3."""
_SYSTEM = 256 * _MIB
_SHIM = 256 * _MIB
"""The memory that a shim keeps for the machine's daemons (`shim/node/machine.py`)."""
_IMAGE = 8 * _GIB
"""The disk that an image of Fairlead with driver and toolkit takes."""
_FILE_SYSTEM = 0.06
"""The part of a disk that ext4 keeps for root (5 %) and for itself."""


def memory_for_jobs(size: int) -> int:
    """Return the bytes of memory that the node offers."""
    return max(0, int(size * (1 - _KERNEL)) - _SYSTEM - _SHIM)


def disk_for_jobs(size: int, image: int = _IMAGE) -> int:
    """Return the bytes of disk that the node offers; `image`: what its image takes."""
    return max(0, int(size * (1 - _FILE_SYSTEM)) - image)
