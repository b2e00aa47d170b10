"""Packing decides whether several jobs fit in one domain together.

Jobs of one kind are packed by giving each the best node: no other order would place more of them.
Jobs of several kinds compete, because the best node of one may be the only node of another.
`Search` then tries every way to place them, up to a bound, and says whether it tried all.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import product
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from controller.lifecycle.model import NodeGpu
from controller.scheduling.fitting.capacity import Need, Shape, kind_of
from controller.scheduling.fitting.fit import (
    Room,
    choose,
    fitting_gpus,
    in_blocks,
    less,
    shortfalls,
)
from controller.scheduling.index import Where
from controller.scheduling.queue import Member
from controller.scheduling.trial_capacity import TrialCapacity
from fairlead.wire.amounts import UNITS, Unit, amounts_in

MAX_EFFORT = 10_000
"""The steps of one search, some 40 ms. 600 jobs of six kinds on whole nodes need 6,300."""
MAX_SHARES = 50
"""The number of smaller gangs that `most_together` tries."""
_GPU_CHOICES = 64
"""The number of ways to choose GPUs of several kinds on one node; with more, no search is exact."""


def by_need(members: Iterable[Member]) -> dict[Need, int]:
    counted: dict[Need, int] = {}
    for member in members:
        counted[member.need] = counted.get(member.need, 0) + 1
    return counted


def by_kind(counted: Mapping[Need, int]) -> dict[Need, int]:
    """Return the same jobs with one need for all that differ only in what they prefer."""
    first: dict[object, Need] = {}
    found: dict[Need, int] = {}
    for need, count in counted.items():
        same = first.setdefault(need.kind, need)
        found[same] = found.get(same, 0) + count
    return found


def how_many_fit(trial: TrialCapacity, need: Need, where: Where, enough: int) -> int:
    """Return how many such jobs fit there if no others go there, at most `enough`."""
    found = 0
    for shape, free, nodes in trial.sorted(need.scope, where).bins(trial.rooms):
        found += nodes * most_in(shape, free, need, enough)
        if found >= enough:
            return enough
    return found


def how_many_fit_of(trial: TrialCapacity, counted: Mapping[Need, int], where: Where) -> int:
    """Return how many of these jobs fit there, at most as many as are counted; for jobs of several
    kinds it is an upper bound."""
    return sum(how_many_fit(trial, need, where, count) for need, count in counted.items())


def most_in(shape: Shape, free: Room, need: Need, enough: int) -> int:
    """Return how many such jobs fit in this room of this shape, at most `enough`."""
    if not need.fits(shape, free):
        return 0
    asked = in_blocks(need.resources, free.node.capacity)
    if asked.whole_node:
        return 1
    limits = [enough]
    pairs = zip(UNITS.values(), amounts_in(free), amounts_in(asked), strict=True)
    for unit, has, wanted in pairs:
        if wanted:
            # 0.3 / 0.1 is 2.9999999999999996.
            limits.append(int(has / wanted + 1e-6) if unit is Unit.CORES else int(has // wanted))
    if asked.port is not None and free.node.capacity.shares_ports:
        limits.append(1)
    if asked.gpu.count:
        limits.append(len(fitting_gpus(asked.gpu, free.gpus)) // asked.gpu.count)
    return max(0, min(limits))


class Spot(msgspec.Struct, frozen=True):
    """The node of one job with this need, and its GPUs; `gpus` None: any that fit."""

    need: Need
    node_id: str
    gpus: tuple[NodeGpu, ...] | None


class Outcome(Enum):
    FITS = "fits"
    NEVER = "never"
    """Every way was tried."""
    UNKNOWN = "unknown"
    """There are too many ways to try them all."""


class Packed(msgspec.Struct, frozen=True):
    """`spots`: one for each job, if all fit. `effort`: the steps that the search took."""

    outcome: Outcome
    effort: int
    spots: tuple[Spot, ...] = ()


def pack(
    trial: TrialCapacity,
    counted: Mapping[Need, int],
    where: Where,
    kept: Iterable[str] = (),
    max_effort: int = MAX_EFFORT,
) -> Packed:
    """Return where all these jobs fit together in the domain; the trial capacity stays as it is.

    The amounts that a user left out count as the least. `kept`: nodes to prefer among equally
    preferred ones.
    """
    return Search(trial, counted, where, frozenset(kept), max_effort).run()


class Together(msgspec.Struct, frozen=True):
    """`count` jobs of several kinds fit at once.

    `is_most`: no more of them do; else there were too many ways to try them all. `all_of_them`:
    whether all fit that fit without the other kinds.
    """

    count: int
    is_most: bool
    all_of_them: Outcome


def most_together(
    trial: TrialCapacity, counted: Mapping[Need, int], where: Where, max_effort: int = MAX_EFFORT
) -> Together:
    """Return how many of these jobs fit in the domain at once."""
    needs = list(counted)
    alone = [how_many_fit(trial, need, where, count) for need, count in counted.items()]
    if len(needs) == 1:
        return Together(alone[0], True, Outcome.FITS)
    greedy = Search(trial, counted, where, frozenset(), max_effort).fill()
    tried: list[Outcome] = []
    for share in _shares(alone):
        if sum(share) <= greedy:
            break
        if len(tried) == MAX_SHARES or max_effort <= 0:
            tried.append(Outcome.UNKNOWN)
            break
        wanted = {need: count for need, count in zip(needs, share, strict=True) if count}
        packed = pack(trial, wanted, where, max_effort=max_effort)
        max_effort -= packed.effort
        tried.append(packed.outcome)
        if packed.outcome is Outcome.FITS:
            greedy = sum(share)
            break
    whole = tried[0] if tried else Outcome.FITS
    return Together(greedy, Outcome.UNKNOWN not in tried, whole)


def _shares(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield all smaller or equal counts, the largest sums first."""
    for left_out in range(sum(counts) + 1):
        yield from _leaving_out(counts, left_out)


