"""Each list and page of a follower is the leader's, as it was committed when the request came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
import sqlalchemy as sa
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from msgspec.structs import replace

from common.refusals import NotFound
from controller.api.app import ROUTES
from controller.clock import SystemClock, system_chance
from controller.forwarding import reads
from controller.forwarding.reads import Reads
from controller.lifecycle.model import (
    Fleet,
    Node,
    NodeAddress,
    NodeCapacity,
    NodeGpu,
    NodeStatus,
)
from controller.replica.alone import NeedsLeader
from controller.replica.answers import ANSWERED, AnsweringCopy, Answers, FeedPosition, ForPages
from controller.replica.copy import Chosen
from controller.replica.reading import Following
from controller.replica.uploads import Uploads
from controller.service import Settings
from controller.store import schema
from controller.store.reading import StoreReader
from controller.store.sqlite import SqliteDatabase
from controller.store.turns.changed_state import Beginning
from controller.web.app import session_key
from controller.web.assets import Assets
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN
from tests.unit.forwarding.test_reads import TO_THE_LEADER, Bed, answered, bearer, opened_bed
from tests.unit.forwarding.watching import SECRET

PAGES_KEY = session_key(SECRET)
CLOCK = SystemClock()


class NoFeed:
    """A feed that has not begun."""

    started: str | None = None
    revision = 0


def make_answers(
    reader: StoreReader,
    database: SqliteDatabase,
    feed: FeedPosition,
    providers: tuple[str, ...] = (),
    uploads: Uploads | None = None,
) -> Answers:
    chance = system_chance()
    pages = ForPages(key=PAGES_KEY, now=asyncio.get_running_loop().time, assets=Assets())
    chosen = Chosen(settings=Settings(node_key="ssh-ed25519 AAAA"), providers=providers)

    def made(beginning: Beginning) -> AnsweringCopy:
        id = beginning.installation_id
        blobs = None if uploads is None or id is None else uploads.store(id)
        return AnsweringCopy(beginning, reader, CLOCK, chance, chosen, pages, blobs)

    return Answers(Following(StoreReader(database.reader), made, CLOCK), feed, uploads)


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    def answers(reader: StoreReader, database: SqliteDatabase) -> Answers:
        return make_answers(reader, database, NoFeed())

    async with opened_bed(tmp_path, lambda reader: Reads(reader, CLOCK), answers=answers) as made:
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


class PartlyShown:
    """A copy that takes over much during the first answers, and what follows the leader with it."""

    def __init__(self, *partly: web.Response | Exception) -> None:
        self.shown_in_parts = 0
        self.endpoints = {"/v1/nodes": self._answer}
        self._partly = list(partly)

    async def now(self) -> PartlyShown:
        return self

    async def _answer(self, _: web.Request) -> web.Response:
        if not self._partly:
            return web.Response(text="whole")
        self.shown_in_parts += 1
        found = self._partly.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


async def told_by(copy: PartlyShown) -> web.StreamResponse:
    answers = Answers(cast(Following[AnsweringCopy], copy), NoFeed())
    return await answers.routes["/v1/nodes"](make_mocked_request("GET", "/v1/nodes"))


async def test_nobody_gets_an_answer_with_a_part_of_a_commit() -> None:
    copy = PartlyShown(web.Response(text="part"), NotFound("of a part"))
    answer = await told_by(copy)
    assert isinstance(answer, web.Response)
    assert answer.text == "whole"
    with pytest.raises(NeedsLeader):
        await told_by(PartlyShown(*[web.Response(text="part")] * 4))


async def status(bed: Bed, path: str, token: str = ADMIN_TOKEN, **more: str) -> int:
    async with bed.follower.get(path, headers={**bearer(token), **more}) as answer:
        return answer.status


async def test_each_route_is_answered_here_or_known_to_be_the_leaders() -> None:
    routes = {route.path for route in ROUTES if route.method == "GET"}
    elsewhere = set(reads.PATHS)
    assert routes - ANSWERED - elsewhere == OF_THE_LEADER
    assert routes >= ANSWERED


OF_THE_LEADER = {
    "/v1/health",
    # Of live attempts, and of the bucket: `LogReads` answers what it can.
    "/v1/runs/{run}/logs",
    "/v1/runs/{run}/logs/ws",
    "/v1/runs/{run}/logs/window",
    "/v1/runs/{run}/logs/search",
    # `WatchReads` answers them from the feed.
    "/v1/runs/{run}/watch",
    "/v1/events/watch",
    # `JobPorts` carries them.
    "/v1/runs/{run}/ports/{port}",
    "/v1/runs/{run}/terminal",
    # It alone is connected to nodes, gateways and providers, and has files of the past.
    "/v1/runs/{run}/metrics",
    "/v1/runs/{run}/metrics/history",
    "/v1/runs/{run}/outputs",
    "/v1/runs/{run}/outputs/archive",
    "/v1/nodes/{node}/doctor",
    "/v1/providers/{provider}/trial",
    "/v1/providers/{provider}/offers",
    "/v1/machine-orphans",
    "/v1/gateways",
    "/v1/gateways/{gateway}",
    "/v1/services/{run}",
    "/v1/blobs/{blob}",
}


async def test_a_token_that_was_revoked_and_a_role_that_was_taken_count_at_once(bed: Bed) -> None:
    assert await status(bed, "/v1/users/ada", ADMIN_TOKEN) == 200
    assert await status(bed, "/v1/users/admin", USER_TOKEN) == 403
    async with bed.leader.patch(
        "/v1/users/ada", json={"role": "admin"}, headers=bearer(ADMIN_TOKEN)
    ) as answer:
        assert answer.status == 200, await answer.text()
    assert await status(bed, "/v1/users/admin", USER_TOKEN) == 200
    async with bed.leader.delete("/v1/tokens/t1", headers=bearer(USER_TOKEN)) as answer:
        assert answer.status == 200
    assert await status(bed, "/v1/users/ada", ADMIN_TOKEN) == 401
    assert await status(bed, "/v1/nodes", ADMIN_TOKEN) == 401


async def test_who_wrote_finds_it_in_each_list_at_once(bed: Bed) -> None:
    for number in range(20):
        name = f"fleet-{number}"
        body = {"name": name}
        async with bed.leader.post("/v1/fleets", json=body, headers=bearer(ADMIN_TOKEN)) as answer:
            assert answer.status == 201
        _, shown, _ = await answered(bed.follower, "/v1/fleets?limit=1000", ADMIN_TOKEN)
        assert name in [one["name"] for one in shown["fleets"]]


async def test_many_at_once_see_what_was_written_before_each_of_them_came(bed: Bed) -> None:
    async def write_and_read(number: int) -> None:
        run = await bed.submit(f"run-{number}")
        code, shown, _ = await answered(bed.follower, f"/v1/runs/{run}/explain", USER_TOKEN)
        assert (code, shown["run"]) == (200, run)

    await asyncio.gather(*(write_and_read(number) for number in range(30)))


async def test_pages_of_other_origins_and_odd_requests_are_left_to_the_leader(bed: Bed) -> None:
    assert await status(bed, "/v1/nodes") == 200
    assert await status(bed, "/v1/nodes", Origin="https://page.example") == TO_THE_LEADER
    assert await status(bed, "/v1/nodes", Host="name.localhost") == TO_THE_LEADER
    async with bed.follower.head("/v1/nodes", headers=bearer(ADMIN_TOKEN)) as answer:
        assert answer.status == TO_THE_LEADER
    bed.forwarder.is_leading = True
    assert await status(bed, "/v1/nodes") == TO_THE_LEADER


async def test_a_database_that_is_away_or_of_another_version_shows_no_old_list(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await status(bed, "/v1/nodes") == 200
    monkeypatch.setattr("controller.store.reading.schema.SCHEMA_VERSION", "another")
    for path in ("/v1/nodes", "/v1/me", "/dashboard/login"):
        assert await status(bed, path) == TO_THE_LEADER


async def test_turns_that_are_forgotten_or_another_ones_make_it_read_all_again(bed: Bed) -> None:
    assert await status(bed, "/v1/nodes") == 200
    pipeline = bed.controller.pipeline
    await pipeline.save_node(a_node("gpu-1"), "gpu-1")
    engine = bed.database.writer()
    with engine.begin() as connection:
        connection.execute(sa.update(schema.turns).values(leader="another"))
    await assert_equal(bed)
    await pipeline.save_node(a_node("gpu-2"), "gpu-2")
    with engine.begin() as connection:
        connection.execute(sa.delete(schema.turns))
    await assert_equal(bed)
    engine.dispose()


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
