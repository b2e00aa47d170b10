"""Checks of a provider: what is tried, what is told, and that nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from common.refusals import Conflict, Forbidden, Invalid, NotFound, Unavailable
from controller.clock import system_chance
from controller.clouds.base import (
    CloudAway,
    Examined,
    KnownOffers,
    NoCapacity,
    Throttled,
    Unauthorized,
    each_region,
    keep_reading,
    open_to_others,
)
from controller.clouds.catalog import Catalog, MachineType, Reading, completed, with_older
from controller.daemon.providers import Catalogs
from controller.lifecycle.machines.life import Place
from controller.lifecycle.machines.model import Machine, MachineStatus
from controller.lifecycle.machines.reconcile import Orphan
from controller.machines.manager import MachineManager, MachineSettings
from controller.machines.trial import Trial
from controller.pipelines.renting.settings import Pinned
from controller.scheduling.index import CapacityIndex
from controller.service.machines.providers import ProviderService
from controller.service.machines.rented import RentedService
from controller.store.accounts import User
from fairlead.documents.providers import CatalogSource
from fairlead.model.spec import Role
from tests.doubles.clock import ManualClock
from tests.doubles.clouds import MemoryCloud
from tests.doubles.memory_store import MemoryDatabase, MemoryStore
from tests.support.waiting import eventually
from tests.unit.machines.parts import GIB, NOW, machine, offer, rentals_of

ADMIN = User(name="root", role=Role.ADMIN, created_at=0.0)
USER = User(name="ada", role=Role.USER, created_at=0.0)


def cheap_and_dear() -> MemoryCloud:
    return MemoryCloud(
        offer("dear", price=9.0), offer("cheap", price=2.0), offer("spot", price=1.0, spot=True)
    )


def service_of(cloud: MemoryCloud, *machines: Machine) -> tuple[ProviderService, MachineManager]:
    settings = MachineSettings(
        clouds={"lab": cloud},
        boot_data=lambda one: one.name,
        pin=lambda one: Pinned(host_key=one, token_digest=one),
    )

    async def is_empty(machine_id: str) -> bool:
        return True

    manager = MachineManager(
        rentals_of(CapacityIndex(), *machines),
        {},
        settings,
        ManualClock(),
        installation="here",
        is_empty=is_empty,
    )
    return ProviderService(system_chance(), ManualClock(), manager), manager


async def test_orphans_and_ends_that_fail_are_numbers_to_alert_by() -> None:
    ending = machine(status=MachineStatus.TERMINATING, terminating_at=NOW)
    _, manager = service_of(cheap_and_dear(), ending, machine("m2"))
    manager.calls["lab"].orphans = (
        Orphan(provider="lab", instance_id="i-1", machine_id=None, created_at=NOW, seen_at=NOW),
    )
    manager.calls["lab"].listed_at = NOW + 60.0
    pipeline: Any = SimpleNamespace(rentals=manager._rentals)
    fleets: Any = None
    rented = RentedService(pipeline, fleets, ManualClock(NOW + 90.0), manager)
    found = {
        sample.name: (sample.labels, sample.value)
        for family in rented.families()
        for sample in family.samples
    }
    assert found == {
        "fairlead_machine_orphans": ({"provider": "lab"}, 1.0),
        "fairlead_machines_ending_seconds": ({"provider": "lab"}, 90.0),
        "fairlead_provider_list_age_seconds": ({"provider": "lab"}, 30.0),
    }
    assert list(RentedService(pipeline, fleets, ManualClock(), None).families()) == []


def trial_of(cloud: MemoryCloud, **more: Any) -> Trial:
    return Trial(cloud, offer(), "here", "0123456789abcdef", look_every=0.01, **more)


@pytest.fixture
async def sshd() -> AsyncIterator[int]:
    """A port that greets as an SSH server does."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def test_a_check_tells_what_works() -> None:
    service, _ = service_of(cheap_and_dear())
    found = await service.check("lab", ADMIN)
    assert [one.fault for one in found] == [None, None]
    assert found[0].what == "credentials and 3 offers"


