"""The session of a gateway, against an agent that behaves and one that does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from controller.gateways import session as sessions
from controller.gateways.session import GatewayAway, GatewaySession, HostTaken
from controller.store.base import Gateway
from fairlead.wire.gateway import (
    Answer,
    Certificate,
    Counts,
    GatewayReplica,
    GatewayService,
    GroupCounts,
    Question,
    Snapshot,
    Wake,
)
from tests.doubles.gateway import FakeGateway, a_gateway
from tests.support.waiting import LONG, eventually
from tests.unit.pipelines.parts import steady_chance

DEADLINE = LONG


class PlannedOwner:
    """Has one service, with these `replicas`; notes what it is told."""

    controller_id = "c1"

    def __init__(self) -> None:
        self.replicas: tuple[str, ...] = ()
        self.woken: list[str] = []
        self.counted: list[tuple[GroupCounts, ...]] = []
        self.keys: list[str] = []

    def snapshot(self, gateway: Gateway, version: int) -> Snapshot:
        replicas = tuple(
            GatewayReplica(id=id, group="main", node_id="n", socket=f"/{id}")
            for id in self.replicas
        )
        service = GatewayService(
            run_id="r", name="api", owner="ada", host="api.x", replicas=replicas
        )
        return Snapshot(
            version=version,
            gateway=gateway.name,
            domain=gateway.domain,
            certificate=Certificate(),
            services=(service,),
        )

    def answer(self, question: Question) -> Answer:
        return Answer(id=question.id, allowed=True)

    def wake(self, run_id: str) -> None:
        self.woken.append(run_id)

    def count(self, gateway: str, counts: Counts) -> None:
        self.counted.append(counts.groups)

    def is_other(self, served: str, gateway: str) -> bool:
        return served == "other"

    async def key_seen(self, gateway: str, key: str) -> None:
        self.keys.append(key)


class Bed:
    def __init__(self) -> None:
        self.agent = FakeGateway()
        self.owner = PlannedOwner()
        self.session = GatewaySession(a_gateway(), self.agent, self.owner, steady_chance())

    async def holds(self, *replicas: str) -> None:
        """Wait until the agent has confirmed exactly these."""
        self.owner.replicas = replicas
        self.session.look()
        await self.session.until(
            lambda one: (
                one.holds is not None
                and [each.id for each in one.holds.services[0].replicas] == list(replicas)
            )
        )


@pytest.fixture
async def bed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    monkeypatch.setattr(sessions, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(sessions, "MAX_WAIT_SECONDS", 0.01)
    made = Bed()
    work = asyncio.create_task(made.session.run())
    async with asyncio.timeout(DEADLINE):
        yield made
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work


async def test_an_agent_gets_a_snapshot_and_another_only_when_something_changed(bed: Bed) -> None:
    await bed.holds("a")
    bed.session.look()
    await bed.holds("a", "b")
    assert [len(one.services[0].replicas) for one in bed.agent.snapshots[-2:]] == [1, 2]
    versions = [one.version for one in bed.agent.snapshots]
    assert versions == list(range(1, len(versions) + 1))


async def test_a_replica_is_served_only_once_the_agent_says_so(bed: Bed) -> None:
    await bed.holds("a")
    bed.agent.hesitates = True
    bed.owner.replicas = ("a", "b")
    bed.session.look()
    waiting = asyncio.create_task(bed.session.until(lambda one: one.serves("b")))
    await eventually(lambda: bed.agent.serves == ("a", "b"))
    assert (bed.session.serves("b"), waiting.done()) == (False, False)
    bed.agent.apply()
    await waiting
    assert bed.session.serves("b")


async def test_a_replica_is_served_only_once_the_agent_has_reached_it(bed: Bed) -> None:
    bed.agent.unreachable = {"a": "its node cannot be reached"}
    await bed.holds("a")
    await bed.session.until(lambda one: bool(one.why_unreached("a")))
    assert not bed.session.serves("a")
    assert bed.session.why_unreached("a") == "its node cannot be reached"
    bed.agent.unreachable = {}
    bed.agent.tell_reached()
    await bed.session.until(lambda one: one.serves("a"))
    assert bed.session.why_unreached("a") == ""


async def test_a_replica_is_left_once_no_request_is_in_flight_there(bed: Bed) -> None:
    await bed.holds("a")
    bed.agent.in_flight = {"a": 2}
    await bed.holds()
    await bed.session.until(lambda one: not one.serves("a"))
    assert not bed.session.has_left("a")
    bed.agent.in_flight = {}
    bed.agent.tell_in_flight()
    await bed.session.until(lambda one: one.has_left("a"))
    assert bed.session.has_left("a")


async def test_only_what_gives_up_leaves_a_gateway_that_stays_away(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "AWAY_SECONDS", 0.02)
    monkeypatch.setattr(sessions, "LOOK_AGAIN_SECONDS", 0.01)
    await bed.holds("a")
    bed.agent.is_away = True
    bed.agent.hang_up()
    await bed.session.until(lambda one: not one.is_up)
    staying = asyncio.create_task(bed.session.left("a", lambda: False))
    await bed.session.left("a", lambda: True)
    assert not staying.done()
    bed.owner.replicas = ()
    bed.agent.is_away = False
    await staying
    assert bed.session.has_left("a")


async def test_a_gateway_that_comes_back_in_time_is_waited_for(bed: Bed) -> None:
    await bed.holds("a")
    bed.agent.in_flight = {"a": 1}
    bed.agent.hang_up()
    await bed.session.until(lambda one: not one.is_up)
    waiting = asyncio.create_task(bed.session.left("a", lambda: True))
    await bed.holds()
    await bed.session.until(lambda one: not one.serves("a"))
    assert not waiting.done()
    bed.agent.in_flight = {}
    bed.agent.tell_in_flight()
    await waiting


async def test_a_new_connection_begins_with_nothing_confirmed(bed: Bed) -> None:
    await bed.holds("a")
    bed.agent.hesitates = True
    bed.agent.hang_up()
    await bed.session.until(lambda one: not one.is_up)
    await bed.session.until(lambda one: one.is_up)
    assert (bed.session.serves("a"), bed.session.has_left("b")) == (False, False)
    assert bed.agent.opened == 2


async def test_a_claim_is_granted_refused_or_fails_with_the_connection(bed: Bed) -> None:
    await bed.session.until(lambda one: one.is_up)
    await bed.session.claim("web.x")
    bed.agent.taken.add("other.x")
    with pytest.raises(HostTaken, match=r"other\.x is served"):
        await bed.session.claim("other.x")
    bed.agent.is_away = True
    bed.agent.hang_up()
    await bed.session.until(lambda one: not one.is_up)
    with pytest.raises(GatewayAway):
        await bed.session.claim("web.x")
    assert bed.agent.claims == ["web.x", "other.x"]


async def test_an_agent_of_another_protocol_is_refused_with_the_reason(bed: Bed) -> None:
    bed.agent.protocol = 99
    bed.agent.hang_up()
    await bed.session.until(lambda one: "speaks another protocol" in (one.message or ""))
    assert not bed.session.is_up


async def test_an_agent_of_another_controller_is_left_alone(bed: Bed) -> None:
    bed.agent.controller = "c2"
    bed.agent.hang_up()
    await bed.session.until(lambda one: "another controller" in (one.message or ""))
    assert not bed.session.is_up


async def test_an_agent_of_another_gateway_of_this_controller_is_left_alone(bed: Bed) -> None:
    bed.agent.gateway = "other"
    bed.agent.hang_up()
    await bed.session.until(lambda one: "serves the gateway other" in (one.message or ""))
    assert not bed.session.is_up


async def test_what_the_agent_counts_and_wakes_reaches_the_owner(bed: Bed) -> None:
    counts = GroupCounts(run_id="r", group="main", requests=3)
    await bed.session.until(lambda one: one.is_up)
    bed.agent.say(Wake(run_id="r"))
    bed.agent.say(Counts(groups=(counts,)))
    await bed.session.until(lambda one: (counts,) in bed.owner.counted)
    assert bed.owner.woken == ["r"]
    assert bed.owner.keys == [bed.agent.key]
