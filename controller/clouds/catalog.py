"""The types of machines and their prices, for providers whose API of machines has no prices.

A release has a file for each cloud, with a line for each type. Its columns after the GPUs are
regions, with the price of an hour on demand; an empty one says that the type is not rented there,
or that its price is not known. What `fairlead offers refresh` reads from a provider's API takes
precedence in the regions that it has, and is kept in the database, for each controller that leads.
"""

from __future__ import annotations

import csv
import importlib.resources
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from controller.lifecycle.machines.model import GpuOffer

log = logging.getLogger(__name__)
_GIB = 1 << 30
_MIB = 1 << 20
_OWN = ("type", "cpu", "memory_gib", "gpu", "gpus", "gpu_memory_mib")
_MAX_NAMED = 5
_MAX_PRICE = 10_000.0
"""A price of an hour is below it, as those of the controller's file are."""


class MachineType(msgspec.Struct, frozen=True, kw_only=True):
    """A type of machine. `prices` on demand and `spot` prices by region; `zones` by region: those
    that have the type, where that is known."""

    name: str
    cpu: float
    memory: int
    gpus: tuple[GpuOffer, ...]
    prices: Mapping[str, float]
    spot: Mapping[str, float] = {}
    zones: Mapping[str, tuple[str, ...]] = {}


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider's API told about these regions. `notes`: what it did not tell, as
    sentences. `older`: when those regions were read that refused at `read_at`, by their name.
    `unpriced`: why the regions told no prices that have only those of the release, by their name.
    """

    read_at: float
    regions: tuple[str, ...]
    types: tuple[MachineType, ...]
    notes: tuple[str, ...] = ()
    older: Mapping[str, float] = {}
    unpriced: Mapping[str, str] = {}

    def has_prices_of(self, region: str) -> bool:
        """Return whether the API once told the region's prices."""
        return region in self.regions and region not in self.unpriced


Keep = Callable[[str], Awaitable[None]]
"""Keeps the text of a reading. Raises CannotKeep."""


class CannotKeep(Exception):
    """What was read cannot be kept now; the message says why."""


class Catalog:
    """The catalog of one provider. `kept`: the text of what was read last, by any controller;
    `keep` keeps another one. None: nothing is kept."""

    def __init__(self, cloud: str, kept: str | None = None, keep: Keep | None = None) -> None:
        self._release = load(cloud)
        self._keep = keep
        self.reading = _read(cloud, kept)

    def types(self) -> list[MachineType]:
        """Return the types: as read in the regions that were read, else as the release has them."""
        if self.reading is None:
            return self._release
        return _over(self._release, self.reading)

    def begun(self, regions: Iterable[str]) -> list[MachineType]:
        """Return the types of the release with its prices in these regions."""
        return [_within(one, set(regions)) for one in self._release]

    async def replace(self, reading: Reading) -> None:
        """Take what was read from now on. Raises CannotKeep."""
        if self._keep is not None:
            await self._keep(msgspec.json.encode(reading).decode())
        self.reading = reading


def load(cloud: str) -> list[MachineType]:
    """Return the types that the release knows of this cloud."""
    file = importlib.resources.files(__package__).joinpath(f"{cloud}_catalog.csv")
    return [_type(row) for row in csv.DictReader(file.read_text().splitlines())]


def completed(
    types: Iterable[MachineType],
    release: Iterable[MachineType],
    regions: Iterable[str],
    own: Collection[str],
) -> tuple[tuple[MachineType, ...], tuple[str, ...]]:
    """Return the types, with the release's prices where the API told none, and what is to be said
    about prices that it did not tell. `own`: the types whose price is in the controller's file."""
    known = {one.name: one for one in release}
    kept: defaultdict[str, list[str]] = defaultdict(list)
    none: defaultdict[str, list[str]] = defaultdict(list)
    found = []
    for one in types:
        one = _credible(one)
        prices = dict(one.prices)
        for region in regions:
            if region in prices or one.name in own or region not in one.zones:
                continue
            before = known[one.name].prices.get(region) if one.name in known else None
            (none if before is None else kept)[region].append(one.name)
            if before is not None:
                prices[region] = before
        found.append(msgspec.structs.replace(one, prices=prices))
    notes = [
        f"{region}: the API has no price of {_some(names)}; that of the release is kept"
        for region, names in kept.items()
    ]
    notes += [
        f"{region}: there is no price of {_some(names)}, so none is rented; give your own under "
        f"prices in the controller's file"
        for region, names in none.items()
    ]
    return tuple(found), tuple(notes)