async def test_a_check_tells_what_does_not() -> None:
    cloud = cheap_and_dear()
    service, _ = service_of(cloud)
    cloud.fails["offers"] = [Unauthorized("the key is not valid")]
    (only,) = await service.check("lab", ADMIN)
    assert only.fault == (
        "the key is not valid: see to the credentials of `providers.lab` and to their rights"
    )
    cloud.fails["list"] = [CloudAway("a page is missing")]
    assert [one.fault for one in await service.check("lab", ADMIN)] == [None, "a page is missing"]
    cloud.fails["list"] = [ValueError("canary")]
    (_, fault) = await service.check("lab", ADMIN)
    assert fault.fault == "internal error (ValueError); see the log"
    (_, none) = await service_of(MemoryCloud())[0].check("lab", ADMIN)
    assert none.fault is not None


def test_a_file_of_credentials_that_others_may_read_is_named_with_its_field(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert open_to_others("hz", "token_file", None) == []
    assert open_to_others("hz", "token_file", file) == []
    file.touch(mode=0o600)
    assert open_to_others("hz", "token_file", file) == []
    file.chmod(0o644)
    (found,) = open_to_others("hz", "token_file", file)
    assert (found.what, found.fault) == (f"file {file}", None)
    fix = f"chmod 600 {file}"
    assert found.note == f"providers.hz.token_file: others of this host may read it: {fix}"


async def test_a_check_names_the_offers_that_are_not_known_and_the_account() -> None:
    cloud = cheap_and_dear()
    cloud.unknown, cloud.uses = {"north-2": "403 forbidden"}, "lab-1"
    service, _ = service_of(cloud)
    _, unknown, account, _ = await service.check("lab", ADMIN)
    assert (unknown.what, unknown.fault) == ("offers in north-2", "403 forbidden")
    assert (account.what, account.fault) == ("account lab-1", None)
    assert (await service.offered("lab", ADMIN)).notes == ("north-2: not known: 403 forbidden",)


async def test_a_check_names_the_machines_of_another_account() -> None:
    cloud = cheap_and_dear()
    cloud.uses = "second"
    service, manager = service_of(cloud, machine(account="first"))
    _, account, _ = await service.check("lab", ADMIN)
    assert "machine m1: it is in account first of provider lab" in (account.fault or "")
    await service.refresh("lab", ADMIN)
    assert manager._rentals.offers_of("lab") == ()


async def test_only_an_admin_checks_and_only_what_is_there() -> None:
    service, _ = service_of(cheap_and_dear())
    for work in (service.check("lab", USER), service.try_one("lab", None, USER)):
        with pytest.raises(Forbidden):
            await work
    with pytest.raises(NotFound, match="this controller has lab"):
        await service.check("labb", ADMIN)
    with pytest.raises(NotFound):
        service.trial("lab", ADMIN)
    with pytest.raises(Invalid, match="no offer of the type none"):
        await service.try_one("lab", "none", ADMIN)
    with pytest.raises(Unavailable):
        await ProviderService(system_chance(), ManualClock(), None).check("lab", ADMIN)


async def test_one_machine_is_made_and_ended(sshd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    brisk = partial(Trial, look_every=0.01)
    monkeypatch.setattr("controller.machines.manager.Trial", brisk)
    cloud = cheap_and_dear()
    cloud.place = Place(host="127.0.0.1", port=sshd)
    service, _ = service_of(cloud)
    await service.try_one("lab", None, ADMIN)
    await eventually(lambda: service.trial("lab", ADMIN).is_over)
    trial = service.trial("lab", ADMIN)
    assert trial.fault is None
    assert "cheap" in trial.steps[0]
    assert trial.steps[1:] == [
        "it is at 127.0.0.1",
        f"it booted: port {sshd} says SSH-2.0-OpenSSH_9.2",
        "it is gone",
    ]
    assert cloud.instances == {}


async def test_one_check_at_a_time_makes_a_machine() -> None:
    cloud = cheap_and_dear()
    service, manager = service_of(cloud)
    await service.try_one("lab", "dear", ADMIN)
    await eventually(lambda: cloud.instances)
    with pytest.raises(Conflict):
        await service.try_one("lab", None, ADMIN)
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert service.trial("lab", ADMIN).is_over
    assert cloud.instances == {}


async def test_a_machine_that_nobody_reaches_is_ended_and_told() -> None:
    cloud = cheap_and_dear()
    trial = trial_of(cloud, boot_seconds=0.05)
    await trial.run()
    assert trial.fault is not None
    assert "may the controller reach port 22" in trial.fault
    assert trial.steps[-1] == "it is gone"
    assert cloud.instances == {}


async def test_a_question_that_fails_is_asked_again(sshd: int) -> None:
    cloud = cheap_and_dear()
    trial = trial_of(cloud)
    cloud.fails["describe"] = [CloudAway("no answer"), Throttled("too many")]
    running = asyncio.create_task(trial.run())
    await eventually(lambda: not cloud.fails.get("describe"))
    for one in cloud.instances.values():
        one.place = Place(host="127.0.0.1", port=sshd)
    await running
    assert (trial.fault, trial.steps[-1]) == (None, "it is gone")


async def test_an_end_that_fails_is_asked_for_again() -> None:
    cloud = cheap_and_dear()
    cloud.fails["terminate"] = [CloudAway("no answer"), CloudAway("no answer")]
    trial = trial_of(cloud, boot_seconds=0.0)
    await trial.run()
    assert trial.steps[1:] == ["its end: no answer", "it is gone"]


async def test_a_machine_at_a_socket_is_reached_once_its_shim_listens(tmp_path: Path) -> None:
    cloud = cheap_and_dear()
    path = tmp_path / "shim.sock"
    cloud.place = Place(socket=str(path))
    trial = trial_of(cloud)
    running = asyncio.create_task(trial.run())
    await eventually(lambda: trial.steps[1:] == [f"it is at {path}"])
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), path)
    await running
    server.close()
    assert (trial.fault, trial.steps[2:]) == (
        None,
        ["its shim accepts connections", "it is gone"],
    )


