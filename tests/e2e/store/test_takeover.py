"""Controllers on one PostgreSQL: a successor takes over, and the old one can do nothing more."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import FairleadError
from fairlead.rest import ControllerClient, decode
from tests.e2e.store.process_lab import let_the_lease_last, let_the_lease_run_out
from tests.support.daemons import DaemonFailed
from tests.support.postgresql_server import PostgresqlServer
from tests.support.processes import ControllerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e
HELLO = {"type": "task", "image": "busybox", "commands": ["true"]}


@pytest.fixture
def controllers(database_url: str, tmp_path: Path) -> Iterator[list[ControllerProcess]]:
    made = [
        ControllerProcess(tmp_path / name, "--database", database_url) for name in ("one", "two")
    ]
    yield made
    for controller in made:
        controller.close()


def submit(controller: ControllerProcess, key: str) -> Any:
    body = {"configuration": HELLO, "client_key": key}
    client = ControllerClient(controller.url, controller.token)
    return decode(client.post("/v1/runs", body), dict[str, Any])["id"]


def test_a_second_controller_is_refused_and_told_who_works(
    controllers: list[ControllerProcess],
) -> None:
    first, second = controllers
    first.start()
    with pytest.raises(DaemonFailed, match=rf"another controller \(process {first.pid} on "):
        second.start()
    assert submit(first, "k")


def test_a_killed_controller_is_started_again_at_once(
    controllers: list[ControllerProcess], postgresql: PostgresqlServer, database_url: str
) -> None:
    first, second = controllers
    first.start()
    run_id = submit(first, "k")
    first.kill9()
    let_the_lease_last(postgresql, database_url)
    with pytest.raises(DaemonFailed, match=r"its lease runs out in \d+ s"):
        second.start()
    first.start()
    assert submit(first, "k") == run_id


def test_a_paused_controller_stops_as_soon_as_it_goes_on(
    controllers: list[ControllerProcess], postgresql: PostgresqlServer, database_url: str
) -> None:
    first, second = controllers
    first.start()
    run_id = submit(first, "k")
    first.daemon.signal(signal.SIGSTOP)
    let_the_lease_run_out(postgresql, database_url)
    second.start()
    assert submit(second, "k") == run_id
    first.daemon.signal(signal.SIGCONT)
    status = first.daemon.wait()

    assert status == 1
    assert "another controller has taken over" in first.daemon.tail()
    assert submit(second, "other") != run_id


def test_one_client_key_makes_one_run_whatever_happens(
    controllers: list[ControllerProcess], postgresql: PostgresqlServer, database_url: str
) -> None:
    first, second = controllers
    first.start()
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: submit(first, "k"), range(16)))
    first.kill9()
    let_the_lease_run_out(postgresql, database_url)
    second.start()
    assert made == {submit(second, "k")}


def test_a_database_that_comes_back_finds_the_controller_waiting(
    controllers: list[ControllerProcess], postgresql: PostgresqlServer
) -> None:
    first, _ = controllers
    first.start()
    before = submit(first, "before")
    postgresql.stop()
    postgresql.start()

    def submitted() -> object:
        try:
            return submit(first, "after")
        except FairleadError:
            return None

    after = wait_until(submitted, what="the controller to reach its database again")
    assert after != before
    assert submit(first, "before") == before
