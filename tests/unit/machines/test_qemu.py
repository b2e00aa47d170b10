"""Machines of the controller's own host, with programs that stand in for QEMU's."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from controller.clouds.base import CloudAway, CloudError, NoCapacity, Order, Refused
from controller.clouds.guests import Guest, Guests
from controller.clouds.qemu import QemuCloud
from controller.lifecycle.machines.model import Reach
from controller.provider_config.qemu import InstanceType, QemuPrograms, QemuProvider
from tests.support.cloud_contract import CloudContract, CloudWorld, installation
from tests.support.waiting import LONG, wait_until
from tests.unit.machines.parts import GIB, offer

__all__ = ["installation"]

SYSTEM = """\
#!{python} -IS
import os, signal, socket, sys, time
argv = sys.argv
while os.path.exists({late!r}):
    time.sleep(0.01)
if {says!r}:
    sys.exit({says!r})
if {greets}:
    server = socket.socket(socket.AF_UNIX)
    server.bind(argv[argv.index("-qmp") + 1].removeprefix("unix:").partition(",")[0])
    server.listen()
console = argv[argv.index("-chardev") + 1].partition("path=")[2].partition(",")[0]
open(console, "w").write("login: ")
while True:
    if not {greets}:
        signal.pause()
    server.accept()[0].send(b'{{"QMP": {{}}}}\\n')
"""
SIZE = 3 * GIB
INFO = f"""if [ "$1" = info ]; then echo '{{"virtual-size": {SIZE}}}'; exit; fi\n"""
LAYER = 'for last in "$@"; do before=$file; file=$last; done; echo layer > "$before"\n'
IMG = f"#!/bin/sh\n{INFO}{LAYER}"
ISO = '#!/bin/sh\nwhile [ "$1" != -output ]; do shift; done; umask 077; cat "$7" "$8" > "$2"\n'
SMALL = InstanceType(cpu=2, memory=4 * GIB, disk=20 * GIB, price=0.5)


def order(machine: str = "m1", **more: Any) -> Order:
    fields: dict[str, Any] = {
        "machine_id": machine,
        "name": f"burst-{machine}",
        "installation": "here",
        "fleet": "burst",
        "offer": offer(),
        "token": f"token{machine}",
        "user_data": "#cloud-config\n",
    }
    return Order(**(fields | more))


class Host:
    """A host for machines. `says`: with what QEMU ends at once; `greets`: it comes up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "machines"
        self._programs = folder
        self.late = folder / "late"
        """While this file is there, QEMU does not come up."""
        self.clouds: list[QemuCloud] = []

    def cloud(
        self,
        *,
        says: str = "",
        greets: bool = True,
        img: str = IMG,
        most: int = 3,
        seconds: float | None = None,
    ) -> QemuCloud:
        """Return the provider of a controller that has just started."""
        late = str(self.late)
        system = SYSTEM.format(python=sys.executable, says=says, greets=greets, late=late)
        programs = QemuPrograms(
            system=self._program("system", system),
            img=self._program("img", img),
            iso=self._program("iso", ISO),
        )
        settings = QemuProvider(
            folder=self.folder,
            image=Path("/images/node.qcow2"),
            types={"small": SMALL},
            most=most,
            programs=programs,
            accelerator="tcg",
        )
        if seconds is None:
            seconds = 30.0 if greets else 0.1
        made = QemuCloud("lab", settings, start_seconds=seconds)
        self.clouds.append(made)
        self.guests = Guests(settings)
        return made

    def _program(self, name: str, content: str) -> str:
        path = self._programs / name
        path.write_text(content)
        path.chmod(0o755)
        return str(path)


@pytest.fixture
async def host(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Host]:
    # The path of a socket has at most 107 bytes, and `tmp_path` has the test's name.
    made = Host(tmp_path_factory.mktemp("host"))
    yield made
    for guest in made.guests.all():
        await until_gone(made.clouds[-1], guest.id)


async def until_gone(cloud: QemuCloud, instance_id: str) -> None:
    async with asyncio.timeout(LONG):
        is_gone = False
        while not is_gone:
            is_gone = await cloud.terminate(instance_id)
            await asyncio.sleep(0)


