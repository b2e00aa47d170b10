"""Which free GPUs of a node a job gets: those nearest to each other, and of equally near ones those
that leave the largest groups of near GPUs whole for the next job.

The shim verifies the choice, and chooses by the same order where it is only given a count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb

from controller.lifecycle.model import NodeGpu

_WORD = re.compile(r"[a-z0-9]+")
_MIG = "mig"
_MOST_COMBINATIONS = 5_000
_FAR = 0


def choose(fitting: Sequence[NodeGpu], free: Sequence[NodeGpu], count: int) -> list[NodeGpu]:
    """`count` of `fitting`, which are among `free`. Needs count <= len(fitting)."""
    if count == len(fitting):
        return list(fitting)
    places = {gpu.uuid: at for at, gpu in enumerate(free)}
    pattern = ((_FAR,) * len(free),) * len(free)
    if any(gpu.near for gpu in free):
        pattern = tuple(tuple(nearness(one, other) for other in free) for one in free)
    chosen = _chosen(
        tuple(places[gpu.uuid] for gpu in fitting), pattern, tuple(g.memory for g in free), count
    )
    return [free[at] for at in chosen]


@lru_cache(maxsize=4096)
def _chosen(
    fitting: tuple[int, ...],
    pattern: tuple[tuple[int, ...], ...],
    memory: tuple[int, ...],
    count: int,
) -> tuple[int, ...]:
    """GPUs as their places among the free ones: nodes of a fleet are alike, so that what was chosen
    on one holds for the next."""
    free = [
        NodeGpu(
            uuid=str(at),
            name="",
            memory=memory[at],
            near={str(other): near for other, near in enumerate(row)},
        )
        for at, row in enumerate(pattern)
    ]
    groups = list(_groups(free))
    candidates = _candidates([free[at] for at in fitting], count)
    best = min(candidates, key=lambda chosen: _cost(chosen, groups))
    return tuple(int(gpu.uuid) for gpu in best)


def is_named(gpu: NodeGpu, names: Sequence[str]) -> bool:
    """Whether a job that asks for these names (none: for any GPU) may have it. An instance of a GPU
    in MIG mode needs a name that asks for it."""
    if not names:
        return not is_instance(gpu)
    wanted = [name for name in names if _MIG in name.lower() or not is_instance(gpu)]
    return any(is_called(gpu.name, name) for name in wanted)


def is_instance(gpu: NodeGpu) -> bool:
    """A node that was read by an earlier version has instances without parents."""
    return gpu.mig_parent is not None or _MIG in _WORD.findall(gpu.name.lower())


def is_called(name: str, asked: str) -> bool:
    """Whether `asked` are words in a row of a GPU's name, however they are joined: RTX4090 is an
    "NVIDIA GeForce RTX 4090", L4 is no "NVIDIA L40S". Who does not ask for MIG gets a whole GPU."""
    words = _WORD.findall(name.lower())
    wanted = "".join(_WORD.findall(asked.lower()))
    if _MIG in words and _MIG not in wanted:
        return False
    rows = combinations(range(len(words) + 1), 2)
    return any("".join(words[start:end]) == wanted for start, end in rows)


def nearness(one: NodeGpu, other: NodeGpu) -> int:
    """Greater is nearer."""
    return one.near.get(other.uuid, _FAR)


def _candidates(fitting: Sequence[NodeGpu], count: int) -> Iterator[tuple[NodeGpu, ...]]:
    """All, or where those are too many: from each GPU on its nearest ones."""
    if comb(len(fitting), count) <= _MOST_COMBINATIONS:
        yield from combinations(fitting, count)
        return
    for seed in fitting:
        others = [gpu for gpu in fitting if gpu is not seed]
        yield (seed, *sorted(others, key=_distance_from(seed))[: count - 1])


def _distance_from(seed: NodeGpu) -> Callable[[NodeGpu], int]:
    return lambda gpu: -nearness(seed, gpu)


def _cost(chosen: Sequence[NodeGpu], groups: Sequence[frozenset[str]]) -> tuple[int, int, int, int]:
    near = [nearness(one, other) for one, other in combinations(chosen, 2)]
    uuids = {gpu.uuid for gpu in chosen}
    left = sum(len(group - uuids) ** 2 for group in groups)
    return -min(near, default=0), -sum(near), -left, sum(gpu.memory for gpu in chosen)


def _groups(free: Sequence[NodeGpu]) -> Iterator[frozenset[str]]:
    """For each degree of nearness, the groups that are at least that near."""
    for degree in sorted({nearness(one, other) for one, other in combinations(free, 2)}):
        groups: list[list[NodeGpu]] = []
        for gpu in free:
            near = [group for group in groups if any(nearness(gpu, o) >= degree for o in group)]
            joined = [other for group in near for other in group]
            groups = [group for group in groups if group not in near] + [[gpu, *joined]]
        yield from (frozenset(gpu.uuid for gpu in group) for group in groups)
