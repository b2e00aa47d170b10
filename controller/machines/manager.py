"""MachineManager keeps the calls to each provider, and wakes them after each commit of records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

import msgspec

from controller.clock import Clock
from controller.clouds.base import Closes, Cloud, KnownOffers, Order
from controller.lifecycle.inventory import Spending
from controller.lifecycle.machines.market import Supply
from controller.lifecycle.machines.model import Machine, Offer
from controller.lifecycle.machines.reconcile import Found, Orphan
from controller.lifecycle.model import Node
from controller.machines.calls import Desk, ProviderCalls
from controller.machines.supplies import Supplies
from controller.machines.trial import Trial
from controller.pipelines.renting.rentals import Rentals
from controller.pipelines.renting.settings import Pinned
from fairlead.model.statuses import NodeStatus

UNLISTED = (
    "after a restore from backup, a list of its machines comes first (`fairlead provider check` "
    "tries it)"
)


class MachineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The providers by name, and what machines boot with.

    `boot_data` returns the user-data of a machine, byte for byte the same at each call; `pin` what
    the controller keeps of it.
    """

    clouds: Mapping[str, Cloud]
    boot_data: Callable[[Machine], str]
    pin: Callable[[str], Pinned]
    spending: Spending = Spending()
    regions: Mapping[str, Collection[str] | None] = {}
    """Those that lists are of, by provider: the ones that the controller's file names; None: all
    that the provider has."""
    setups: Mapping[str, str] = {}
    """A digest of what the controller's file says of each provider."""


class MachineManager:
    """Calls the providers for all machines."""

    def __init__(
        self,
        rentals: Rentals,
        nodes: Mapping[str, Node],
        settings: MachineSettings,
        clock: Clock,
        *,
        installation: str,
        is_empty: Callable[[str], Awaitable[bool]],
        restored_at: float | None = None,
    ) -> None:
        self._rentals = rentals
        self._nodes = nodes
        self._clouds = settings.clouds
        self._boot_data = settings.boot_data
        self.installation = installation
        desk = Desk(
            installation=installation,
            records=lambda: rentals.committed.values(),
            post=rentals.post,
            order_of=self._order,
            answers=self._answering,
            tell_orphans=self._tell_orphans,
            tell_trouble=self._tell_trouble,
            is_anothers=self._is_anothers,
            stored_orphan=rentals.orphan,
            is_empty=is_empty,
            found_at=rentals.orphan_found_at,
            is_to_end=rentals.orphan_is_to_end,
            tried=self._tried,
            restored_at=restored_at,
        )
        self.calls = {
            name: ProviderCalls(name, cloud, desk, clock) for name, cloud in settings.clouds.items()
        }
        self.supplies = {
            name: Supplies(name, cloud, desk.records, clock)
            for name, cloud in settings.clouds.items()
        }
        self._known = set(rentals.committed)
        self._unlisted = set() if restored_at is None else set(settings.clouds)
        """Providers whose orphans are not known yet, and may be many: the backup knows none of the
        machines that were ordered after it."""
        self._held: dict[str, Supply] = {}
        """What may be bought there once they are known."""
        self.trials: dict[str, Trial] = {}
        """The latest check of each provider that made a machine."""
        self._trying: set[asyncio.Task[None]] = set()

    @property
    def orphans(self) -> list[Orphan]:
        """The machines of this installation that no record knows, as last listed."""
        return [one for calls in self.calls.values() for one in calls.orphans]

    def cloud(self, provider: str) -> Cloud | None:
        return self._clouds.get(provider)

    async def offered(self, provider: str, known: KnownOffers) -> None:
        """Take the provider's offers before its calls ask for them again. Raises CloudError."""
        self._tell(provider, await self.supplies[provider].of(known))

    def found_faultless(self, provider: str) -> None:
        """Let orders that the provider refused as such be tried again."""
        self._rentals.found_faultless(provider)

    def try_one(self, provider: str, offer: Offer, machine_id: str) -> Trial:
        """Begin a check that makes a machine of this offer and ends it."""
        trial = Trial(self._clouds[provider], offer, self.installation, machine_id)
        self.trials[provider] = trial
        task = asyncio.create_task(trial.run(), name="check of a provider")
        self._trying.add(task)
        task.add_done_callback(self._trying.discard)
        return trial

    async def run(self) -> None:
        """Work until cancelled, then close the providers."""
        try:
            async with asyncio.TaskGroup() as group:
                for calls in self.calls.values():
                    group.create_task(calls.run())
                for supplies in self.supplies.values():
                    group.create_task(supplies.keep(self._tell))
                while True:
                    self._rentals.changed.clear()
                    self._look()
                    await self._rentals.changed.wait()
        finally:
            trying = list(self._trying)
            for task in trying:
                task.cancel()
            await asyncio.gather(*trying, return_exceptions=True)
            for cloud in self._clouds.values():
                if isinstance(cloud, Closes):
                    await cloud.close()

    def _tell(self, provider: str, supply: Supply | str) -> None:
        if provider in self._unlisted and isinstance(supply, Supply):
            self._held[provider], supply = supply, self._why_unlisted(provider)
        self._rentals.set_offers(provider, supply)

    def _tell_orphans(
        self, provider: str, orphans: tuple[Orphan, ...], account: str | None
    ) -> None:
        self._rentals.orphans_listed(provider, orphans, account)
        self._unlisted.discard(provider)
        if (supply := self._held.pop(provider, None)) is not None:
            self._rentals.set_offers(provider, supply)

    def _why_unlisted(self, provider: str) -> str:
        trouble = self.calls[provider].trouble
        return UNLISTED if trouble is None else f"{UNLISTED}; the last one failed: {trouble}"

    def _tell_trouble(self, provider: str, trouble: str) -> None:
        self._rentals.list_failed(provider, trouble)
        if provider in self._held:
            self._rentals.set_offers(provider, f"{UNLISTED}; the last one failed: {trouble}")

    def _is_anothers(self, provider: str, account: str | None, found: Found) -> bool:
        """Return whether another provider of the file has the orphan: two may name one account, as
        for two sets of regions, and what is counted twice leaves half of a budget."""
        others = (one for name, one in self.calls.items() if name != provider)
        return any(one.has_orphan(found, account) for one in others)

    def _look(self) -> None:
        if len(self._known) > len(self._rentals.committed):
            self._known.intersection_update(self._rentals.committed)
        for machine in self._rentals.committed.values():
            if machine.id not in self._known:
                self._known.add(machine.id)
                if (calls := self.calls.get(machine.offer.provider)) is not None:
                    calls.ordered(machine.id)
        for calls in self.calls.values():
            calls.look()

    def _order(self, machine: Machine) -> Order:
        return Order(
            machine_id=machine.id,
            name=machine.name,
            installation=self.installation,
            fleet=machine.fleet,
            offer=machine.offer,
            token=machine.token,
            user_data=self._boot_data(machine),
        )

    def _tried(self) -> frozenset[str]:
        trials = self.trials.values()
        return frozenset(one.machine_id for one in trials if not one.is_over)

    def _answering(self) -> frozenset[str]:
        return frozenset(
            one.id for one in self._nodes.values() if one.status is NodeStatus.CONNECTED
        )