def with_older(new: Reading, before: Reading | None, refused: Mapping[str, str]) -> Reading:
    """Return the new reading with what was read before of the regions that `refused`, each with its
    reason."""
    older: dict[str, float] = {}
    notes: list[str] = []
    for region, why in refused.items():
        if before is None or region not in before.regions:
            notes.append(f"{region}: it was not read ({why}); the figures of the release are kept")
            continue
        older[region] = at = before.older.get(region, before.read_at)
        day = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
        notes.append(f"{region}: it was not read ({why}); its figures of {day} are kept")
    types = {one.name: one for one in new.types}
    for one in () if before is None else before.types:
        kept = _within(one, set(older))
        if not kept.prices and not kept.zones:
            continue
        newer = types.get(one.name)
        types[one.name] = kept if newer is None else _joined(newer, kept)
    return msgspec.structs.replace(
        new,
        regions=(*new.regions, *older),
        types=tuple(types.values()),
        notes=(*notes, *new.notes),
        older=older,
        unpriced={
            **{one: why for one, why in _unpriced(before).items() if one in older},
            **new.unpriced,
        },
    )


def _unpriced(reading: Reading | None) -> Mapping[str, str]:
    return {} if reading is None else reading.unpriced


def _joined(newer: MachineType, older: MachineType) -> MachineType:
    return msgspec.structs.replace(
        newer,
        prices={**older.prices, **newer.prices},
        spot={**older.spot, **newer.spot},
        zones={**older.zones, **newer.zones},
    )


def _some(names: Sequence[str]) -> str:
    """Return the names, or the first ones and a number."""
    if len(names) <= _MAX_NAMED:
        return ", ".join(names)
    return f"{', '.join(sorted(names)[:_MAX_NAMED])} and {len(names) - _MAX_NAMED} other types"


def _read(cloud: str, kept: str | None) -> Reading | None:
    if kept is None:
        return None
    try:
        reading = msgspec.json.decode(kept, type=Reading)
    except msgspec.MsgspecError as error:
        # The release's prices do; a controller that did not start would help nobody.
        log.warning("a catalog of %s cannot be read, so the release's is used: %s", cloud, error)
        return None
    return msgspec.structs.replace(reading, types=tuple(map(_credible, reading.types)))


def _credible(one: MachineType) -> MachineType:
    """Return the type without prices that cannot be: one of 0 would be outside of every budget."""

    def kept(prices: Mapping[str, float]) -> dict[str, float]:
        return {region: price for region, price in prices.items() if 0 < price < _MAX_PRICE}

    return msgspec.structs.replace(one, prices=kept(one.prices), spot=kept(one.spot))


def _over(release: Iterable[MachineType], reading: Reading) -> list[MachineType]:
    read = set(reading.regions)
    found = {one.name: one for one in reading.types}
    for one in release:
        elsewhere = {region: price for region, price in one.prices.items() if region not in read}
        if (newer := found.get(one.name)) is not None:
            found[one.name] = msgspec.structs.replace(newer, prices={**elsewhere, **newer.prices})
        elif elsewhere:
            found[one.name] = msgspec.structs.replace(one, prices=elsewhere)
    return list(found.values())


def _within(one: MachineType, regions: set[str]) -> MachineType:
    return msgspec.structs.replace(
        one,
        prices={region: price for region, price in one.prices.items() if region in regions},
        spot={region: price for region, price in one.spot.items() if region in regions},
        zones={region: zones for region, zones in one.zones.items() if region in regions},
    )


def _type(row: dict[str, str]) -> MachineType:
    gpus: tuple[GpuOffer, ...] = ()
    if row["gpu"]:
        memory = int(row["gpu_memory_mib"]) * _MIB
        gpus = (GpuOffer(name=row["gpu"], count=int(row["gpus"]), memory=memory),)
    return MachineType(
        name=row["type"],
        cpu=float(row["cpu"]),
        memory=int(float(row["memory_gib"]) * _GIB),
        gpus=gpus,
        prices={
            region: float(price) for region, price in row.items() if region not in _OWN and price
        },
    )
