"""Controllers behind a real PgBouncer: it is noticed and said, and what is accepted is kept."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from controller.store.errors import StoreUnavailable
from controller.store.peers import Peers
from controller.store.postgresql import PostgresqlDatabase
from controller.store.sql import SqlStore
from fairlead.errors import ApiError
from fairlead.rest import ControllerClient
from tests.support.pgbouncer import PgBouncer
from tests.support.postgresql_server import PostgresqlServer
from tests.support.processes import ControllerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e
TASK = {"type": "task", "commands": ["true"], "resources": {"cpu": 4000}}
_LOCAL = ("logs", "outputs", "blobs", "metrics", "controller.lock")


def database_at(url: str) -> PostgresqlDatabase:
    return PostgresqlDatabase(url, peers=Peers(url="http://own", version="1"))


@pytest.fixture(params=["session", "transaction"])
def pool(
    request: pytest.FixtureRequest, testbed_folder: Path, postgresql: PostgresqlServer
) -> Iterator[PgBouncer]:
    name = f"pool-{uuid.uuid4().hex[:6]}"
    made = PgBouncer(testbed_folder / name, postgresql, request.param)
    made.start()
    yield made
    made.daemon.kill9()


async def test_a_pool_that_takes_no_settings_is_refused_with_the_fix(
    testbed_folder: Path, postgresql: PostgresqlServer, database_url: str
) -> None:
    pool = PgBouncer(testbed_folder / "strict", postgresql, "session", ignored="")
    pool.start()
    try:
        with pytest.raises(StoreUnavailable, match="give the server's own address"):
            await SqlStore(database_at(pool.url_of(database_url))).open()
    finally:
        pool.daemon.kill9()


async def test_controllers_that_share_a_session_of_the_server_prepare_nothing_in_it(
    testbed_folder: Path, postgresql: PostgresqlServer, database_url: str
) -> None:
    """Else one runs a statement of another one, which has the same name, or finds none."""
    pool = PgBouncer(testbed_folder / "narrow", postgresql, "transaction", sessions=1)
    pool.start()
    try:
        url = pool.url_of(database_url)
        store = SqlStore(database_at(database_url))
        await store.open()
        await store.close()
        peers = [Peers(url=f"http://{name}", version="1") for name in ("one", "two")]
        for one in peers:
            PostgresqlDatabase(url, peers=one)
        # psycopg prepares what it has run five times.
        for _ in range(8):
            for one in peers:
                assert one.look() is not None
        for one in peers:
            one.leave()
    finally:
        pool.daemon.kill9()


def test_controllers_behind_a_pool_say_so_and_lose_nothing_when_it_dies(
    pool: PgBouncer, tmp_path: Path, database_url: str
) -> None:
    url, first, second = pool.url_of(database_url), tmp_path / "one", tmp_path / "two"
    leader, waits = (ControllerProcess(folder, "--database", url) for folder in (first, second))
    for one in (leader, waits):
        one.daemon.argv.extend(["--url", one.url])
    with closing(leader), closing(waits):
        leader.start()
        shutil.copytree(leader.data, waits.data, ignore=lambda *_: _LOCAL)
        waits.start()
        client = ControllerClient(f"{waits.url},{leader.url}", leader.token, tell=lambda _: None)
        accepted = {_submitted(client) for _ in range(20)}
        pool.kill9()
        pool.start()
        accepted |= {_submitted(client) for _ in range(20)}
        listed = msgspec.json.decode(client.get("/v1/runs?limit=100"))["runs"]
        assert {run["id"] for run in listed} == accepted
        for one in (leader, waits):
            assert "behind a pool of sessions: give its own address" in one.daemon.log.read_text()
            assert one.daemon.is_alive()


def _submitted(client: ControllerClient) -> str:
    key = uuid.uuid4().hex
    body = {"configuration": TASK, "name": f"p-{key[:12]}", "client_key": key}
    return wait_until(lambda: _answered(client, body), what="an answer")


def _answered(client: ControllerClient, body: object) -> str:
    try:
        answer, _ = client.submit(body)
    except ApiError as error:
        if error.status != 503:
            raise
        return ""
    return str(msgspec.json.decode(answer)["id"])
