"""Pending reasons are stored and compared as values; sentences are made when they are read."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from controller.lifecycle.lacks import (
    HasOtherJobs,
    LacksAbilities,
    LacksAmount,
    LacksCpu,
    LacksGateways,
    LacksGpus,
    LacksHostNetwork,
    LacksInfiniband,
    LacksPort,
    StartsTooMany,
)
from controller.lifecycle.model import Constraint, GpuNeed, Operator, Resources, StartupOrder
from controller.lifecycle.pending_reasons import (
    Alike,
    AllDraining,
    BoundToGang,
    ConstraintUnmet,
    DoesNotFit,
    GangApart,
    GangDoesNotFit,
    GangInPart,
    NodeOfGangGone,
    NoFleetWithPlacement,
    NominatedNodeSilent,
    NoNodeConnected,
    NoNodeInDomain,
    NoNodeInFleets,
    NoNodeUsable,
    NoPlacementValue,
    NoSuchFleet,
    NotTogether,
    Obstacle,
    OtherFleetsOnly,
    PendingReason,
    RankComesBack,
    RanksFirst,
    RunSuspended,
    Unusable,
    VictimsLeave,
    WaitsForContainer,
    WaitsForItsTurn,
)
from fairlead.wire.engine_abilities import EngineAbility

GIB = 1 << 30
CORDONED = Unusable(node="n2", obstacle=Obstacle.CORDONED)
ZONE_A = Constraint(attribute="zone", operator=Operator.EQ, values=("a",))
FULL = DoesNotFit(
    node="n1",
    lacks=(
        LacksCpu(need=8, free=2.5, total=16),
        LacksAmount(amount="memory", need=4 * GIB, free=0, total=64 * GIB),
        LacksGpus(need=GpuNeed(count=2, names=("H100",)), free=1, total=8, instance="MIG-1g-10gb"),
    ),
)
SENTENCES: dict[PendingReason, str] = {
    RunSuspended(): "the run is suspended",
    WaitsForContainer(): "waits for a container of its sweep (reuse_container)",
    WaitsForItsTurn(startup_order=StartupOrder.MASTER_FIRST): (
        "waits for its turn (startup_order: master-first)"
    ),
    RankComesBack(): "it is reserved: a rank of its run comes back and is placed first",
    RanksFirst(): "it is reserved: the gang's ranked jobs are placed first",
    VictimsLeave(count=1): "waiting for 1 victim to leave",
    VictimsLeave(count=3): "waiting for 3 victims to leave",
    NominatedNodeSilent(node="n1"): "waiting for node n1 to be connected again",
    GangInPart(found=2, waiting=4): (
        "room was found for only 2 of 4 ranks: a gang is placed as a whole or not at all"
    ),
    GangApart(
        values=2
    ): "its allocations were in 2 placement values: a gang is placed as a whole or not at all",
    FULL: (
        "needs 8 CPU, 4 GiB memory, 2 GPU named H100; best node n1 has 2.5 free of 16, "
        "0 B free of 64 GiB, 1 such GPU free of 8 "
        "(MIG instances are given only by name, such as MIG-1g-10gb)"
    ),
    DoesNotFit(node="n1", lacks=(HasOtherJobs(), StartsTooMany(starting=8)), away=CORDONED): (
        "needs the whole node, a free start slot; best node n1 has other jobs on it, "
        "8 starting already; node n2 could hold it, but is cordoned"
    ),
    DoesNotFit(node="n1", lacks=(LacksHostNetwork(),)): (
        "needs the node's network, in which its peers reach it (not needed with `share_nodes: "
        "true`); best node n1 has a shim that gives its network to no job (--host-network never)"
    ),
    DoesNotFit(
        node="n1",
        lacks=(LacksAbilities(abilities=(EngineAbility.OPTIONS,), engine="process"),),
    ): (
        "needs an engine with container options; best node n1 has the process engine, which has "
        "none (only a job without `privileged`, `cap_add`, `ulimits`, `ssh: install` and the like "
        "runs there)"
    ),
    DoesNotFit(node="n1", lacks=(LacksInfiniband(),)): (
        "needs InfiniBand; best node n1 has no /dev/infiniband"
    ),
    DoesNotFit(node="n1", lacks=(LacksPort(port=8000),)): (
        "needs port 8000; best node n1 has another job that holds it, and no network for each job "
        "(another `port`, or a node with Docker, would do)"
    ),
    DoesNotFit(node="n1", lacks=(LacksGateways(),)): (
        "needs to be reached by its gateway; best node n1 has a shim that exposes nothing to "
        "gateways (`fairlead node upgrade` sets that up)"
    ),
    ConstraintUnmet(constraint=ZONE_A, node="n1", has="b"): (
        "needs zone = a; node n1 has b, and none is better"
    ),
    ConstraintUnmet(constraint=ZONE_A, node="n1"): (
        "needs zone = a; node n1 has no zone, and none is better"
    ),
    ConstraintUnmet(constraint=ZONE_A, node="n1", has="b", away=CORDONED): (
        "needs zone = a; node n2 could hold it, but is cordoned"
    ),
    NoNodeInFleets(fleets=("a", "b")): "no node is in fleet a or b",
    NoSuchFleet(fleets=("a",)): "there is no fleet a",
    OtherFleetsOnly(fleets=("a",)): "it may only go to fleet a",
    NoNodeInDomain(fleet="a"): "no node of fleet a takes work",
    NoNodeInDomain(fleet="a", value="r1"): "no node of r1 of a takes work",
    NoNodeConnected(): "no node is connected",
    AllDraining(): "every connected node is draining",
    NoNodeUsable(example=Unusable(node="n1", obstacle=Obstacle.UNFIT, detail="disk")): (
        "no connected node takes work; n1 is unfit: disk"
    ),
    NodeOfGangGone(): "the node that its other jobs are on is gone",
    NoFleetWithPlacement(): (
        "needs a fleet that names a placement attribute; no fleet with a usable node does"
    ),
    NoPlacementValue(): "no node has the placement attribute that its fleet names",
    BoundToGang(placement="rack", value="r1", why=NoNodeConnected()): (
        "must be in rack r1, where its gang is: no node is connected"
    ),
    GangDoesNotFit(
        count=4,
        each=Resources(gpu=GpuNeed(count=8)),
        placement="rack",
        best="r2",
        found=3,
        why=NoNodeConnected(),
    ): "needs 4 places with 8 GPU in one rack; best rack r2 has 3 (no node is connected)",
    GangDoesNotFit(
        count=1, each=Resources(cpu=2, memory=GIB), placement="fleet", best="a", found=0
    ): "needs 1 place with 2 CPU, 1 GiB memory in one fleet; best fleet a has 0",
    GangDoesNotFit(
        count=2, each=Resources(whole_node=True), placement="rack", best="r1", found=1
    ): "needs 2 whole nodes in one rack; best rack r1 has 1",
    GangDoesNotFit(
        count=3,
        each=Resources(gpu=GpuNeed(count=8)),
        placement="rack",
        best="r2",
        found=2,
        why=NotTogether(),
        others=(Alike(count=1, each=Resources(cpu=2, memory=GIB)),),
    ): (
        "needs 2 places with 8 GPU and 1 place with 2 CPU, 1 GiB memory in one rack; "
        "best rack r2 has 2 (each kind of its jobs has room there, but not all of them at once)"
    ),
    NotTogether(all_tried=False): (
        "each kind of its jobs has room there; no way to place all of them at once was found, "
        "and there are too many to try each"
    ),
}


@pytest.mark.parametrize("reason", SENTENCES, ids=lambda reason: type(reason).__name__)
def test_a_pending_reason_has_its_sentence(reason: PendingReason) -> None:
    assert reason.sentence() == SENTENCES[reason]


@pytest.mark.parametrize("reason", SENTENCES, ids=lambda reason: type(reason).__name__)
def test_a_stored_pending_reason_is_read_as_the_same_value(reason: PendingReason) -> None:
    stored = msgspec.json.encode(reason)
    read: PendingReason = msgspec.json.decode(stored, type=PendingReason)
    assert read == reason


def test_every_pending_reason_is_told_here() -> None:
    assert {type(reason) for reason in SENTENCES} == set(get_args(PendingReason))


def test_pending_reasons_are_compared_by_value() -> None:
    assert VictimsLeave(count=1) == VictimsLeave(count=1)
    assert VictimsLeave(count=1) != VictimsLeave(count=2)


def test_a_nodes_memory_is_told_in_the_unit_in_which_its_user_asked() -> None:
    lacks = LacksAmount(amount="memory", need=8 * 10**9, free=7 << 30, total=16 << 30)

    assert lacks.words() == ("8 GB memory", "7.52 GB free of 17.18 GB")
