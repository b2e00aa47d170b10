"""A check of a provider that makes one machine, waits until it is reached, and ends it.

The machine has no record. If this controller ends meanwhile, the next list shows it as an orphan,
which ends like any other: so nothing of a check is left.
"""

from __future__ import annotations

import asyncio
import contextlib

from controller.clouds.base import Cloud, CloudError, NoCapacity, Order, QuotaReached, Refused
from controller.lifecycle.machines.life import Place
from controller.lifecycle.machines.model import Offer, token_of

BOOT_SECONDS = 300.0
_END_SECONDS = 300.0
_LOOK_EVERY = 5.0
_CONNECT_SECONDS = 10.0
_MAX_BANNER = 255
_USER_DATA = "#cloud-config\n"


class Trial:
    """One such check. `look_every`, `boot_seconds`: seconds."""

    def __init__(
        self,
        cloud: Cloud,
        offer: Offer,
        installation: str,
        machine_id: str,
        *,
        look_every: float = _LOOK_EVERY,
        boot_seconds: float = BOOT_SECONDS,
    ) -> None:
        self.steps: list[str] = []
        """What was done, as sentences."""
        self.fault: str | None = None
        """Why it failed, as a sentence; None: it did not, so far."""
        self.is_over = False
        self._cloud = cloud
        self._look_every = look_every
        self._boot_seconds = boot_seconds
        self._order = Order(
            machine_id=machine_id,
            name=f"check-{machine_id[:8]}",
            installation=installation,
            fleet="check",
            offer=offer,
            token=token_of(installation, machine_id, offer),
            user_data=_USER_DATA,
        )

    async def run(self) -> None:
        """Do all of it; what goes wrong is told in `fault`."""
        try:
            await self._run()
        except (NoCapacity, QuotaReached, Refused) as refusal:
            self.fault = str(refusal)
        except CloudError as error:
            self.fault = f"{error}; if a machine was made, it ends as an orphan"
        finally:
            self.is_over = True

    async def _run(self) -> None:
        offer = self._order.offer
        made = await self._cloud.create(self._order)
        self.steps.append(f"ordered {offer.words()}: machine {made.instance_id}")
        try:
            async with asyncio.timeout(self._boot_seconds):
                await self._reach(made.place or await self._place(made.instance_id))
        except TimeoutError:
            self.fault = (
                f"it had no address, or no SSH server at it, within {self._boot_seconds:.0f} s: "
                f"is its image one of Fairlead, and may the controller reach port 22?"
            )
        except asyncio.CancelledError:
            # The controller ends, and waits for no machine: what is left is an orphan.
            with contextlib.suppress(CloudError):
                await self._cloud.terminate(made.instance_id)
            raise
        await self._end(made.instance_id)

    async def _place(self, instance_id: str) -> Place:
        """Wait until the machine has an address."""
        while True:
            await asyncio.sleep(self._look_every)
            with contextlib.suppress(CloudError):
                described = (await self._cloud.describe([instance_id])).get(instance_id)
                if described is not None and described.place is not None:
                    return described.place

    async def _reach(self, place: Place) -> None:
        """Wait until an SSH server answers there."""
        if place.host is None:
            self.steps.append(f"it is at {place.socket}")
            return
        self.steps.append(f"it is at {place.host}")
        banner = await _banner(place.host, place.port)
        while not banner:
            await asyncio.sleep(self._look_every)
            banner = await _banner(place.host, place.port)
        self.steps.append(f"it booted: port {place.port} says {banner}")

    async def _end(self, instance_id: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                is_gone = await self._is_gone(instance_id)
                while not is_gone:
                    await asyncio.sleep(self._look_every)
                    is_gone = await self._is_gone(instance_id)
                self.steps.append("it is gone")
                return
        self.fault = f"machine {instance_id} has not ended yet; it is ended as an orphan"

    async def _is_gone(self, instance_id: str) -> bool:
        try:
            return await self._cloud.terminate(instance_id)
        except CloudError as error:
            self.steps.append(f"its end: {error}")
            return False


async def _banner(host: str, port: int) -> str:
    """Return the first line of what listens there; empty: nothing does."""
    with contextlib.suppress(OSError, ValueError):
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, limit=_MAX_BANNER)
            try:
                line = await reader.readline()
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            return line.decode("ascii", errors="replace").strip()
    return ""
