"""Sessions of PostgreSQL that end one by one, as by `pg_terminate_backend`: nobody notices.

Three controllers share a server. One session after the other is ended, of each controller in turn,
while clients submit at each of them and others read. A client repeats a request once. At the end
each accepted key has one run, each process lives, and the controller leads that has led before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil

from bench.controllers import RUN, Controllers
from bench.proofs._table import conclude
from controller.store.peers import LEADING_LOCK, WRITING_LOCK
from fairlead.errors import FairleadError
from fairlead.rest import ControllerClient
from tests.support.postgresql_server import PostgresqlServer
from tests.support.processes import ControllerProcess
from tests.support.waiting import wait_until

_SESSIONS = """
SELECT pid, client_port FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY backend_start, pid
"""
_LOCKS = f"""
SELECT count(DISTINCT objid) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objid IN ({LEADING_LOCK}, {WRITING_LOCK})
"""
_KEYS = "SELECT client_key FROM runs WHERE client_key IS NOT NULL"
_PAUSE = 0.02


class Client:
    """Asks one controller all the time, and repeats once what failed."""

    def __init__(self, url: str, token: str) -> None:
        self._client = ControllerClient(url, token)
        self.accepted: list[str] = []
        self.reads = 0
        self.repeated = 0
        self.failed: list[str] = []

    def submit(self) -> None:
        key = uuid.uuid4().hex
        body = {"configuration": RUN, "name": f"s-{key[:12]}", "client_key": key}
        if self._done(lambda: self._client.submit(body)):
            self.accepted.append(key)
        self._done(lambda: self._client.post(f"/v1/runs/s-{key[:12]}/stop", {"abort": True}))

    def read(self) -> None:
        self.reads += self._done(lambda: self._client.get("/v1/runs", limit=20))

    def _done(self, ask: Callable[[], object]) -> bool:
        try:
            ask()
        except FairleadError:
            self.repeated += 1
            try:
                ask()
            except FairleadError as error:
                self.failed.append(str(error))
                return False
        return True


class Clients:
    """One that submits and one that reads at each controller."""

    def __init__(self, controllers: Controllers) -> None:
        made = [Client(one.url, controllers.token) for one in controllers.all for _ in range(2)]
        self.all = made
        self._ended = threading.Event()
        work = [each.submit if n % 2 == 0 else each.read for n, each in enumerate(made)]
        self._threads = [threading.Thread(target=self._go_on, args=(one,)) for one in work]

    def _go_on(self, ask: Callable[[], None]) -> None:
        while not self._ended.is_set():
            ask()
            time.sleep(_PAUSE)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()

    def have_gone_on(self, before: list[int]) -> bool:
        # The second answer since then was asked for since then.
        return all(now >= then + 2 for then, now in zip(before, self.counts(), strict=True))

    def counts(self) -> list[int]:
        return [len(one.accepted) + one.reads + len(one.failed) for one in self.all]


class Sessions:
    """Those of the controllers with their server."""

    def __init__(self, server: PostgresqlServer, database: str, controllers: Controllers) -> None:
        self._server = server
        self._database = database
        self._controllers = controllers
        self.ended: Counter[str] = Counter()

    def end_next(self) -> str:
        """End a session whose like was ended least often; return whose it was."""
        found = wait_until(self._all, what="sessions")
        name, pid = min(found, key=lambda one: self.ended[one[0]])
        self._server.sql(self._database, f"SELECT pg_terminate_backend({pid})")
        self.ended[name] += 1
        return name

    def are_whole(self) -> bool:
        """Return whether the leader has both of those that tell that it lives."""
        return self._server.sql(self._database, _LOCKS) == "2"

    def _all(self) -> list[tuple[str, int]]:
        """Return them with the controller's number and their own among its, by their age."""
        of_port = {
            connection.laddr.port: f"controller {number}"
            for number, one in enumerate(self._controllers.all, 1)
            for connection in psutil.Process(one.pid).net_connections("tcp4")
        }
        rows = [row.split("|") for row in self._server.sql(self._database, _SESSIONS).split("\n")]
        seen: Counter[str] = Counter()
        found = []
        for pid, port in rows:
            if (owner := of_port.get(int(port))) is not None:
                seen[owner] += 1
                found.append((f"{owner}, session {seen[owner]}", int(pid)))
        return found


@contextmanager
def _three() -> Iterator[tuple[Controllers, PostgresqlServer, str]]:
    folder = Path(tempfile.mkdtemp(prefix="fl-prove-", dir="/tmp"))
    folder.chmod(0o755)
    with ExitStack() as closing:
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        # The ports of sessions tell whose they are. Each server listens at one port.
        pid = os.getpid()
        server = PostgresqlServer(folder / "pg", f"127.{pid >> 16}.{pid >> 8 & 255}.{pid & 255}")
        server.start()
        closing.callback(server.stop)
        url = server.new_database()
        controllers = Controllers(folder, url)
        closing.callback(controllers.close)
        controllers.start()
        yield controllers, server, url.rpartition("/")[2]


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev prove sessions", description=__doc__)
    parser.add_argument("--ends", type=int, default=60, help="default: %(default)s")
    given = parser.parse_args()
    with _three() as (controllers, server, database):
        sessions = Sessions(server, database, controllers)
        leader, clients = controllers.leader(), Clients(controllers)
        pids = [one.pid for one in controllers.all]
        with clients.going_on():
            for _ in range(given.ends):
                before = clients.counts()
                sessions.end_next()
                wait_until(partial(clients.have_gone_on, before), what="an answer for each client")
                wait_until(sessions.are_whole, what="the leader to have its sessions again")
        broken = [
            *(f"a request failed twice: {why}" for one in clients.all for why in one.failed),
            *_ended(controllers, pids),
            *_lost(server.sql(database, _KEYS).split(), clients),
        ]
        if (now := controllers.leader()) is not leader:
            broken.append(f"{now.url} leads, and {leader.url} led before")
    accepted = sum(len(one.accepted) for one in clients.all)
    figures: list[tuple[str, object]] = [
        ("sessions ended", sessions.ended.total()),
        ("kinds of them", len(sessions.ended)),
        ("runs accepted", accepted),
        ("reads answered", sum(one.reads for one in clients.all)),
        ("requests that were repeated", sum(one.repeated for one in clients.all)),
        ("load of the machine at the end", f"{os.getloadavg()[0]:.1f}"),
    ]
    conclude("sessions of PostgreSQL end one by one", figures, broken)


def _ended(controllers: Controllers, pids: list[int]) -> list[str]:
    def tail(one: ControllerProcess) -> str:
        return one.daemon.tail(3)

    return [
        f"the process of {one.url} has ended: {tail(one)}"
        for one, pid in zip(controllers.all, pids, strict=True)
        if not one.daemon.is_alive() or one.pid != pid
    ]


def _lost(stored: list[str], clients: Clients) -> list[str]:
    times = Counter(stored)
    return [
        f"the accepted key {key} has {times[key]} runs"
        for one in clients.all
        for key in one.accepted
        if times[key] != 1
    ]


if __name__ == "__main__":
    main()