def _leaving_out(counts: Sequence[int], number: int) -> Iterator[tuple[int, ...]]:
    if not counts:
        if not number:
            yield ()
        return
    for here in range(min(counts[0], number) + 1):
        for rest in _leaving_out(counts[1:], number - here):
            yield (counts[0] - here, *rest)


_Class: TypeAlias = tuple[tuple[int | None, ...], bool, frozenset[int], Shape]
"""Nodes that are alike for a search: by need the tier (None: it may not go there), whether they are
kept, the needs that were tried there in vain, and the shape."""


class _About(msgspec.Struct, frozen=True):
    """What a node of one class holds: by need the most such jobs alone, and whether it holds one
    job at most, of whatever kind."""

    most: tuple[int, ...]
    is_single: bool

    @property
    def fitting(self) -> int:
        """The needs that fit, as bits."""
        return sum(1 << at for at, most in enumerate(self.most) if most)


class Search:
    """One search; use it once.

    It places job after job, first those with the fewest places to spare, and takes a placement back
    when what is left cannot fit. Nodes that are alike are tried once, and so are jobs with one
    need.
    """

    def __init__(
        self,
        trial: TrialCapacity,
        counted: Mapping[Need, int],
        where: Where,
        kept: frozenset[str],
        max_effort: int,
    ) -> None:
        self._needs = list(counted)
        self._counts = list(counted.values())
        self._left = list(self._counts)
        self._shape_of = trial.index.shape_of
        self._max_effort = max_effort
        self.effort = 0
        self._is_cut = False
        """Whether some ways were left out."""
        self._rooms: dict[str, Room] = {}
        self._class_of: dict[str, _Class] = {}
        self._classes: dict[_Class, list[tuple[str, str]]] = {}
        self._about: dict[_Class, _About] = {}
        self._open_to: list[dict[_Class, None]] = [{} for _ in self._needs]
        """By need: the classes that hold such a job."""
        self._open = [0] * len(self._needs)
        """By need: how many fit on the nodes that hold several jobs."""
        self._single: Counter[int] = Counter()
        """How many nodes hold one job, by the needs that fit."""
        self._journal: list[tuple[str, Room, _Class]] = []
        self._spots: list[tuple[int, Spot]] = []
        self._slack: list[int] = []
        self._add_nodes(trial, where, kept)

    def run(self) -> Packed:
        ways: list[Iterator[None]] = []
        while any(self._left):
            if self._is_possible():
                ways.append(self._ways())
            while ways and next(ways[-1], ways) is ways:
                ways.pop()
            if self.effort > self._max_effort:
                return Packed(Outcome.UNKNOWN, self.effort)
            if not ways:
                return Packed(Outcome.UNKNOWN if self._is_cut else Outcome.NEVER, self.effort)
        return Packed(Outcome.FITS, self.effort, tuple(spot for _, spot in self._spots))

    def fill(self) -> int:
        """Give each job the best node, and return how many got one."""
        while True:
            self._is_possible()
            fitting = [at for at, left in enumerate(self._left) if left and self._open_to[at]]
            if not fitting:
                return len(self._spots)
            at = min(fitting, key=lambda at: self._slack[at])
            node_id = self._candidates(at)[0][0]
            self._put(at, node_id, self._gpu_choices(at, node_id)[0])

    def _add_nodes(self, trial: TrialCapacity, where: Where, kept: frozenset[str]) -> None:
        """Add the nodes of the domain; of each class no more than there are jobs."""
        index, enough = trial.index, sum(self._left)
        tiers = [trial.sorted(need.scope, where) for need in self._needs]
        alike: Counter[_Class] = Counter()
        nodes = sorted(index.rooms if where is None else index.domains.get(where, ()))
        self.effort += len(nodes) // 50
        for node_id in nodes:
            allowed = tuple(one.tier(node_id) for one in tiers)
            key = (allowed, node_id in kept, frozenset[int](), trial.shape(node_id))
            alike[key] += 1
            free = trial.rooms[node_id]
            if alike[key] <= enough and any(self._about_class(key, free).most):
                self._rooms[node_id] = free
                self._enter(node_id, key)

    # -- one step ---------------------------------------------------------------------------

    def _ways(self) -> Iterator[None]:
        """Place one job in each way, one after the other. At the end all is as it was before."""
        at = min((at for at, left in enumerate(self._left) if left), key=lambda at: self._slack[at])
        before = len(self._journal)
        for alike in self._candidates(at):
            for gpus in self._gpu_choices(at, alike[0]):
                mark = len(self._journal)
                self._put(at, alike[0], gpus)
                yield
                self._spots.pop()
                self._left[at] += 1
                self._undo(mark)
            # No job with this need goes to any of these nodes: they are alike, and so are the jobs.
            for node_id in alike:
                tiers, kept, banned, shape = self._class_of[node_id]
                self._change(node_id, self._rooms[node_id], (tiers, kept, banned | {at}, shape))
            self.effort += len(alike)
            if not self._is_possible():
                break
        self._undo(before)

    def _candidates(self, at: int) -> list[list[str]]:
        """Return the nodes that the job fits, by class; the best first."""
        fitting = sorted(self._open_to[at], key=lambda key: (key[0][at] or 0, not key[1], key[3]))
        self.effort += len(fitting)
        return [[node_id for _, node_id in self._classes[key]] for key in fitting]

    def _put(self, at: int, node_id: str, gpus: tuple[NodeGpu, ...] | None) -> None:
        need, free = self._needs[at], self._rooms[node_id]
        tiers, kept, banned, _ = self._class_of[node_id]
        after = _after(free, need, gpus)
        self._change(node_id, after, (tiers, kept, banned, self._shape_of(after)))
        self._spots.append((at, Spot(need, node_id, gpus)))
        self._left[at] -= 1
        self.effort += 1

    def _gpu_choices(self, at: int, node_id: str) -> list[tuple[NodeGpu, ...] | None]:
        """Return the ways to choose GPUs there; None: it makes no difference which."""
        free = self._rooms[node_id]
        asked = in_blocks(self._needs[at].resources, free.node.capacity)
        kinds: dict[object, list[NodeGpu]] = {}
        for gpu in () if asked.whole_node else fitting_gpus(asked.gpu, free.gpus):
            kinds.setdefault(kind_of(gpu), []).append(gpu)
        if len(kinds) < 2 or not asked.gpu.count:
            return [None]
        counts = product(*(range(len(gpus), -1, -1) for gpus in kinds.values()))
        found: list[tuple[NodeGpu, ...] | None] = []
        for chosen in counts:
            if sum(chosen) != asked.gpu.count:
                continue
            if len(found) == _GPU_CHOICES:
                self._is_cut = True
                break
            pairs = zip(kinds.values(), chosen, strict=True)
            parts = (choose(gpus, free.gpus, count) for gpus, count in pairs if count)
            found.append(tuple(gpu for part in parts for gpu in part))
        return found

    # -- what is left -----------------------------------------------------------------------

    def _is_possible(self) -> bool:
        """Return whether nothing speaks against the rest: each kind fits alone, and so do all on
        the nodes that hold one job each."""
        singles = list(self._single.items())
        self.effort += 1
        self._slack = [
            self._open[at] + sum(count for mask, count in singles if mask >> at & 1) - left
            for at, left in enumerate(self._left)
        ]
        if any(slack < 0 for slack, left in zip(self._slack, self._left, strict=True) if left):
            return False
        self.effort += len(singles)
        demand = [max(0, left - fit) for left, fit in zip(self._left, self._open, strict=True)]
        return sum(map(bool, demand)) < 2 or _matches(demand, singles)

    def _about_class(self, key: _Class, room: Room) -> _About:
        """Return what is known of the class; `room` is any of it."""
        if key not in self._about:
            tiers, _, banned, shape = key
            most = tuple(
                most_in(shape, room, need, self._counts[at])
                if tiers[at] is not None and at not in banned
                else 0
                for at, need in enumerate(self._needs)
            )
            self._about[key] = _About(most, self._is_single(room, most))
        return self._about[key]

    def _is_single(self, free: Room, most: Sequence[int]) -> bool:
        kinds = {kind_of(gpu) for gpu in free.gpus}
        if max(most) > 1 or len(kinds) > 1:
            return False
        fitting = [at for at, count in enumerate(most) if count]
        return not any(
            not shortfalls(self._needs[other].resources, _after(free, self._needs[at], None))
            for at in fitting
            for other in fitting
            if other != at or self._counts[at] > 1
        )

    # -- the nodes --------------------------------------------------------------------------

    def _change(self, node_id: str, after: Room, key: _Class) -> None:
        self._journal.append((node_id, self._rooms[node_id], self._class_of[node_id]))
        self._leave(node_id)
        self._rooms[node_id] = after
        self._enter(node_id, key)

    def _undo(self, mark: int) -> None:
        while len(self._journal) > mark:
            node_id, before, key = self._journal.pop()
            self._leave(node_id)
            self._rooms[node_id] = before
            self._enter(node_id, key)

    def _enter(self, node_id: str, key: _Class) -> None:
        self._class_of[node_id] = key
        about = self._about_class(key, self._rooms[node_id])
        if key not in self._classes:
            self._classes[key] = []
            for at, most in enumerate(about.most):
                if most:
                    self._open_to[at][key] = None
        insort(self._classes[key], (self._rooms[node_id].node.name, node_id))
        self._count(about, 1)

    def _leave(self, node_id: str) -> None:
        key = self._class_of[node_id]
        self._count(self._about[key], -1)
        self._classes[key].remove((self._rooms[node_id].node.name, node_id))
        if not self._classes[key]:
            del self._classes[key]
            for at, most in enumerate(self._about[key].most):
                if most:
                    del self._open_to[at][key]

    def _count(self, about: _About, by: int) -> None:
        if about.is_single:
            self._single[about.fitting] += by
            return
        for at, most in enumerate(about.most):
            self._open[at] += by * most


