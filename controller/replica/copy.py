"""The leader's services over a copy of its state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast

import msgspec

from controller.aio import MAX_AT_A_STRETCH
from controller.blobs import BlobStore
from controller.clock import Chance, Clock, month_began
from controller.gateways.manager import Settings as GatewaySettings
from controller.lifecycle.inventory import Spending
from controller.logs.store import LogStore
from controller.machines.manager import MachineManager
from controller.metric_history import MetricHistory
from controller.outputs.store import OutputStore
from controller.pipelines.autoscaling import Autoscaler
from controller.pipelines.followed_runs import FollowedRentals, FollowedRuns
from controller.pipelines.renting.settings import RentalSettings, has_rented
from controller.replica.alone import Absent, AtLeader, ask_leader
from controller.replica.parts import (
    FollowedGateways,
    FollowedProgress,
    FollowedStore,
    FollowedTraffic,
    FollowedVault,
    connect,
)
from controller.scheduling.scheduler import JobSubmittedPipeline
from controller.service import ControllerService, LiveParts, Settings, Stores
from controller.service.accounts.secrets import SecretService
from controller.service.accounts.users import Gate
from controller.service.ssh_keys import HostKeys
from controller.store.base import Gateway, Snapshot
from controller.store.reading import StoreReader
from controller.store.turns.changed_state import Beginning, ChangedState
from controller.store.turns.notes import Turn
from controller.traffic.routes import RouteTable


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator chose, as at the leader. `providers`: the names of those of machines."""

    settings: Settings = Settings()
    providers: Collection[str] = ()
    spending: Spending = Spending()


class Submitters(msgspec.Struct, frozen=True):
    """The users who may submit, their secrets and the gateways: a small part of a copy, which may
    outlive it."""

    gate: Gate
    secrets: SecretService
    gateways: Mapping[str, Gateway]
    clock: Clock


class Copy:
    """The state as it was at `turn`, and the services that answer from it. It changes nothing but
    `blobs`, has no secret's value, and knows no node's connection."""

    def __init__(
        self,
        beginning: Beginning,
        reader: StoreReader,
        clock: Clock,
        chance: Chance,
        chosen: Chosen,
        blobs: BlobStore | None = None,
    ) -> None:
        snapshot = beginning.snapshot
        self.turn = beginning.turn
        self.shown_in_parts = 0
        """How often others could see a part of what was committed at once. Who reads nothing else
        between the reads of this state sees none."""
        self._gate = Gate(snapshot.users, snapshot.tokens, clock, snapshot.service_keys)
        self._vault = FollowedVault(snapshot.secrets)
        store = FollowedStore(reader)
        placement = JobSubmittedPipeline(chance.new_id, snapshot.past_use)
        rentals = _rentals(placement, snapshot, chance, chosen)
        self._pipeline = FollowedRuns(store, clock, chance, placement, rentals)
        self._gateways = _gateways(self._pipeline, store, snapshot.gateways, clock, chance)
        self._pipeline.begin_with(snapshot, beginning.ended)
        traffic = FollowedTraffic(clock.now)
        self.service = ControllerService(
            Stores(
                store=store,
                logs=cast(LogStore, Absent()),
                outputs=cast(OutputStore, Absent()),
                blobs=cast(BlobStore, Absent()) if blobs is None else blobs,
            ),
            LiveParts(
                pipeline=self._pipeline,
                connect=connect,
                progress=FollowedProgress(),
                routes=RouteTable(),
                traffic=traffic,
                autoscaler=Autoscaler(self._pipeline, traffic, clock),
                gateways=self._gateways,
                machines=_machines(chosen.providers),
            ),
            chosen.settings,
            gate=self._gate,
            vault=self._vault,
            metric_history=cast(MetricHistory, Absent()),
            host_keys=cast(HostKeys, Absent()),
            clock=clock,
            chance=chance,
        )

    @property
    def submitters(self) -> Submitters:
        accounts = self.service.accounts
        gateways, clock = self._gateways.gateways, self.service.clock
        return Submitters(accounts.gate, accounts.secrets, gateways, clock)

    def unseen_ends(self, run_ids: Collection[str]) -> dict[str, Sequence[str]]:
        """See `FollowedRuns.unseen_ends`."""
        return self._pipeline.unseen_ends(run_ids)

    async def follow(self, turn: Turn, found: ChangedState) -> None:
        """Take over what was stored up to this turn. Raises LostTrack."""
        if len(found.runs) > MAX_AT_A_STRETCH:
            self.shown_in_parts += 1
        if found.accounts is not None:
            gate, accounts = self._gate, found.accounts
            gate.users = {user.name: user for user in accounts.users}
            gate.tokens, gate.service_keys = accounts.tokens, accounts.service_keys
        if found.secrets is not None:
            self._vault.begin_with(found.secrets)
        if found.gateways is not None:
            # In place: `submitters` are these.
            self._gateways.gateways.clear()
            self._gateways.gateways.update({one.name: one for one in found.gateways})
        await self._pipeline.follow(found)
        self.turn = turn


def _rentals(
    placement: JobSubmittedPipeline, snapshot: Snapshot, chance: Chance, chosen: Chosen
) -> FollowedRentals | None:
    if not chosen.providers and not has_rented(snapshot.machines, snapshot.fleets):
        return None
    settings = RentalSettings(
        installation="",
        pin=lambda _: Absent.__getattr__(Absent(), "pin"),
        new_id=chance.new_id,
        month_of=month_began,
        spending=chosen.spending,
        providers=frozenset(chosen.providers),
    )
    return FollowedRentals(
        placement, settings, snapshot.machines, snapshot.orphans, AtLeader(), ask_leader
    )


def _gateways(
    pipeline: FollowedRuns,
    store: FollowedStore,
    gateways: Collection[Gateway],
    clock: Clock,
    chance: Chance,
) -> FollowedGateways:
    return FollowedGateways(
        pipeline=pipeline,
        store=store,
        routes=RouteTable(),
        traffic=FollowedTraffic(clock.now),
        connect=connect,
        chance=chance,
        controller_id="",
        gateways=gateways,
        settings=cast(GatewaySettings, Absent()),
    )


class _Providers:
    """The names of the providers; the leader alone calls them."""

    def __init__(self, names: Collection[str]) -> None:
        self.workers = dict.fromkeys(names)

    def __getattr__(self, name: str) -> object:
        return getattr(Absent(), name)


def _machines(providers: Collection[str]) -> MachineManager | None:
    return cast(MachineManager, _Providers(providers)) if providers else None
