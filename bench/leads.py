"""What a controller's process keeps of leads that are over.

A controller works alone on a PostgreSQL database that has live runs. Its lease is given away again
and again: each time it follows, finds that nobody leads, and leads anew. All that was live hangs
from the application of its lead, which nothing may keep (`controller/api/app.py`, `_let_go`).

The process is told to collect its garbage after each lead; with `--by-itself` the bench waits until
it does so by itself. Memory that was in use at once is not given back to the system.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import psutil

from bench import history, report
from bench.controllers import RUN
from controller.store.lease import LEASE_NAME
from fairlead.errors import FairleadError
from fairlead.rest import ControllerClient
from tests.support.postgresql_server import PostgresqlServer
from tests.support.processes import ControllerProcess
from tests.support.waiting import wait_until

_WARM = 3
"""Leads before the first look: what a process loads and reserves once is no part of the figure."""
_GIVE_AWAY = (
    "UPDATE leases SET holder = 'the bench', token = token + 1, expires_at = 0 "
    f"WHERE name = '{LEASE_NAME}' RETURNING token"
)
_TOKEN = f"SELECT token FROM leases WHERE name = '{LEASE_NAME}' AND holder <> 'the bench'"


_COLLECTING = """
import gc, pathlib, signal, sys, time
mark = pathlib.Path(sys.argv.pop(1))
began = 0.0
def note(phase, told):
    global began
    if phase == "start":
        began = time.monotonic()
    elif told["generation"] == 2:
        mark.with_suffix(".new").write_text(str(time.monotonic() - began))
        mark.with_suffix(".new").replace(mark)
gc.callbacks.append(note)
signal.signal(signal.SIGUSR2, lambda *_: gc.collect())
from fairlead.__main__ import main
sys.exit(main())
"""
"""A `fairlead` that collects its garbage at a signal, and writes how long each full collection
took."""


class Leads:
    """A controller that leads again whenever its lease was given away."""

    def __init__(self, folder: Path, server: PostgresqlServer, *, by_itself: bool) -> None:
        self._by_itself = by_itself
        self.collecting: list[float] = []
        """Seconds that each collection took."""
        url = server.new_database()
        self._server = server
        self._database = url.partition("?")[0].rpartition("/")[2]
        self.controller = ControllerProcess(folder / "c", "--database", url, "--log-level", "error")
        self._collected = folder / "collected"
        argv = self.controller.daemon.argv
        argv[:1] = [sys.executable, "-c", _COLLECTING, str(self._collected)]
        argv.extend(["--url", self.controller.url])

    def start(self, runs: int) -> None:
        self.controller.start()
        client = ControllerClient(self.controller.url, self.controller.token)
        for number in range(runs):
            client.submit({"configuration": RUN, "name": f"r-{number}"})

    def next(self) -> None:
        """Return when it leads again, has answered as a leader, and has no garbage."""
        given_away = int(self._server.sql(self._database, _GIVE_AWAY).split()[0])
        wait_until(lambda: self._token() > given_away, what="the controller to lead again")
        wait_until(self._answers, what="an answer")
        self._collected.unlink(missing_ok=True)
        if not self._by_itself:
            self.controller.daemon.signal(signal.SIGUSR2)
        wait_until(self._collected.exists, what="the garbage to be collected")
        self.collecting.append(float(self._collected.read_text()))

    def resident(self) -> int:
        """Return the bytes of memory that its process holds."""
        return int(psutil.Process(self.controller.pid).memory_info().rss)

    def _token(self) -> int:
        return int(self._server.sql(self._database, _TOKEN) or 0)

    def _answers(self) -> bool:
        try:
            # Of all pages only those that were asked for are in a cache of aiohttp's.
            client = ControllerClient(self.controller.url, self.controller.token)
            return bool(client.get("/v1/runs", limit=1) and client.get("/v1/nodes"))
        except FairleadError:
            return False


def main() -> None:
    given = _parser().parse_args()
    machine = report.machine()
    folder = Path(tempfile.mkdtemp(prefix="fl-bench-", dir="/tmp"))
    folder.chmod(0o755)
    server = PostgresqlServer(folder / "pg")
    server.start()
    leads = Leads(folder, server, by_itself=given.by_itself)
    try:
        leads.start(given.runs)
        for _ in range(_WARM):
            leads.next()
        before = leads.resident()
        for _ in range(given.leads):
            leads.next()
        kept = (leads.resident() - before) / given.leads / 1024
    finally:
        leads.controller.close()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"{given.leads} leads that are over, with {given.runs} live runs: {kept:.0f} KiB of memory "
        f"each; {before >> 20} MiB before them; load {os.getloadavg()[0]:.1f}"
    )
    longest = max(leads.collecting) * 1000
    print(f"the longest of {len(leads.collecting)} collections took {longest:.0f} ms")
    if given.by_itself:
        return
    history.conclude({"leads.kept": kept}, given.release, machine)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench leads", description=__doc__)
    add = parser.add_argument
    add("--leads", type=int, default=10, metavar="N", help="default: %(default)s")
    add("--runs", type=int, default=100, metavar="N", help="live ones (default: %(default)s)")
    add("--by-itself", action="store_true", help="wait until it collects its garbage")
    history.add_option(parser)
    return parser


if __name__ == "__main__":
    main()
