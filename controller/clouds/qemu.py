"""The controller's own host as a provider: QEMU processes that boot the image of a node.

It needs no account anywhere, so it is also the way to try everything about rented machines. The
folder is the only memory: a controller that starts again finds its machines there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from common.threads import to_the_end
from controller.clouds.base import (
    Abilities,
    CloudAway,
    Created,
    Described,
    Examined,
    KnownOffers,
    NoCapacity,
    Order,
    Refused,
)
from controller.clouds.guests import Guest, Guests, ImageUnreadable, StartFailed
from controller.clouds.sizes import disk_for_jobs, memory_for_jobs
from controller.lifecycle.machines.life import Place
from controller.lifecycle.machines.model import Offer, Reach
from controller.lifecycle.machines.reconcile import Found, Traits
from controller.provider_config.qemu import QemuProvider

_ID_LENGTH = 20
_REGION = "here"
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_PORT_TAKEN = "host forwarding"
_IMAGE = 4 << 30
"""The disk that an image without driver and toolkit takes: a machine here has no GPU."""
T = TypeVar("T")


class QemuCloud:
    """Machines of this host."""

    abilities = Abilities(idempotent=True, visible_after=0.0)

    def __init__(
        self, name: str, config: QemuProvider, *, start_seconds: float = _START_SECONDS
    ) -> None:
        self._name = name
        self._folder = os.path.normpath(config.folder)
        self._types = config.types
        self._most = config.most
        self._rate = config.rate
        self._start_seconds = start_seconds
        self._guests = Guests(config)
        self._lock = asyncio.Lock()

    async def account(self) -> str:
        return self._folder

    async def offers(self) -> KnownOffers:
        offers = (
            Offer(
                provider=self._name,
                instance_type=name,
                region=_REGION,
                price=one.price,
                cpu=float(one.cpu),
                memory=memory_for_jobs(one.memory),
                disk=disk_for_jobs(one.disk, image=_IMAGE),
            )
            for name, one in self._types.items()
        )
        return KnownOffers(offers=tuple(offers)).at(self._rate)

    async def create(self, order: Order) -> Created:
        size = self._types.get(order.offer.instance_type)
        if size is None:
            raise Refused(f"there is no instance type {order.offer.instance_type} any more")
        guest = Guest(
            id=order.token[:_ID_LENGTH],
            machine_id=order.machine_id,
            installation=order.installation,
            name=order.name,
            fleet=order.fleet,
            instance_type=order.offer.instance_type,
            cpu=size.cpu,
            memory=size.memory,
            disk=size.disk,
            created_at=time.time(),
        )
        made = await self._alone(lambda: self._begin(guest, order.user_data))
        await self._until_it_runs(made)
        return Created(instance_id=made.id, place=_place(made))

    def _begin(self, guest: Guest, user_data: str) -> Guest:
        """Make and start the machine, as far as that has not happened yet."""
        if self._guests.find(guest.id) is None and len(self._guests.all()) >= self._most:
            raise NoCapacity(f"this host has its {self._most} machines")
        self._guests.choose_accelerator()
        try:
            made = self._guests.make(guest, user_data)
            self._guests.start(made)
        except ImageUnreadable as failed:
            raise self._refusal(guest.id, str(failed), Reach.PROVIDER) from None
        except StartFailed as failed:
            raise self._refusal(guest.id, str(failed)) from None
        return made

    def _refusal(
        self, guest_id: str, message: str, reach: Reach = Reach.OFFER
    ) -> Refused | CloudAway:
        """Return the definite no, once nothing of the machine is left."""
        if reach is Reach.PROVIDER:
            message = f"providers.{self._name}.image: {message}"
        if self._guests.end(guest_id):
            return Refused(message, reach)
        return CloudAway(message)

    def _why_ended(self, guest_id: str) -> Refused | CloudAway:
        complaint = self._guests.complaint(guest_id)
        found = self._refusal(guest_id, f"QEMU has ended: {complaint}")
        # Another process took the port since it was chosen; the next try chooses another one.
        return CloudAway(str(found)) if _PORT_TAKEN in complaint else found

    async def _until_it_runs(self, guest: Guest) -> None:
        """Wait until QEMU answers: a port that was taken meanwhile, or an image that is not there,
        ends it before."""
        deadline = time.monotonic() + self._start_seconds
        while not await _answers(str(self._guests.control_socket(guest.id))):
            if not self._guests.is_alive(guest.id):
                raise await self._alone(lambda: self._why_ended(guest.id))
            if time.monotonic() > deadline:
                raise CloudAway(f"QEMU has not answered for {self._start_seconds:g} s")
            await asyncio.sleep(_LOOK_SECONDS)

    async def describe(self, instance_ids: Sequence[str]) -> Mapping[str, Described]:
        return await self._alone(
            lambda: {
                one.id: Described(place=_place(one))
                for name in instance_ids
                if (one := self._guests.find(name)) is not None and self._is_there(one)
            }
        )

    async def terminate(self, instance_id: str) -> bool:
        return await self._alone(lambda: self._guests.end(instance_id))

    async def list_tagged(self, installation: str) -> Sequence[Found]:
        return await self._alone(lambda: self._list(installation))

    def _list(self, installation: str) -> list[Found]:
        self._guests.tidy(installation)
        return [
            Found(
                instance_id=one.id,
                machine_id=one.machine_id,
                fleet=one.fleet,
                created_at=one.created_at,
                place=_place(one),
                traits=Traits(instance_type=one.instance_type, region=_REGION),
            )
            for one in self._guests.all()
            if one.installation == installation and self._is_there(one)
        ]

    def _is_there(self, guest: Guest) -> bool:
        """Return whether the machine runs, or is being started; one that is off is gone."""
        return self._guests.is_alive(guest.id) or not self._guests.was_started(guest.id)

    async def console(self, instance_id: str) -> str | None:
        return await self._alone(lambda: self._guests.console(instance_id))

    async def examine(self) -> Sequence[Examined]:
        return await self._alone(self._examined)

    def _examined(self) -> list[Examined]:
        field, what = f"providers.{self._name}", "the image"
        try:
            size = self._guests.image_size()
        except StartFailed as failed:
            return [Examined(what=what, fault=f"{field}.image: {failed}")]
        found = [Examined(what=f"{what}: a disk of {size} bytes")]
        for name, one in self._types.items():
            if one.disk < size:
                fault = f"{field}.instance_types.{name}.disk: is {one.disk}, less than the image's"
                found.append(Examined(what=f"instance type {name}", fault=fault))
        found.append(Examined(what=f"the accelerator is {self._guests.choose_accelerator()}"))
        return found

    async def _alone(self, work: Callable[[], T]) -> T:
        """Do the work in a thread, while no other call does."""
        async with self._lock:
            try:
                return await to_the_end(asyncio.ensure_future(asyncio.to_thread(work)))
            except OSError as error:
                raise CloudAway(f"the folder of the machines: {error}") from None


def _place(guest: Guest) -> Place:
    return Place(host="127.0.0.1", port=guest.port)


async def _answers(path: str) -> bool:
    """Return whether QEMU greets on its control socket; it does so once it has all that it asked
    for."""
    try:
        async with asyncio.timeout(5.0):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                return bool(await reader.readline())
            finally:
                writer.close()
                # It raises what has broken the connection.
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return False
