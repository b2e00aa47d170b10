"""A check of a provider that makes one machine, waits until it is reached, and ends it.

The machine has no record. If this controller ends meanwhile, the next list shows it as an orphan,
which ends like any other: so nothing of a check is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial

from common.links.dialling import dial
from controller.clouds.base import (
    Cloud,
    CloudError,
    Created,
    NoCapacity,
    Order,
    QuotaReached,
    Refused,
    answer_of,
    made_by,
)
from controller.lifecycle.machines.life import Place
from controller.lifecycle.machines.model import Offer, token_of

log = logging.getLogger(__name__)
BOOT_SECONDS = 300.0
_END_SECONDS = 300.0
_LAST_SECONDS = 5.0
"""For the request to end the machine when the controller stops: the next leader waits for that."""
_LOOK_EVERY = 5.0
_CONNECT_SECONDS = 10.0
_MAX_BANNER = 255
_SSH = "SSH-"
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
        self.machine_id = machine_id
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
        except Exception as error:
            log.exception("internal error: a check of provider %s", self._order.offer.provider)
            self.fault = f"internal error ({type(error).__name__}); see the log"
        finally:
            self.is_over = True

    async def _run(self) -> None:
        offer = self._order.offer
        created = await answer_of(offer.provider, made_by(self._cloud, self._order))
        self._note(f"ordered {offer.words()}: machine {created.instance_id}")
        try:
            async with asyncio.timeout(self._boot_seconds):
                await self._reach(await self._place_of(created))
        except TimeoutError:
            self.fault = (
                f"it had no address, or no SSH server at it, within {self._boot_seconds:.0f} s: "
                f"is its image one of Fairlead, and may the controller reach port 22?"
            )
        except asyncio.CancelledError:
            self.fault = "the controller stopped; the machine ends as an orphan"
            # Only this task knows the machine: its end is asked for before the controller ends.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    await self._is_gone(created.instance_id)
            raise
        await self._end(created.instance_id)

    def _note(self, step: str) -> None:
        """Add what was done; a call that fails in the same way again adds nothing."""
        if self.steps[-1:] != [step]:
            self.steps.append(step)

    async def _place_of(self, created: Created) -> Place:
        """Wait until the machine has an address."""
        place, ids = created.place, [created.instance_id]
        while place is None:
            await asyncio.sleep(self._look_every)
            try:
                call = self._cloud.describe(ids)
                described = await answer_of(self._order.offer.provider, call)
            except CloudError as error:
                self._note(f"its address: {error}")
                continue
            if (one := described.get(created.instance_id)) is not None:
                place = one.place
        return place

    async def _reach(self, place: Place) -> None:
        """Wait until an SSH server, or the shim of this machine's socket, answers there."""
        if place.socket is not None and place.host is None:
            self._note(f"it is at {place.socket}")
            is_there = await _accepts(place.socket)
            while not is_there:
                await asyncio.sleep(self._look_every)
                is_there = await _accepts(place.socket)
            self._note("its shim accepts connections")
            return
        assert place.host is not None
        self._note(f"it is at {place.host}")
        banner = await _banner(place.host, place.port)
        while not banner:
            await asyncio.sleep(self._look_every)
            banner = await _banner(place.host, place.port)
        self._note(f"it booted: port {place.port} says {banner}")

    async def _end(self, instance_id: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                is_gone = await self._is_gone(instance_id)
                while not is_gone:
                    await asyncio.sleep(self._look_every)
                    is_gone = await self._is_gone(instance_id)
                self._note("it is gone")
                return
        self.fault = f"machine {instance_id} has not ended yet; it is ended as an orphan"

    async def _is_gone(self, instance_id: str) -> bool:
        try:
            call = self._cloud.terminate(instance_id)
            return await answer_of(self._order.offer.provider, call)
        except CloudError as error:
            self._note(f"its end: {error}")
            return False


async def _accepts(path: str) -> bool:
    with contextlib.suppress(OSError):
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_unix_connection(path)
            writer.close()
            # wait_closed raises what ended the connection, such as a reset.
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return True
    return False


async def _banner(host: str, port: int) -> str:
    """Return the first line of the SSH server that listens there; empty: none does."""
    # A booting machine drops packets, then refuses, then hangs up in the middle of a line.
    with contextlib.suppress(OSError, ValueError):
        async with asyncio.timeout(_CONNECT_SECONDS):
            connect = partial(asyncio.open_connection, port=port, limit=_MAX_BANNER)
            reader, writer = await dial(host, port, connect)
            try:
                line = await reader.readline()
            finally:
                writer.close()
                # As above: a server that resets the connection has still said who it is.
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            text = line.decode("ascii", errors="replace").strip()
            # It is shown in an admin's terminal, and whatever answers there wrote it.
            return text if text.startswith(_SSH) and text.isprintable() else ""
    return ""