async def test_an_address_that_cannot_be_read_is_asked_for_again(sshd: int) -> None:
    cloud = cheap_and_dear()
    cloud.place = Place(host="127.0.0.1", port=sshd)
    cloud.fails["describe"] = [CloudAway("no answer"), CloudAway("no answer")]
    trial = trial_of(cloud)
    await trial.run()
    assert (trial.fault, cloud.instances) == (None, {})
    assert trial.steps[1:3] == ["its address: no answer", "it is at 127.0.0.1"]


async def test_a_controller_that_stops_asks_for_the_end_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cloud = cheap_and_dear()
    cloud.fails["terminate"] = [CloudAway("no answer")]
    trial = trial_of(cloud)
    running = asyncio.create_task(trial.run())
    await eventually(lambda: "describe" in cloud.calls)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert cloud.calls.count("terminate") == 1
    assert trial.is_over
    assert str(trial.fault).startswith("the controller stopped")


async def test_of_two_requests_at_once_one_makes_a_machine() -> None:
    service, manager = service_of(cheap_and_dear())
    both = await asyncio.gather(
        service.try_one("lab", None, ADMIN),
        service.try_one("lab", None, ADMIN),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in both) == ["Conflict", "Trial"]
    await eventually(lambda: service.trial("lab", ADMIN).steps != [])
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NoCapacity("sold out"), "sold out"),
        (CloudAway("no answer"), "no answer; if a machine was made, it ends as an orphan"),
        (
            ValueError("canary"),
            "internal error (ValueError); see the log; if a machine was made, it ends as an orphan",
        ),
    ],
)
async def test_a_machine_that_is_not_made_is_told(error: Exception, told: str) -> None:
    cloud = cheap_and_dear()
    cloud.fails["create"] = [error]
    trial = trial_of(cloud)
    await trial.run()
    assert (trial.fault, trial.steps, trial.is_over) == (told, [], True)


class Misspelt(MemoryCloud):
    """Its file names a place that is not there, so it has no offers."""

    async def examine(self) -> Sequence[Examined]:
        return [Examined(what="offers in fsn9", fault="providers.lab.locations: fsn9")]


async def test_a_check_without_offers_names_the_field_that_leaves_none() -> None:
    (credentials, none, named) = await service_of(Misspelt())[0].check("lab", ADMIN)
    assert (credentials.fault, named.fault) == (None, "providers.lab.locations: fsn9")
    assert "it has none" in str(none.fault)