async def ids(cloud: QemuCloud, installation: str = "here") -> list[str | None]:
    return [one.machine_id for one in await cloud.list_tagged(installation)]


class HostWorld:
    """A host on which the next call goes wrong; the one after finds all in order again."""

    def __init__(self, host: Host) -> None:
        self.offer = offer("small", region="here", zone=None, price=SMALL.price)
        self._host = host
        self._cloud = host.cloud()
        self._wrong: QemuCloud | None = None
        self._repair: Callable[[], object] = lambda: None

    @property
    def cloud(self) -> QemuCloud:
        if self._wrong is not None:
            wrong, self._wrong = self._wrong, None
            return wrong
        self._repair()
        return self._cloud

    def left(self) -> list[str]:
        return [file.name for file in self._host.folder.glob("*/*")]

    def refuse(self, error: type[CloudError]) -> None:
        full = error is NoCapacity
        self._wrong = self._host.cloud(most=0) if full else self._host.cloud(says="no such image")
        self._repair = self._host.cloud

    def lose(self) -> None:
        """QEMU begins, and its controller does not wait until it is up."""
        self._host.late.touch()
        self._wrong = self._host.cloud(seconds=0.0)
        self._repair = lambda: self._host.late.unlink(missing_ok=True)

    def cut(self) -> None:
        record = max(self._host.folder.glob("*/machine.json"))
        whole = record.read_text()
        record.write_text(whole[:20])
        self._wrong = self._cloud
        self._repair = lambda: record.write_text(whole)


@pytest.fixture
def world(host: Host) -> HostWorld:
    return HostWorld(host)


class TestContract(CloudContract):
    # A host has no quota, no account, and answers as often as it is asked.
    @pytest.mark.parametrize("error", [NoCapacity, Refused])
    async def test_a_refusal_has_its_kind_and_makes_nothing(
        self, world: CloudWorld, installation: str, error: type[CloudError]
    ) -> None:
        await super().test_a_refusal_has_its_kind_and_makes_nothing(world, installation, error)
        assert isinstance(world, HostWorld)
        assert world.left() == []


async def test_offers_leave_room_for_the_system(host: Host) -> None:
    (found,) = (await host.cloud().offers()).offers
    assert (found.instance_type, found.provider, found.cpu, found.price) == ("small", "lab", 2, 0.5)
    # What the node offers: a machine of 4 GiB shows 3.9, of which the shim keeps 256 MiB.
    assert found.memory == int(4 * GIB * 0.975) - GIB // 2
    assert found.disk == int(20 * GIB * 0.94) - 4 * GIB


async def test_one_token_is_one_machine_until_its_end(host: Host) -> None:
    cloud = host.cloud()
    made = await cloud.create(order())
    assert made.place is not None
    assert made.place.host == "127.0.0.1"
    assert await cloud.create(order()) == made
    (found,) = await cloud.list_tagged("here")
    assert (found.machine_id, found.instance_id, found.place) == (
        "m1",
        made.instance_id,
        made.place,
    )
    assert (await cloud.describe([made.instance_id, "none"])).keys() == {made.instance_id}
    assert "login: " in (await cloud.console(made.instance_id) or "")
    await until_gone(cloud, made.instance_id)
    assert await ids(cloud) == []
    assert list(host.folder.iterdir()) == []
    assert await cloud.terminate(made.instance_id)


async def test_the_seed_has_the_user_data_and_is_for_nobody_else(host: Host) -> None:
    made = await host.cloud().create(order(user_data="#cloud-config\nsecret: 1\n"))
    run = host.folder / made.instance_id / "run"
    assert "secret: 1" in (run / "seed.iso").read_text()
    assert "local-hostname: burst-m1" in (run / "seed.iso").read_text()
    assert run.stat().st_mode & 0o077 == 0
    assert [one.name for one in run.parent.iterdir() if "data" in one.name] == []


async def test_the_account_of_qemu_gets_to_its_folder_whatever_the_umask(host: Host) -> None:
    before = os.umask(0o077)
    try:
        made = await host.cloud().create(order())
    finally:
        os.umask(before)
    for folder in (host.folder, host.folder / made.instance_id):
        assert folder.stat().st_mode & 0o777 == 0o711


