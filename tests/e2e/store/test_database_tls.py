"""Controllers that reach PostgreSQL by TLS: it is verified, and all that notices a dead leader or a
server that hangs works there too."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from controller.store.errors import StoreHangs, StoreUnavailable
from controller.store.peers import Peers
from controller.store.postgresql import PostgresqlDatabase
from controller.store.sessions import Patience
from controller.store.sql import SqlStore
from tests.support.certificates import Authority
from tests.support.postgresql_server import PostgresqlServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(testbed_folder: Path) -> Iterator[PostgresqlServer]:
    # The port is PostgreSQL's own; each process of tests has an address.
    pid = os.getpid()
    address = f"127.{64 | pid >> 16 & 63}.{pid >> 8 & 255}.{pid & 255}"
    folder = testbed_folder / f"tls-{pid}"
    folder.mkdir()
    made = PostgresqlServer(folder / "pg", address, Authority(folder))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def url(server: PostgresqlServer) -> str:
    return server.new_database()


def _peers(name: str) -> Peers:
    return Peers(url=f"http://{name}", version="1")


async def test_a_leader_whose_sessions_end_is_replaced_before_its_lease_ends(url: str) -> None:
    leads, waits = _peers("a"), _peers("b")
    leading, waiting = (PostgresqlDatabase(url, peers=one) for one in (leads, waits))
    store = SqlStore(leading)
    await store.open()
    with leading.reader().begin() as connection:
        is_secure = sa.text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert connection.execute(is_secure).scalar_one() is True

    def may_lead() -> bool:
        sight = waits.look()
        return sight is not None and sight.may_lead

    assert not may_lead()
    leading.leave()
    # The lease lasts for 30 s.
    await eventually(may_lead)
    successor = SqlStore(waiting)
    await successor.open()
    for one in (store, successor):
        await one.close()


async def test_a_server_of_another_authority_is_refused(url: str, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    wrong = f"{url.partition('sslrootcert=')[0]}sslrootcert={other.file}"
    with pytest.raises(StoreUnavailable, match="SSL error"):
        await SqlStore(PostgresqlDatabase(wrong, peers=_peers("a"))).open()


async def test_a_server_that_hangs_is_left_after_its_time(url: str) -> None:
    store = SqlStore(PostgresqlDatabase(url, peers=_peers("a")), patience=Patience(seconds=0.2))
    await store.open()
    reader = store._reader
    assert reader is not None
    with reader.begin() as connection:
        backend = connection.execute(sa.select(sa.func.pg_backend_pid())).scalar_one()
    os.kill(backend, signal.SIGSTOP)
    try:
        with pytest.raises(StoreHangs):
            await asyncio.wait_for(store.peers(), 30)
    finally:
        os.kill(backend, signal.SIGCONT)

    async def answers() -> bool:
        return await store.peers() is not None

    assert await answers()
    await store.close()
