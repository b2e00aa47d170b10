"""A follower answers reads from the database with the leader's words, or leaves them to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace

from controller.api.app import make_app as make_leader_app
from controller.api.views import sweep_view
from controller.blobs import BlobStore
from controller.clock import SystemClock
from controller.forwarding.follower import Routes, make_app
from controller.forwarding.forwarder import Forwarder, LeaderLate
from controller.forwarding.reads import Reads
from controller.lifecycle.model import Group, JobSpec, Role
from controller.lifecycle.runs.compaction import KEPT_ATTEMPTS
from controller.lifecycle.sweeps.ended import folded
from controller.logs.parts import LogBucket
from controller.logs.store import LogStore
from controller.metric_history import MetricHistory
from controller.outputs.store import OutputStore
from controller.replica.answers import Answers
from controller.store.accounts import User
from controller.store.base import Changes
from controller.store.reading import StoreReader
from controller.store.sql import SqlStore
from controller.store.sqlite import SqliteDatabase
from controller.vault import KeyFile, Vault
from fairlead.model.statuses import AttemptStatus
from fairlead.model.sweep import ParameterSets, SweepPlan
from fairlead.queries import RunQuery
from tests.doubles.clock import ManualClock
from tests.doubles.memory_store import MemoryStore
from tests.doubles.watched_databases import FollowedSqlite
from tests.support.waiting import eventually
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN, Controller, _gate
from tests.unit.lifecycle.play import Play
from tests.unit.store.samples import a_run, an_attempt

TO_THE_LEADER = 418
TASK = {"type": "task", "image": "busybox", "commands": ["true"], "env": {"A": "ä"}}


class NotedForwarder(Forwarder):
    """Passes nothing on, and says so."""

    def __init__(self) -> None:
        self.is_leading = False
        self.is_late = False

    async def forward(
        self, request: web.Request, within: float | None = None
    ) -> web.StreamResponse:
        if self.is_late and within is not None:
            raise LeaderLate
        return web.Response(status=TO_THE_LEADER)


class Bed:
    """A leader and a follower on one database."""

    def __init__(self, leader: TestClient[Any, Any], follower: TestClient[Any, Any]) -> None:
        self.leader = leader
        self.follower = follower
        self.forwarder: NotedForwarder
        self.reader: StoreReader
        self.controller: Controller
        self.database: SqliteDatabase

    async def submit(self, name: str, token: str = USER_TOKEN, **more: Any) -> str:
        body = {"configuration": {**TASK, **more}, "name": name}
        async with self.leader.post("/v1/runs", json=body, headers=bearer(token)) as answer:
            assert answer.status == 201, await answer.text()
            return str((await answer.json())["id"])

    async def stop(self, run: str) -> None:
        headers = bearer(ADMIN_TOKEN)
        async with self.leader.post(f"/v1/runs/{run}/stop", json={}, headers=headers):
            pass

        # The watch of a run ends with it.
        async with self.leader.get(f"/v1/runs/{run}/watch", headers=headers) as answer:
            await answer.read()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    async with opened_bed(tmp_path, lambda reader: Reads(reader, SystemClock())) as made:
        yield made


@asynccontextmanager
async def opened_bed(
    tmp_path: Path,
    reads: Callable[[StoreReader], Reads],
    bucket: LogBucket | None = None,
    answers: Callable[[StoreReader, SqliteDatabase], Answers] | None = None,
    ports: Callable[[Reads], Routes] | None = None,
    blobs: Callable[[str], BlobStore] | None = None,
) -> AsyncIterator[Bed]:
    database = FollowedSqlite(tmp_path)
    store = SqlStore(database)
    boot = await store.open()
    as_double = cast(MemoryStore, store)
    logs, outputs = LogStore(tmp_path / "logs", bucket), OutputStore(tmp_path / "outputs")
    keys = await asyncio.to_thread(KeyFile.open, tmp_path / "secrets.key")
    running = Controller(
        as_double,
        logs,
        await _gate(as_double),
        BlobStore(tmp_path / "blobs") if blobs is None else blobs(boot.installation_id),
        Vault(keys),
        MetricHistory(tmp_path / "metrics"),
        outputs,
    )
    work = asyncio.create_task(running.pipeline.run())
    # However busy the machine is: a test that wants none of its answers says so.
    reader = StoreReader(database.reader, answer_seconds=3600.0)
    forwarder = NotedForwarder()
    copied = None if answers is None else answers(reader, database)
    read = reads(reader)
    app = make_app(forwarder, None, read, copied, None, None if ports is None else ports(read))
    async with (
        TestClient(TestServer(make_leader_app(running.service))) as leader,
        TestClient(TestServer(app)) as follower,
    ):
        made = Bed(leader, follower)
        made.forwarder, made.reader, made.controller = forwarder, reader, running
        made.database = database
        yield made
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    await reader.close()
    if copied is not None:
        await copied.close()
    await asyncio.to_thread(logs.close)
    await asyncio.to_thread(outputs.close)
    await store.close()


async def answered(client: TestClient[Any, Any], path: str, token: str) -> tuple[int, Any, Any]:
    async with client.get(path, headers=bearer(token)) as answer:
        shown = {
            name: value
            for name, value in answer.headers.items()
            if name not in ("Date", "Content-Length", "Server")
        }
        return answer.status, await answer.json(), shown


PATHS = (
    "/v1/runs",
    "/v1/runs?all=true&limit=2",
    "/v1/runs?status=pending&name=l*",
    "/v1/runs?cursor=unknown",
    "/v1/runs?limit=none",
    "/v1/runs/live",
    "/v1/runs/ended",
    "/v1/runs/of-admin",
    "/v1/runs/none",
    "/v1/runs/live?unknown=1",
    "/v1/runs/none?unknown=1",
    "/v1/runs/live/submission",
    "/v1/runs/live/submission?unknown=1",
    "/v1/runs/live/attempts",
    "/v1/runs/ended/attempts?limit=1",
    "/v1/runs/of-admin/attempts",
    "/v1/events",
    "/v1/events?limit=3&cursor=2",
    "/v1/events?run=live",
    "/v1/events?run=of-admin",
)


@pytest.mark.parametrize("token", [ADMIN_TOKEN, USER_TOKEN, "unknown"])
async def test_a_follower_answers_as_the_leader_does(bed: Bed, token: str) -> None:
    await bed.submit("live")
    await bed.submit("of-admin", ADMIN_TOKEN)
    await bed.submit("sweep", sweep={"matrix": {"x": [1, 2, 3]}})
    ended = await bed.submit("ended")
    await bed.stop(ended)
    for path in (*PATHS, "/v1/runs/sweep"):
        there = await answered(bed.leader, path, token)
        assert await answered(bed.follower, path, token) == there, path


async def test_who_wrote_reads_his_own_writes_at_a_follower(bed: Bed) -> None:
    for number in range(20):
        run = await bed.submit(f"run-{number}")
        status, shown, _ = await answered(bed.follower, f"/v1/runs/{run}", USER_TOKEN)
        assert (status, shown["id"]) == (200, run)


async def test_a_live_run_is_read_as_a_leader_has_it_in_memory(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path)
    store, reader = SqlStore(database), StoreReader(database.reader)
    await store.open()
    state = a_run()
    (job,) = state.jobs
    failed = [
        an_attempt(state.run.id, number, status=AttemptStatus.FAILED, finished_at=150.0)
        for number in range(2 * KEPT_ATTEMPTS)
    ]
    attempts = tuple(replace(one, allocation_id=job.attempts[0].allocation_id) for one in failed)
    state = replace(state, jobs=(replace(job, attempts=attempts),))
    await store.commit(Changes(users=(User(name="ada", role=Role.USER, created_at=0.0),)))
    await store.commit(Changes(runs={state.run.id: (None, state)}))
    (live,) = (await store.load()).runs
    # What decisions need is more than the recent attempts, which are stored of an ended run.
    assert await store.find_run(state.run.id) != live
    async with reader.moment() as moment:
        assert await moment.find_run(state.run.id) == live
        assert await moment.list_runs(RunQuery()) == [live]
    await reader.close()
    await store.close()


async def test_the_estimate_of_a_sweep_is_the_leaders(tmp_path: Path) -> None:
    plan = SweepPlan(sets=ParameterSets.of(["seed"], [[1], [2], [3]]), max_parallel=1)
    groups, spec = [Group(name="main", nodes=1)], JobSpec(image="busybox")
    play = Play(sweep=plan, groups=groups, spec=spec)
    play.to_running(0)
    play.wait(10)
    play.send(play.exited(0), play.removed(0))
    play.to_running(1)
    play.wait(4)
    told = sweep_view(folded(play.state), play.now)
    assert told is not None
    assert told.seconds_left == 16
    clock = ManualClock(play.now)
    async with opened_bed(tmp_path, lambda reader: Reads(reader, clock)) as bed:
        await bed.controller.store.commit(Changes(runs={play.run_id: (None, play.state)}))
        _, run, _ = await answered(bed.follower, f"/v1/runs/{play.run_id}", ADMIN_TOKEN)
        _, page, _ = await answered(bed.follower, "/v1/runs", ADMIN_TOKEN)
    assert run["sweep"]["seconds_left"] == 16
    assert page["runs"][0]["sweep"]["seconds_left"] == 16


async def test_a_token_that_was_revoked_opens_nothing_at_once(bed: Bed) -> None:
    assert (await answered(bed.follower, "/v1/runs", USER_TOKEN))[0] == 200
    async with bed.leader.delete("/v1/tokens/t2", headers=bearer(ADMIN_TOKEN)) as answer:
        assert answer.status == 200
    status, refused, _ = await answered(bed.follower, "/v1/runs", USER_TOKEN)
    assert (status, refused["error"]["code"]) == (401, "unauthenticated")


async def asked(bed: Bed, path: str, method: str = "GET", **more: str) -> int:
    headers = {**bearer(USER_TOKEN), **more}
    async with bed.follower.request(method, path, headers=headers) as answer:
        return answer.status


async def test_what_only_the_leader_knows_is_left_to_it(bed: Bed) -> None:
    body = {"port": 80, "type": "service", "image": "busybox", "commands": ["true"]}
    async with bed.leader.post(
        "/v1/runs", json={"configuration": body, "name": "served"}, headers=bearer(USER_TOKEN)
    ) as answer:
        assert answer.status == 201, await answer.text()
    assert await asked(bed, "/v1/runs/served") == TO_THE_LEADER
    assert await asked(bed, "/v1/runs") == 200
    for path in ("/v1/nodes", "/v1/runs/served/logs", "/v1/runs/served/watch", "/metrics"):
        assert await asked(bed, path) == TO_THE_LEADER
    assert await asked(bed, "/v1/runs", "HEAD") == TO_THE_LEADER
    assert await asked(bed, "/v1/runs", Origin="https://page.example") == TO_THE_LEADER
    assert await asked(bed, "/v1/runs", Host="name.localhost") == TO_THE_LEADER
    bed.forwarder.is_leading = True
    assert await asked(bed, "/v1/runs") == TO_THE_LEADER


async def test_a_database_of_another_version_or_that_is_away_is_left_to_the_leader(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.store.reading.schema.SCHEMA_VERSION", "another")
    assert await asked(bed, "/v1/runs") == TO_THE_LEADER
    monkeypatch.undo()
    # Nobody waits for a database that has just failed.
    assert await asked(bed, "/v1/runs") == TO_THE_LEADER
    monkeypatch.setattr("controller.store.reading.AWAY_SECONDS", 0.0)
    bed.reader._away_until = 0.0
    assert await asked(bed, "/v1/runs") == 200
    away = StoreReader(lambda: sa.create_engine(f"sqlite:///{tmp_path / 'none' / 'none'}"))
    app = make_app(NotedForwarder(), None, Reads(away, SystemClock()))
    async with (
        TestClient(TestServer(app)) as follower,
        follower.get("/v1/runs", headers=bearer(USER_TOKEN)) as answer,
    ):
        assert answer.status == TO_THE_LEADER
    await away.close()


async def test_a_database_that_hangs_is_left_to_the_leader(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, answers = threading.Event(), threading.Event()

    def hangs(*_: object) -> None:
        begun.set()
        answers.wait()

    monkeypatch.setattr("controller.store.reading.AWAY_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr("controller.store.reading.queries.account", hangs)
        first = asyncio.create_task(asked(bed, "/v1/runs"))
        await asyncio.to_thread(begun.wait)
    # As if its time were over.
    bed.reader._cut()
    for path in PATHS:
        assert await asked(bed, path) == TO_THE_LEADER
    bed.forwarder.is_late = True
    for path in PATHS:
        status, refused, _ = await answered(bed.follower, path, USER_TOKEN)
        assert (status, refused["error"]["code"]) == (503, "store_unavailable")
        assert "has not answered" in refused["error"]["message"]
    # What only the leader can do waits for it.
    assert await asked(bed, "/v1/nodes") == TO_THE_LEADER
    answers.set()
    assert await first == 401
    await eventually(lambda: not bed.reader.hangs)
    assert await asked(bed, "/v1/runs") == 200