async def test_a_machine_of_another_installation_is_not_listed(host: Host) -> None:
    cloud = host.cloud()
    await cloud.create(order(installation="there"))
    assert (await ids(cloud), await ids(cloud, "there")) == ([], ["m1"])


async def test_a_full_host_has_no_capacity(host: Host) -> None:
    cloud = host.cloud(most=1)
    await cloud.create(order())
    with pytest.raises(NoCapacity, match="has its 1 machines"):
        await cloud.create(order("m2"))
    assert (await cloud.create(order())).instance_id == "tokenm1"


async def test_a_restarted_controller_finds_its_machines(host: Host) -> None:
    made = await host.cloud().create(order())
    again = host.cloud()
    assert await again.create(order()) == made
    assert await ids(again) == ["m1"]
    await until_gone(again, made.instance_id)
    assert await ids(again) == []


async def test_what_qemu_complains_about_is_a_refusal_that_leaves_nothing(host: Host) -> None:
    with pytest.raises(Refused, match="QEMU has ended: no such image"):
        await host.cloud(says="no such image").create(order())
    assert list(host.folder.iterdir()) == []


async def test_a_port_that_was_taken_meanwhile_is_tried_again(host: Host) -> None:
    says = "-netdev user: Could not set up host forwarding rule 'tcp:127.0.0.1:7-:22'"
    with pytest.raises(CloudAway, match="host forwarding"):
        await host.cloud(says=says).create(order())
    assert (await host.cloud().create(order())).instance_id == "tokenm1"


async def test_a_disk_that_cannot_be_made_is_a_refusal(host: Host) -> None:
    img = f"#!/bin/sh\n{INFO}echo the disk is full >&2; exit 1\n"
    with pytest.raises(Refused, match=r"img failed: the disk is full"):
        await host.cloud(img=img).create(order())
    assert list(host.folder.iterdir()) == []


async def test_an_image_that_cannot_be_read_is_refused_for_all_sizes(host: Host) -> None:
    img = "#!/bin/sh\necho no such file >&2; exit 1\n"
    with pytest.raises(Refused, match=r"providers\.lab\.image: the image .* no such f") as caught:
        await host.cloud(img=img).create(order())
    assert caught.value.reach is Reach.PROVIDER


async def test_a_disk_that_is_smaller_than_the_images_is_named(host: Host) -> None:
    img = IMG.replace(str(SIZE), str(30 * GIB))
    with pytest.raises(Refused, match="the image has a disk of 32212254720 bytes, more than its"):
        await host.cloud(img=img).create(order())
    found = [one.fault for one in await host.cloud(img=img).examine()]
    assert str(found[1]).startswith("providers.lab.instance_types.small.disk: is 21474836480")
    assert [one.fault for one in await host.cloud().examine()] == [None, None]


async def test_an_image_that_cannot_be_read_is_named(host: Host) -> None:
    img = "#!/bin/sh\necho Image is not in qcow2 format >&2; exit 1\n"
    (found,) = await host.cloud(img=img).examine()
    assert "providers.lab.image: the image /images/node.qcow2 cannot be read" in str(found.fault)
    assert "not in qcow2 format" in str(found.fault)


async def test_an_instance_type_that_is_gone_is_refused(host: Host) -> None:
    with pytest.raises(Refused, match="no instance type large"):
        await host.cloud().create(order(offer=offer("large")))


# -- a controller that is killed -------------------------------------------------------------


async def test_a_folder_that_was_cut_off_is_no_machine(host: Host) -> None:
    cloud = host.cloud()
    cut = host.folder / ".new-tokenm1"
    (cut / "run").mkdir(parents=True)
    assert await ids(cloud) == []
    assert not cut.exists()
    (cut / "run").mkdir(parents=True)
    assert (await cloud.create(order())).instance_id == "tokenm1"


async def test_a_machine_that_was_made_and_not_started_is_started_by_the_next_try(
    host: Host,
) -> None:
    again = host.cloud()
    guest = Guest(
        id="tokenm1",
        machine_id="m1",
        installation="here",
        name="burst-m1",
        fleet="burst",
        instance_type="small",
        cpu=2,
        memory=GIB,
        disk=4 * GIB,
        created_at=time.time(),
    )
    await asyncio.to_thread(host.guests.make, guest, "#cloud-config")
    assert await ids(again) == ["m1"]
    assert not host.guests.is_alive("tokenm1")
    await again.create(order())
    assert host.guests.is_alive("tokenm1")


