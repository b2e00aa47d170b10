"""Requests about rented machines: what a fleet may rent, and the records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from common.refusals import Conflict, Invalid, NotFound, Unavailable
from controller.clock import Clock, month_began
from controller.lifecycle.inventory import Budget, MachinesPolicy, Spot
from controller.lifecycle.machines.life import Forgotten, can_be_forgotten
from controller.lifecycle.machines.market import not_named
from controller.lifecycle.machines.model import Machine, MachineStatus, cost_between
from controller.lifecycle.machines.orphans import KnownOrphan
from controller.lifecycle.machines.reconcile import Orphan
from controller.lifecycle.model import Fleet
from controller.lifecycle.orphan_events import left_behind
from controller.machines.calls import ProviderCalls
from controller.machines.manager import MachineManager
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.accounts.rights import require_admin
from controller.service.machines.fleets import FleetService
from controller.store.accounts import User
from fairlead.configuration.convert import convert
from fairlead.configuration.values.machines import BudgetFields, MachinesFields, check_machines
from fairlead.configuration.values.resources import ResourcesFields
from fairlead.model.needs import GpuNeed, Resources

_IDLE, _BUSY = "idle", "busy"
_NO_PROVIDERS = "this controller has no providers of machines"
LIVE_STATUSES = (
    MachineStatus.PROVISIONING.value,
    _IDLE,
    _BUSY,
    MachineStatus.TERMINATING.value,
)
"""The statuses, as users read them, of machines that may cost money."""


class RentedService:
    """`manager` None: this controller has no providers."""

    def __init__(
        self,
        pipeline: RunPipeline,
        fleets: FleetService,
        clock: Clock,
        manager: MachineManager | None,
    ) -> None:
        self._pipeline = pipeline
        self._fleets = fleets
        self._clock = clock
        self._manager = manager

    @property
    def is_renting(self) -> bool:
        """Whether there are providers, or records of machines."""
        rentals = self._pipeline.rentals
        has_providers = self._manager is not None and bool(self._manager.calls)
        return has_providers or (rentals is not None and bool(rentals.committed))

    async def set_machines(
        self,
        name: str,
        *,
        machines: dict[str, Any] | None,
        budget: dict[str, Any] | None,
        user: User,
    ) -> Fleet:
        """Say what a fleet may rent; None: nothing any more, and its idle machines are given back.

        Raises ConfigurationError, Invalid, NotFound, Forbidden.
        """
        require_admin(user, "let a fleet rent machines")
        fleet = self._fleets.get(name)
        policy, limits = self._allowed(machines, budget)
        changed = msgspec.structs.replace(fleet, machines=policy, budget=limits)
        await self._pipeline.save_fleet(changed, name)
        return changed

    async def add(
        self,
        name: str,
        *,
        placement: str | None,
        attributes: dict[str, str],
        machines: dict[str, Any] | None,
        budget: dict[str, Any] | None,
        user: User,
    ) -> Fleet:
        """Add a fleet with what it may rent, or nothing at all.

        Raises ConfigurationError, Invalid, Conflict, Forbidden.
        """
        require_admin(user, "add a fleet")
        policy, limits = self._allowed(machines, budget)
        return await self._fleets.add(
            name,
            placement=placement,
            attributes=attributes,
            machines=policy,
            budget=limits,
            user=user,
        )

    def _allowed(
        self, machines: dict[str, Any] | None, budget: dict[str, Any] | None
    ) -> tuple[MachinesPolicy | None, Budget]:
        """Return what the two sections say. Raises ConfigurationError, Invalid."""
        if machines is not None:
            policy, limits = policy_of(machines, budget or {})
            self._require_provider(policy.provider)
            return policy, limits
        if budget is not None:
            raise Invalid("a fleet without machines has no budget", field="budget")
        return None, Budget()

    def _require_provider(self, provider: str) -> None:
        known = {} if self._manager is None else self._manager.calls
        if provider not in known:
            names = ", ".join(known) or "none: `providers` in the file of `--config` names them"
            raise Invalid(
                f"there is no provider {provider!r}; this controller has {names}",
                field="machines.provider",
            )

    def all(self, *, with_ended: bool = False) -> list[Machine]:
        """Return the machines, the oldest first."""
        rentals = self._pipeline.rentals
        known = () if rentals is None else rentals.committed.values()
        found = [one for one in known if with_ended or one.is_live]
        return sorted(found, key=lambda one: (one.ordered_at, one.id))

    async def forget(self, key: str, user: User) -> Machine:
        """Take a machine for gone that its provider's present account cannot tell of.

        Raises Forbidden, NotFound, Conflict, Unavailable, StoreUnavailable.
        """
        require_admin(user, "have a machine forgotten")
        machine = next((one for one in self.all() if key in (one.id, one.name)), None)
        rentals = self._pipeline.rentals
        if machine is None or rentals is None:
            raise NotFound(f"there is no machine {key!r}; `fairlead machine list` shows them")
        if machine.status is not MachineStatus.TERMINATING:
            raise Conflict(
                f"machine {machine.name} is {status_of(machine)}: remove its node first, "
                f"`fairlead node remove {machine.name} --lost`"
            )
        if not can_be_forgotten(machine):
            raise Conflict(
                f"machine {machine.name} is in the account that its provider uses, and is being "
                f"ended there"
            )
        rentals.post(Forgotten(machine_id=machine.id, by=user.name))
        await self._pipeline.settled()
        forgotten = rentals.committed[machine.id]
        if forgotten.is_live:
            raise Unavailable(f"machine {machine.name} was not forgotten: {forgotten.trouble}")
        return forgotten

    def orphans(self, user: User) -> list[Orphan]:
        """Return the machines that no record knows. Raises Forbidden, Unavailable."""
        require_admin(user, "list machines without a record")
        unlisted = list(self._unlisted())
        if self._manager is None and not unlisted:
            raise Unavailable(_NO_PROVIDERS)
        listed = [] if self._manager is None else self._manager.orphans
        return [*map(self._as_decided, listed), *unlisted]

    def _unlisted(self) -> Iterator[Orphan]:
        """Yield the orphans that no list has now: they may cost money all the same."""
        rentals = self._pipeline.rentals
        for known in () if rentals is None else rentals.all_orphans:
            if (why := self.why_unlisted(known)) is not None:
                yield known.as_unlisted(why)

    def why_unlisted(self, orphan: KnownOrphan) -> str | None:
        """Return why no list tells now whether the orphan is there; None: one does."""
        rentals = self._pipeline.rentals
        return None if rentals is None else rentals.why_unlisted(orphan)

    def out_of_reach(self, orphan: KnownOrphan) -> str | None:
        """Return why no list can have the orphan as things are, and the fix; None: one can."""
        rentals = self._pipeline.rentals
        return None if rentals is None else rentals.out_of_reach(orphan)

    async def forget_orphan(self, provider: str, instance_id: str, user: User) -> Orphan:
        """Take an orphan for gone that no list can have, because of its account or of the file.

        Raises Forbidden, NotFound, Conflict, Unavailable, StoreUnavailable.
        """
        require_admin(user, "have a machine without a record forgotten")
        if (rentals := self._pipeline.rentals) is None:
            raise Unavailable(_NO_PROVIDERS)
        if (known := rentals.orphan(provider, instance_id)) is None:
            raise NotFound(
                f"provider {provider} has no orphan {instance_id!r}: `fairlead machine orphans` "
                f"lists them",
                field="instance_id",
            )
        if rentals.out_of_reach(known) is None:
            if (why := rentals.why_unlisted(known)) is not None:
                raise Unavailable(f"{why}; try again in some seconds")
            raise Conflict(
                f"{instance_id} is in the account that provider {provider} uses: `fairlead machine "
                f"end-orphans {provider} {instance_id}` ends it",
                field="instance_id",
            )
        rentals.forget_orphan(provider, instance_id, user.name)
        await self._pipeline.settled()
        if rentals.orphan(provider, instance_id) is not None:
            raise Unavailable(f"it was not stored that {known.name} is forgotten; try again")
        return known.as_unlisted(left_behind(known))

    def _as_decided(self, orphan: Orphan) -> Orphan:
        """Return the orphan with what an admin asked for after the latest list."""
        rentals = self._pipeline.rentals
        is_to_end = rentals is not None and rentals.orphan_is_to_end(
            orphan.provider, orphan.instance_id
        )
        return msgspec.structs.replace(orphan, is_to_end=is_to_end)

    async def end_orphans(
        self, provider: str, instance_ids: Sequence[str], user: User
    ) -> list[Orphan]:
        """Have orphans of a provider ended, all of them or none. Return them as they are now; one
        that the provider lists no longer is left out.

        Raises Forbidden, Invalid, NotFound, Unavailable, StoreUnavailable.
        """
        require_admin(user, "end machines without a record")
        rentals = self._pipeline.rentals
        calls = self._calls(provider)
        assert rentals is not None, "there are providers"
        if calls.listed_at is None:
            raise Unavailable(f"{rentals.not_listed_yet(provider)}; try again in some seconds")
        wanted = set(instance_ids)
        for one in sorted(wanted - {one.instance_id for one in calls.orphans}):
            raise self._no_orphan(provider, one)
        rentals.end_orphans(provider, instance_ids, user.name)
        await self._pipeline.settled()
        found = [self._as_decided(one) for one in calls.orphans if one.instance_id in wanted]
        if any(not one.is_to_end for one in found):
            raise Unavailable("it was not stored that these machines are to end; try again")
        return found

    def _calls(self, provider: str) -> ProviderCalls:
        """Raises Unavailable, NotFound."""
        if self._manager is None:
            raise Unavailable(_NO_PROVIDERS)
        if (calls := self._manager.calls.get(provider)) is None:
            known = ", ".join(sorted(self._manager.calls))
            raise NotFound(
                f"there is no provider {provider!r}; this controller has {known}", field="provider"
            )
        return calls

    def _no_orphan(self, provider: str, instance_id: str) -> Conflict | NotFound:
        rentals = self._pipeline.rentals
        known = None if rentals is None else rentals.orphan(provider, instance_id)
        why = None if known is None or rentals is None else rentals.out_of_reach(known)
        if why is not None:
            return Conflict(f"{instance_id} cannot be ended: {why}", field="instance_ids")
        holder = next(
            (
                one
                for one in self.all()
                if (one.offer.provider, one.instance_id) == (provider, instance_id)
            ),
            None,
        )
        if holder is not None:
            return Conflict(
                f"{instance_id} is machine {holder.name} and no orphan: `fairlead node drain "
                f"{holder.name}` gives it back",
                field="instance_ids",
            )
        return NotFound(
            f"provider {provider} has no orphan {instance_id!r}: its last list lacks the machine, "
            f"or it is not of this installation; `fairlead machine orphans` lists them",
            field="instance_ids",
        )

    def known_orphan(self, orphan: Orphan) -> KnownOrphan | None:
        """Return what is stored of an orphan; None: nothing yet."""
        rentals = self._pipeline.rentals
        return None if rentals is None else rentals.orphan(orphan.provider, orphan.instance_id)

    def known_orphans(self, user: User) -> list[KnownOrphan]:
        """Return the machines that no record knows, as they are stored, the oldest first. Raises
        Forbidden."""
        require_admin(user, "list machines without a record")
        rentals = self._pipeline.rentals
        return [] if rentals is None else rentals.orphans

    def paid_orphans(
        self, *, with_ended: bool = False, found_after: float = float("-inf")
    ) -> list[Machine]:
        """Return the orphans that have cost something and were found after this time, as
        machines."""
        if (rentals := self._pipeline.rentals) is None:
            return []
        every = rentals.orphans_as_machines(self._clock.now(), found_after)
        return [one for one in every if with_ended or one.is_live]

    def families(self) -> Iterable[Metric]:
        """Yield what an operator is to be alerted of at each provider, for Prometheus."""
        if self._manager is None:
            return
        orphans = GaugeMetricFamily(
            "fairlead_machine_orphans",
            "Machines at a provider that no record knows",
            labels=["provider"],
        )
        ending = GaugeMetricFamily(
            "fairlead_machines_ending_seconds",
            "For how long the end of a machine has been asked for in vain, at most",
            labels=["provider"],
        )
        lists = GaugeMetricFamily(
            "fairlead_provider_list_age_seconds",
            "Time since the last whole list of a provider's machines",
            labels=["provider"],
        )
        now = self._clock.now()
        for name, calls in self._manager.calls.items():
            orphans.add_metric([name], len(calls.orphans))
            since = [
                one.terminating_at
                for one in self.all()
                if one.offer.provider == name and one.terminating_at is not None
            ]
            ending.add_metric([name], max(0.0, now - min(since, default=now)))
            # A provider without a list since the start counts from then.
            lists.add_metric([name], max(0.0, now - (calls.listed_at or calls.began)))
        yield orphans
        yield ending
        yield lists

    def why_never(self, fleet: Fleet) -> str | None:
        """Return why the fleet rents nothing at all, or never its least, as a sentence."""
        if (rentals := self._pipeline.rentals) is not None:
            return rentals.why_never(fleet)
        if fleet.machines is None:
            return None
        return f"it rents nothing: {not_named(fleet.machines.provider, frozenset())}"

    def cost_of(self, machine: Machine) -> float:
        """Return what the machine has cost so far."""
        return cost_between(machine, 0.0, self._clock.now())

    def month_cost(self, fleet: str) -> float:
        """Return what the fleet's machines have cost in this month of UTC."""
        now = self._clock.now()
        return sum(
            cost_between(one, month_began(now), now)
            for one in (*self.all(with_ended=True), *self.paid_orphans(with_ended=True))
            if one.fleet == fleet
        )


