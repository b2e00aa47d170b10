"""A controller and a shim on the process engine, and a lease that has run out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support.lab import ControllerLab
from tests.support.postgresql_server import PostgresqlServer
from tests.support.processes import ControllerProcess
from tests.support.waiting import wait_until

COUNTING = "i=0; while true; do echo line $i; i=$((i+1)); sleep 0.05; done"


@dataclass
class ProcessLab(ControllerLab):
    """A controller and the shim of its own machine, with jobs as plain processes."""

    controller: ControllerProcess
    folder: Path
    image: str = ""

    def lines(self, name: str) -> int:
        return self.log(name).count(b"\n")

    def goes_on(self, name: str) -> None:
        seen = self.lines(name)
        wait_until(lambda: self.lines(name) > seen, what=f"{name} to go on")


def let_the_lease_run_out(postgresql: PostgresqlServer, url: str) -> None:
    """As half a minute of silence would."""
    postgresql.sql(_name(url), "UPDATE leases SET expires_at = 0")


def let_the_lease_last(postgresql: PostgresqlServer, url: str) -> None:
    """Its holder is dead. However slowly a successor starts, it finds the lease held."""
    postgresql.sql(_name(url), "UPDATE leases SET expires_at = expires_at + 3600")


def _name(url: str) -> str:
    return url.rpartition("/")[0].rpartition("@/")[2].partition("?")[0]
