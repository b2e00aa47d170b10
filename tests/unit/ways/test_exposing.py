"""The leader has a node expose the ports of a job, and lends a follower the way to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import msgspec
import pytest
from msgspec.structs import replace

from common.links.errors import LinkError
from controller.lifecycle.model import RunState
from controller.ways.exposing import Exposer
from controller.ways.messages import JobWay
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.shim import ANY_PORT, Fence, TaskStatus
from shim.client import ShimError, ShimUnavailable
from tests.doubles.node import FakeConnection
from tests.unit.pipelines.parts import NotedPipeline, a_node, attempt_of, placed, task_of

KEY = "ssh-ed25519 AAAA"


class Bed:
    """A leader with a running job on `n1`."""

    def __init__(self) -> None:
        self.state: RunState = placed(AttemptStatus.RUNNING)
        self.attempt = attempt_of(self.state).id
        self.pipeline = NotedPipeline(self.state)
        node = a_node("n1")
        self.pipeline.nodes["n1"] = replace(node, capacity=replace(node.capacity, gateways=True))
        self.node = FakeConnection()
        self.node.shim.listing[self.attempt] = task_of(self.state)
        self.keys: tuple[str, ...] = (KEY,)
        self.connect: Callable[[str], Awaitable[FakeConnection]] = self._connect

    async def _connect(self, node_id: str) -> FakeConnection:
        return self.node

    async def lend(self, run_id: str | None = None, attempt: str | None = None) -> JobWay | None:
        exposer = Exposer(
            pipeline=self.pipeline,
            connect=self.connect,
            keys=lambda: self.keys,
            fence=Fence(1, 7),
        )
        found = await exposer.lend(run_id or self.state.run.id, attempt or self.attempt)
        return None if found is None else msgspec.json.decode(found, type=JobWay)


async def test_a_way_opens_all_ports_of_the_attempt_by_the_keys_of_now() -> None:
    bed = Bed()
    way = await bed.lend()
    assert way is not None
    assert (way.socket, way.node_id) == (f"/run/exposed/{bed.attempt}-{ANY_PORT}.sock", "n1")
    assert bed.node.shim.gateway_keys == (KEY,)
    # The name of a socket is all that opens it.
    assert way.socket not in repr(way)


@pytest.mark.parametrize(
    "refusal",
    [
        # A shim of an earlier version knows no such port.
        ShimError("invalid", "a port is a number from 1 to 65535", 400, "port"),
        ShimError("fenced", "another controller commands it", 409),
        ShimUnavailable("closed"),
    ],
)
async def test_a_shim_that_refuses_or_is_away_lends_nothing(refusal: Exception) -> None:
    bed = Bed()
    bed.node.shim.refusal = refusal
    assert await bed.lend() is None


async def test_what_is_not_there_or_does_not_run_is_not_lent() -> None:
    bed = Bed()
    assert await bed.lend(run_id="another") is None
    assert await bed.lend(attempt="another") is None
    bed.node.shim.listing[bed.attempt] = task_of(bed.state, TaskStatus.TERMINATED)
    assert await bed.lend() is None


async def test_a_node_that_exposes_nothing_is_not_asked() -> None:
    bed = Bed()
    bed.pipeline.nodes["n1"] = a_node("n1")

    async def connect(node_id: str) -> FakeConnection:
        raise AssertionError(node_id)

    bed.connect = connect
    assert await bed.lend() is None


async def test_a_node_that_is_not_reached_lends_nothing() -> None:
    bed = Bed()

    async def connect(node_id: str) -> FakeConnection:
        raise LinkError("away")

    bed.connect = connect
    assert await bed.lend() is None


async def test_a_key_that_is_removed_while_keys_are_on_their_way_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The word of the removal, on a connection that was open already, overtakes the older one."""
    bed, removed = Bed(), "ssh-ed25519 BBBB"
    shim, put = bed.node.shim, bed.node.shim.put_gateways
    bed.keys = (KEY, removed)

    async def overtaken(keys: Iterable[str]) -> None:
        if removed in keys:
            bed.keys = (KEY,)
            await put(bed.keys)
        await put(keys)

    monkeypatch.setattr(shim, "put_gateways", overtaken)
    assert await bed.lend() is not None
    assert shim.gateway_keys == (KEY,)