def status_of(machine: Machine) -> str:
    """Return the status as users read it."""
    if machine.status is MachineStatus.JOINED:
        return _BUSY if machine.idle_since is None else _IDLE
    return machine.status.value


def policy_of(
    machines: Mapping[str, Any], budget: Mapping[str, Any]
) -> tuple[MachinesPolicy, Budget]:
    """Return what the two sections of a fleet's file say. Raises ConfigurationError."""
    fields = convert(dict(machines), MachinesFields, within="machines")
    limits = convert(dict(budget), BudgetFields, within="budget")
    check_machines(fields, limits)
    least, most = fields.nodes
    policy = MachinesPolicy(
        provider=fields.provider,
        min=least,
        max=most,
        resources=None if fields.resources is None else _least(fields.resources),
        instance_types=fields.instance_types,
        regions=fields.regions,
        zones=fields.availability_zones,
        spot=Spot(fields.spot),
        idle_duration=float(fields.idle_duration),
        boot_limit=float(fields.boot_limit),
        leash=fields.leash.seconds,
        max_price=fields.max_price,
    )
    return policy, Budget(per_hour=limits.per_hour, per_month=limits.per_month)


def _least(written: ResourcesFields) -> Resources:
    return Resources(
        cpu=0.0 if written.cpu is None else float(written.cpu),
        memory=int(written.memory or 0),
        disk=int(written.disk or 0),
        gpu=GpuNeed() if written.gpu is None else written.gpu.need,
        infiniband=bool(written.infiniband),
    )
