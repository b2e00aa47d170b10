"""Selection decides which of the free GPUs an allocation gets. Pure.

The tightest interconnect comes first: the worst link within the choice, then the sum of its links.
Of equally tight choices the one wins that leaves the largest groups of near GPUs whole; then the
one with the least memory, then the lowest index. GPUs that the operator excludes by index, UUID or
PCI address are never chosen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations
from math import comb

import msgspec

from fairlead.wire.node import NEARNESS, GpuInfo, GpuLink
from shim.errors import StartError

_SAME_GPU = NEARNESS[GpuLink.DIRECT] + 1
_MAX_COMBINATIONS = 5_000
"""If there are more, a choice grows from each GPU by its nearest ones, instead of comparing all
choices."""


def choose(
    fitting: Sequence[GpuInfo],
    free: Sequence[GpuInfo],
    count: int,
    beside: Sequence[GpuInfo] = (),
) -> tuple[str, ...]:
    """Return the UUIDs of `count` of the GPUs in `fitting`, which are among `free`, to join those
    of `beside`.

    Needs count <= len(fitting).
    """
    if count == 0:
        return ()
    if count == len(fitting):
        return tuple(gpu.uuid for gpu in fitting)
    groups = _groups(free)
    best = min(_candidates(fitting, count), key=lambda chosen: _cost((*beside, *chosen), groups))
    return tuple(gpu.uuid for gpu in sorted(best, key=_order))


def not_there(
    boards: Iterable[GpuInfo], there: Collection[str], excluded: Sequence[Exclusion]
) -> frozenset[str]:
    """Return the UUIDs of the boards that are gone, but for those that the operator excludes."""
    return frozenset(
        gpu.uuid
        for gpu in boards
        if gpu.uuid not in there and not any(one.covers_also_when_gone(gpu) for one in excluded)
    )


def nearness(one: GpuInfo, other: GpuInfo) -> int:
    """Return how near two GPUs are; greater is nearer."""
    if one.parent is not None and one.parent == other.parent:
        return _SAME_GPU
    link = one.links.get(other.uuid) or other.links.get(one.uuid)
    if link is None and one.numa is not None and one.numa == other.numa:
        link = GpuLink.NUMA_NODE
    return NEARNESS[link or GpuLink.SYSTEM]


def tightness(chosen: Sequence[GpuInfo]) -> tuple[int, int]:
    """Return the worst link and the sum of links; greater is tighter."""
    near = [nearness(one, other) for one, other in combinations(chosen, 2)]
    return (min(near), sum(near)) if near else (_SAME_GPU, 0)


def _candidates(fitting: Sequence[GpuInfo], count: int) -> Iterator[tuple[GpuInfo, ...]]:
    if comb(len(fitting), count) <= _MAX_COMBINATIONS:
        yield from combinations(fitting, count)
        return
    for seed in fitting:
        near = sorted(fitting, key=lambda gpu: -nearness(seed, gpu) if gpu is not seed else -99)
        yield tuple(near[:count])


def _cost(
    chosen: tuple[GpuInfo, ...], groups: Sequence[frozenset[str]]
) -> tuple[int, int, int, int, list[tuple[int, str]]]:
    worst, total = tightness(chosen)
    uuids = {gpu.uuid for gpu in chosen}
    left = sum(len(group - uuids) ** 2 for group in groups)
    memory = sum(gpu.memory for gpu in chosen)
    return -worst, -total, -left, memory, sorted(_order(gpu) for gpu in chosen)


def _order(gpu: GpuInfo) -> tuple[int, str]:
    return gpu.index, gpu.uuid


def _groups(free: Sequence[GpuInfo]) -> list[frozenset[str]]:
    """Return, for each degree of nearness, the groups of free GPUs that are at least that near."""
    degrees = {nearness(one, other) for one, other in combinations(free, 2)}
    return [group for degree in sorted(degrees) for group in _connected(free, degree)]


def _connected(free: Iterable[GpuInfo], degree: int) -> list[frozenset[str]]:
    groups: list[list[GpuInfo]] = []
    for gpu in free:
        near = [group for group in groups if any(nearness(gpu, o) >= degree for o in group)]
        groups = [group for group in groups if group not in near]
        groups.append([gpu, *(other for group in near for other in group)])
    return [frozenset(gpu.uuid for gpu in group) for group in groups]


_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+", re.IGNORECASE)


class Exclusion(msgspec.Struct, frozen=True):
    """One `--exclude-gpu`. To exclude a GPU excludes its MIG instances."""

    text: str
    index: int | None = None
    uuid: str | None = None
    pci: str | None = None

    @classmethod
    def parse(cls, text: str) -> Exclusion:
        """Parse the option. Raises StartError, so that a typing error does not offer a GPU that
        should be kept."""
        if text.isascii() and text.isdecimal():
            return cls(text, index=int(text))
        if _UUID.fullmatch(text):
            return cls(text, uuid=text.lower())
        if normal_pci(text) is not None:
            return cls(text, pci=normal_pci(text))
        raise StartError(
            f"--exclude-gpu {text!r}: expected an index (0), a UUID (GPU-…) or a PCI address "
            "(0000:17:00.0)"
        )

    def covers(self, gpu: GpuInfo) -> bool:
        if self.index is not None:
            return gpu.index == self.index
        if self.uuid is not None:
            return self.uuid in (gpu.uuid.lower(), (gpu.parent or "").lower())
        return gpu.pci is not None and normal_pci(gpu.pci) == self.pci

    def covers_also_when_gone(self, gpu: GpuInfo) -> bool:
        """Return whether it covers a GPU that may be gone: the index of such a GPU belongs to
        another one now."""
        return self.index is None and self.covers(gpu)


def normal_pci(text: str) -> str | None:
    """Return the address in lowercase with an eight-digit domain, as in `00000000:17:00.0`; None:
    no address."""
    match = _PCI.fullmatch(text)
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):08x}:{bus}:{device}.{function}".lower()