async def test_a_machine_that_is_being_started_is_kept_and_can_be_ended(host: Host) -> None:
    slow = host.cloud(greets=False)
    with pytest.raises(CloudAway, match=r"has not answered for 0\.1 s"):
        await slow.create(order())
    again = host.cloud(greets=False)
    assert await ids(again) == ["m1"]
    assert (await again.describe(["tokenm1"])).keys() == {"tokenm1"}
    await until_gone(again, "tokenm1")
    assert list(host.folder.iterdir()) == []


async def test_a_start_of_which_nothing_is_written_yet_counts_as_running(host: Host) -> None:
    cloud = host.cloud()
    await cloud.create(order())
    # As when the controller was killed after the start, before it noted it.
    (host.folder / "tokenm1/started").unlink()
    assert await ids(cloud) == ["m1"]
    assert (await cloud.create(order())).instance_id == "tokenm1"
    await until_gone(cloud, "tokenm1")
    assert await ids(cloud) == []


async def test_the_end_waits_for_a_process_that_cannot_be_seen_yet(host: Host) -> None:
    cloud = host.cloud()
    await cloud.create(order())
    await until_ended(host, "tokenm1")
    # This process itself holds the lock, as in the moment of a start.
    fd = os.open(host.folder / "tokenm1/lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert not await cloud.terminate("tokenm1")
    assert await ids(cloud) == ["m1"]
    os.close(fd)
    assert await cloud.terminate("tokenm1")


async def until_ended(host: Host, guest_id: str) -> None:
    """End the machine's process from within, as when it powers itself off."""
    from controller.clouds import guests

    lock = host.folder / guest_id / "lock"
    for pid in guests._holders(lock):
        guests._kill(pid, lock)
    await asyncio.to_thread(wait_until, lambda: not host.guests.is_alive(guest_id), 30.0)


async def test_a_machine_that_powered_itself_off_is_gone(host: Host) -> None:
    cloud = host.cloud()
    made = await cloud.create(order())
    await until_ended(host, made.instance_id)
    assert await ids(cloud) == []
    assert await cloud.describe([made.instance_id]) == {}
    assert await cloud.terminate(made.instance_id)
    assert list(host.folder.iterdir()) == []


async def test_a_machine_that_nobody_ends_loses_its_disk_a_day_after_it_is_off(host: Host) -> None:
    cloud = host.cloud()
    made = await cloud.create(order())
    await until_ended(host, made.instance_id)
    await cloud.list_tagged("here")
    record = host.folder / made.instance_id / "machine.json"
    assert record.exists()
    old = time.time() - 90_000
    os.utime(host.folder / made.instance_id / "run/disk.qcow2", (old, old))
    text = record.read_text()
    (guest,) = host.guests.all()
    record.write_text(text.replace(str(guest.created_at), str(old)))
    await cloud.list_tagged("there")
    assert record.exists()
    await cloud.list_tagged("here")
    assert list(host.folder.iterdir()) == []


async def test_a_record_that_is_damaged_leaves_no_list_and_is_named(host: Host) -> None:
    cloud = host.cloud()
    made = await cloud.create(order())
    record = host.folder / made.instance_id / "machine.json"
    whole = record.read_text()
    record.write_text(whole[:20])
    with pytest.raises(CloudAway, match=rf"{made.instance_id}/machine\.json is damaged"):
        await cloud.list_tagged("here")
    record.write_text(whole)
    assert await ids(cloud) == ["m1"]


async def test_a_long_console_is_cut(host: Host) -> None:
    cloud = host.cloud()
    made = await cloud.create(order())
    console = host.folder / made.instance_id / "run/console.log"
    os.truncate(console, 5 << 20)
    await cloud.list_tagged("here")
    assert console.stat().st_size == 0


async def test_an_id_is_never_a_path(host: Host) -> None:
    cloud = host.cloud()
    (host.folder.parent / "kept").mkdir()
    assert await cloud.terminate("../kept")
    assert (host.folder.parent / "kept").exists()