class Stocked(MemoryCloud):
    """A provider with a catalog, whose API tells other prices than the release."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__()
        self.catalog = catalog

    async def offers(self) -> KnownOffers:
        types = self.catalog.types()
        prices = ((one.name, price) for one in types for price in one.prices.values())
        return KnownOffers(offers=tuple(offer(name, price=price) for name, price in prices))

    async def refresh(self) -> None:
        self._called("refresh")
        type_ = MachineType(name="new", cpu=1.0, memory=GIB, gpus=(), prices={"us-east1": 7.0})
        regions = ("us-central1", "us-east1", "us-west1")
        reading = Reading(read_at=NOW, regions=regions, types=(type_,), notes=("odd",))
        await keep_reading(self.catalog, reading)


async def test_refreshed_prices_are_used_at_once_and_by_each_later_leader() -> None:
    database = MemoryDatabase()
    first = MemoryStore(database)
    await first.open()
    service, manager = service_of(Stocked(Catalogs(first, ()).of("gcp", "lab")))
    before = await service.offered("lab", ADMIN)
    assert (before.source, before.read_at) == (CatalogSource.RELEASE, None)
    assert "e2-standard-4" in {one.instance_type for one in before.offers}

    found = await service.refresh("lab", ADMIN)
    assert (found.source, found.read_at, found.notes) == (CatalogSource.API, NOW, ("odd",))
    assert [(one.instance_type, one.price) for one in found.offers] == [("new", 7.0)]
    assert manager._rentals.offers_of("lab") == found.offers

    database.seize()
    second = MemoryStore(database)
    await second.open()
    catalogs = Catalogs(second, (await second.load()).catalogs)
    again, _ = service_of(Stocked(catalogs.of("gcp", "lab")))
    assert await again.offered("lab", ADMIN) == found
    assert catalogs.of("aws", "lab").reading is None
    # The first one leads no more, so what it reads is not kept, and it says so.
    with pytest.raises(Unavailable, match="could not be kept in the database: "):
        await service.refresh("lab", ADMIN)


async def test_a_catalog_that_cannot_be_read_leaves_the_prices_of_the_release() -> None:
    damaged, _ = service_of(Stocked(Catalog("gcp", "{")))
    assert (await damaged.offered("lab", ADMIN)).source is CatalogSource.RELEASE


async def test_a_refresh_that_fails_leaves_the_prices() -> None:
    cloud = Stocked(Catalog("gcp"))
    service, _ = service_of(cloud)
    await service.refresh("lab", ADMIN)
    for error in (Unauthorized("the key is not valid"), ValueError("canary")):
        cloud.fails["refresh"] = [error]
        with pytest.raises(Unavailable) as caught:
            await service.refresh("lab", ADMIN)
        assert "canary" not in str(caught.value)
    assert (await service.offered("lab", ADMIN)).source is CatalogSource.API
    with pytest.raises(Forbidden):
        await service.refresh("lab", USER)
    with pytest.raises(Forbidden):
        await service.offered("lab", USER)


async def test_a_provider_that_tells_its_prices_is_asked_again() -> None:
    cloud = cheap_and_dear()
    service, manager = service_of(cloud)
    found = await service.refresh("lab", ADMIN)
    assert (found.source, len(found.offers)) == (CatalogSource.PROVIDER, 3)
    assert manager._rentals.offers_of("lab") == found.offers


@pytest.mark.parametrize(
    ("days", "what", "note"),
    [
        (3, "prices, read from the API 3 days ago", None),
        (40, "prices, read from the API 40 days ago", "run `fairlead offers refresh lab`"),
    ],
)
async def test_a_check_says_how_old_the_prices_are(days: int, what: str, note: str | None) -> None:
    cloud = Stocked(Catalog("gcp"))
    manager = service_of(cloud)[1]
    clock = ManualClock(NOW)
    service = ProviderService(system_chance(), clock, manager)
    fresh = (await service.check("lab", ADMIN))[2]
    assert fresh.note == "of the release, never read: run `fairlead offers refresh lab`"
    await service.refresh("lab", ADMIN)
    clock.time += days * 86400.0
    found = (await service.check("lab", ADMIN))[2]
    assert (found.what, found.note, found.fault) == (what, note, None)


async def test_a_check_names_regions_whose_prices_were_not_told() -> None:
    cloud = Stocked(Catalog("gcp"))
    await cloud.catalog.replace(
        Reading(read_at=NOW, regions=("north",), types=(), unpriced={"north": "not allowed"})
    )
    found = await ProviderService(system_chance(), ManualClock(NOW), service_of(cloud)[1]).check(
        "lab", ADMIN
    )
    notes = {one.what: one.note for one in found}
    assert notes["prices in north"] == "of the release: not allowed"


def test_prices_that_the_api_does_not_tell_are_kept_or_missing_and_said() -> None:
    def type_(name: str, **prices: float) -> MachineType:
        zones = {"north": ("north-a",)}
        return MachineType(name=name, cpu=1.0, memory=GIB, gpus=(), prices=prices, zones=zones)

    told = [type_("told", north=1.0), type_("kept"), type_("none"), type_("own")]
    found, notes = completed(told, [type_("kept", north=2.0)], ["north", "south"], {"own"})
    assert [dict(one.prices) for one in found] == [{"north": 1.0}, {"north": 2.0}, {}, {}]
    assert notes == (
        "north: the API has no price of kept; that of the release is kept",
        "north: there is no price of none, so none is rented; give your own under prices in the "
        "controller's file",
    )


def _type(name: str, **prices: float) -> MachineType:
    zones = {region: (f"{region}-a",) for region in prices}
    return MachineType(name=name, cpu=1.0, memory=GIB, gpus=(), prices=prices, zones=zones)


def test_what_a_region_told_before_is_kept_while_it_refuses() -> None:
    before = Reading(
        read_at=86400.0,
        regions=("north", "south", "gone"),
        types=(_type("both", north=1.0, south=2.0), _type("old", south=3.0), _type("x", gone=1.0)),
    )
    told = Reading(
        read_at=172800.0, regions=("north",), types=(_type("both", north=1.5),), notes=("a note",)
    )
    after = with_older(told, before, {"south": "not allowed", "west": "503"})
    assert {one.name: dict(one.prices) for one in after.types} == {
        "both": {"north": 1.5, "south": 2.0},
        "old": {"south": 3.0},
    }
    assert after.types[0].zones == {"north": ("north-a",), "south": ("south-a",)}
    assert (after.regions, after.older) == (("north", "south"), {"south": 86400.0})
    assert after.notes == (
        "south: it was not read (not allowed); its figures of 1970-01-02 00:00 UTC are kept",
        "west: it was not read (503); the figures of the release are kept",
        "a note",
    )
    again = with_older(told, after, {"south": "not allowed"})
    assert again.older == {"south": 86400.0}
    unpriced = msgspec.structs.replace(before, unpriced={"south": "why", "gone": "why"})
    assert with_older(told, unpriced, {"south": "503"}).unpriced == {"south": "why"}
    assert with_older(told, again, {}) == told


async def test_a_region_that_refuses_keeps_no_other_from_being_read() -> None:
    async def ask(region: str) -> str:
        if region != "north":
            raise CloudAway(f"{region} is away")
        return "told"

    assert await each_region(["north", "south"], ask) == (
        {"north": "told"},
        {"south": "south is away"},
    )
    with pytest.raises(CloudAway, match="south is away"):
        await each_region(["south", "west"], ask)


@pytest.mark.parametrize("price", [0.0, -1.0, 20_000.0])
def test_a_price_that_cannot_be_is_no_price(price: float) -> None:
    one = MachineType(
        name="a",
        cpu=1.0,
        memory=1,
        gpus=(),
        prices={"r": price},
        spot={"r": price},
        zones={"r": ("r-a",)},
    )
    (told,), notes = completed([one], [], ["r"], ())
    assert (told.prices, told.spot, len(notes)) == ({}, {}, 1)
    reading = Reading(read_at=1.0, regions=("r",), types=(one,))
    kept = Catalog("gcp", msgspec.json.encode(reading).decode()).reading
    assert kept is not None
    assert (kept.types[0].prices, kept.types[0].spot) == ({}, {})