def _after(free: Room, need: Need, gpus: Sequence[NodeGpu] | None) -> Room:
    """Return the room with one more job, which gets the least that it needs."""
    asked = in_blocks(need.resources, free.node.capacity)
    if gpus is None and not asked.whole_node and asked.gpu.count:
        gpus = choose(fitting_gpus(asked.gpu, free.gpus), free.gpus, asked.gpu.count)
    left = less(free, asked, [gpu.uuid for gpu in gpus or ()])
    return replace(left, own_starts=left.own_starts + 1)


def _matches(demand: Sequence[int], singles: Sequence[tuple[int, int]]) -> bool:
    """Return whether each demand finds nodes of its own, by augmenting paths. `singles`: the
    demands that a node may serve, as bits, and the number of such nodes."""
    idle = [count for _, count in singles]
    serving = [[0] * len(singles) for _ in demand]
    for first, wanted in enumerate(demand):
        while wanted:
            path = _path(first, singles, idle, serving)
            if path is None:
                return False
            moved = min(wanted, idle[path[0][1]], *(serving[at][node] for at, node in path[1::2]))
            idle[path[0][1]] -= moved
            for number, (at, node) in enumerate(path):
                serving[at][node] += -moved if number % 2 else moved
            wanted -= moved
    return True


def _path(
    first: int,
    singles: Sequence[tuple[int, int]],
    idle: Sequence[int],
    serving: Sequence[Sequence[int]],
) -> list[tuple[int, int]] | None:
    """Return the changes that serve one more of the demand `first`: in turn a demand with nodes
    that it gets, the first of them idle, and one with nodes that it gives up; None: there are
    none."""
    came_from: dict[int, tuple[int, int]] = {}
    seen, ahead = {first}, deque([first])
    while ahead:
        at = ahead.popleft()
        for node, (mask, _) in enumerate(singles):
            if not mask >> at & 1:
                continue
            if idle[node]:
                path = [(at, node)]
                while at != first:
                    node, getter = came_from[at]
                    path += [(at, node), (getter, node)]
                    at = getter
                return path
            for other, nodes in enumerate(serving):
                if other not in seen and nodes[node]:
                    seen.add(other)
                    came_from[other] = (node, at)
                    ahead.append(other)
    return None
