"""Each list and page of a follower is the leader's, as it was committed when the request came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from controller.clock import SystemClock, system_chance
from controller.forwarding.reads import Reads
from controller.lifecycle.model import (
    Fleet,
    Node,
    NodeAddress,
    NodeCapacity,
    NodeGpu,
    NodeStatus,
)
from controller.replica.answers import AnsweringCopy, Answers, ForPages
from controller.replica.copy import Chosen
from controller.replica.reading import Following
from controller.service import Settings
from controller.store.reading import StoreReader
from controller.store.sqlite import SqliteDatabase
from controller.store.turns import Beginning
from controller.web.assets import Assets
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN
from tests.unit.forwarding.test_reads import Bed, answered, bearer, opened_bed


class NoFeed:
    """A feed that has not begun."""

    started: str | None = None
    revision = 0


def make_answers(reader: StoreReader, database: SqliteDatabase) -> Answers:
    clock, chance = SystemClock(), system_chance()
    pages = ForPages(key=b"key", now=asyncio.get_running_loop().time, assets=Assets())
    chosen = Chosen(settings=Settings(node_key="ssh-ed25519 AAAA"))

    def made(beginning: Beginning) -> AnsweringCopy:
        return AnsweringCopy(beginning, reader, clock, chance, chosen, pages)

    return Answers(Following(StoreReader(database.reader), made, clock), NoFeed())


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    def reads(reader: StoreReader) -> Reads:
        return Reads(reader, SystemClock())

    async with opened_bed(tmp_path, reads, answers=make_answers) as made:
        yield made


LISTS = (
    "/v1/nodes",
    "/v1/nodes?limit=1",
    "/v1/nodes?limit=none",
    "/v1/nodes/gpu-1",
    "/v1/nodes/none",
    "/v1/nodes/gpu-1/tasks",
    "/v1/node-key",
    "/v1/fleets",
    "/v1/machines",
    "/v1/costs",
    "/v1/users",
    "/v1/users/ada",
    "/v1/me",
    "/v1/tokens",
    "/v1/secrets",
    "/v1/service-keys",
    "/v1/runs",
    "/v1/runs/live",
    "/v1/runs/live/explain",
    "/v1/runs/of-admin/explain",
    "/v1/runs/sweep/sets",
    "/v1/runs/live/ssh",
)


async def assert_equal(bed: Bed) -> None:
    for token in (ADMIN_TOKEN, USER_TOKEN, "unknown"):
        for path in LISTS:
            there = await answered(bed.leader, path, token)
            assert await answered(bed.follower, path, token) == there, path


async def test_each_list_of_a_follower_is_the_leaders(bed: Bed) -> None:
    pipeline = bed.controller.pipeline
    await assert_equal(bed)
    await bed.submit("live")
    await bed.submit("of-admin", ADMIN_TOKEN, resources={"gpu": 1})
    await bed.submit("sweep", sweep={"matrix": {"x": [1, 2, 3]}})
    await assert_equal(bed)
    await pipeline.save_fleet(Fleet(name="lab", created_at=1.0, placement="rack"), "lab")
    node = a_node("gpu-1")
    await pipeline.save_node(node, node.id)
    await pipeline.save_node(a_node("gpu-2"), "gpu-2")
    await assert_equal(bed)
    await pipeline.save_node(replace(node, cordoned=True, cordon_reason="fan"), node.id)
    await pipeline.save_node(None, "gpu-2")
    async with bed.leader.put(
        "/v1/secrets/token", json={"value": "12345678"}, headers=bearer(USER_TOKEN)
    ) as put:
        assert put.status == 200
    async with bed.leader.post(
        "/v1/users", json={"name": "eve"}, headers=bearer(ADMIN_TOKEN)
    ) as post:
        assert post.status == 201
    await assert_equal(bed)
    await bed.stop("live")
    await bed.submit("live")
    await assert_equal(bed)


def a_node(name: str) -> Node:
    gpu = NodeGpu(uuid=f"GPU-{name}", name="H100", memory=80 << 30, healthy=True, message=None)
    return Node(
        id=name,
        name=name,
        fleet="default",
        address=NodeAddress(shim_socket="/shim", local_socket=True),
        status=NodeStatus.UNREACHABLE,
        capacity=NodeCapacity(cpu=8.0, memory=1 << 30, disk=1 << 30, gpus=(gpu,)),
        created_at=1.0,
        last_seen_at=5.0,
    )
