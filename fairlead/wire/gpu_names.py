"""Matches GPUs by name: the scheduler and the shim agree on which GPU a job's names ask for.

A part of a GPU is a MIG instance so far. Its name has the word MIG, and a job gets a part only if
the job asks for a name with that word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import combinations


class GpuVendor(StrEnum):
    """A job's program is built for one vendor's GPUs, so it never gets another's."""

    NVIDIA = "nvidia"
    AMD = "amd"


_WORD = re.compile(r"[a-z0-9]+")
_PART = "mig"
_VENDOR_OF_NAME = {
    GpuVendor.AMD: re.compile(r"(?:amd|instinct|radeon)\b.*|mi ?\d{2,3}[a-z]{0,2}|rx ?\d{3,4}.*")
}
"""The names of a vendor's GPUs; all others are NVIDIA's."""


def vendor_of(name: str) -> GpuVendor:
    """Return the vendor of the GPU that a job's file calls so.

    The patterns follow AMD's market names, `AMD Instinct MI300X` and `AMD Radeon RX 7900 XTX`.
    """
    word = name.strip().lower()
    fitting = (vendor for vendor, names in _VENDOR_OF_NAME.items() if names.fullmatch(word))
    return next(fitting, GpuVendor.NVIDIA)


def in_every_block(vendors: Iterable[GpuVendor], parts: bool, asked: GpuVendor) -> bool:
    """Return whether each block of a node brings its share of GPUs to a job of this vendor.

    `vendors` are those of the node's GPUs. A block adds neither parts of GPUs nor GPUs of another
    vendor to what a job asks for.
    """
    return not parts and all(vendor is asked for vendor in vendors)


def is_part(name: str, parent: str | None) -> bool:
    """Return whether this is a part of the GPU `parent`. A part whose node was stored by an early
    version has no parent."""
    return parent is not None or _is_named_a_part(name)


# The scheduler asks for each GPU of each node; a cluster has few names of GPUs.
@lru_cache(maxsize=1024)
def _is_named_a_part(name: str) -> bool:
    return _PART in _WORD.findall(name.lower())


def is_named(name: str, parent: str | None, asked: Sequence[str]) -> bool:
    """Return whether a job that asks for these names (none: any whole GPU) may have this GPU."""
    if not asked:
        return not is_part(name, parent)
    wanted = [each for each in asked if _PART in each.lower() or not is_part(name, parent)]
    return any(is_called(name, each) for each in wanted)


@lru_cache(maxsize=4096)
def is_called(name: str, asked: str) -> bool:
    """Return whether `asked` is a sequence of words of the GPU's name, however they are joined.

    RTX4090 matches "NVIDIA GeForce RTX 4090"; L4 does not match "NVIDIA L40S". Without the word MIG
    in `asked`, only a whole GPU matches.
    """
    words = _WORD.findall(name.lower())
    wanted = "".join(_WORD.findall(asked.lower()))
    if _PART in words and _PART not in wanted:
        return False
    spans = combinations(range(len(words) + 1), 2)
    return any("".join(words[start:end]) == wanted for start, end in spans)
