"""A gang as its users see it: the story that `inspect` tells, and what its jobs are made to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.lab import ControllerLab
from tests.support.machines import Machine
from tests.support.processes import ControllerProcess
from tests.support.waiting import wait_until

WAITING = """
env > /tmp/.env
mv /tmp/.env /tmp/env
while [ ! -e /tmp/end ]; do sleep 0.05; done
exit $(cat /tmp/end)
"""
"""A command that says what it was told, and ends with the status that `GangLab.end` gives it."""

PATIENCE = 180.0
"""Seconds: a machine that is off lets each of three attempts to connect wait for 20 s."""


@dataclass
class GangLab(ControllerLab):
    """A controller and several machines, each of them a node of it."""

    controller: ControllerProcess
    machines: list[Machine]
    folder: Path
    image: str

    def add(self, machine: Machine) -> None:
        machine.join(self.controller)
        self.wait_for_node(lambda node: node["status"] == "connected", machine.name)

    def repair(self) -> None:
        if not self.controller.daemon.is_alive():
            self.controller.start()
        for machine in self.machines:
            machine.repair()
            self.wait_for_node(lambda node: node["status"] == "connected", machine.name, PATIENCE)

    @contextmanager
    def only(self, count: int) -> Iterator[list[Machine]]:
        """Nothing is placed on other machines meanwhile."""
        for machine in self.machines[count:]:
            self.cli("node", "drain", machine.name).succeeded()
        try:
            yield self.machines[:count]
        finally:
            for machine in self.machines[count:]:
                self.cli("node", "resume", machine.name).succeeded()

    def machine(self, name: str) -> Machine:
        return next(machine for machine in self.machines if machine.name == name)

    def job(self, name: str, cookie: int) -> Any:
        return next(job for job in self.inspect(name)["jobs"] if job["cookie"] == cookie)

    def rank(self, name: str, cookie: int) -> int | None:
        rank: int | None = self.job(name, cookie)["rank"]
        return rank

    def last(self, name: str, cookie: int) -> Any:
        """The latest attempt of the job with this cookie."""
        return self.job(name, cookie)["attempts"][-1]

    def wait_for_incarnation(
        self, name: str, number: int, cookies: Iterable[int], timeout: float = PATIENCE
    ) -> list[Any]:
        """Their attempts, once all of them run in it."""

        def reached() -> Any:
            found = [self.last(name, cookie) for cookie in cookies]
            there = all(
                one["incarnation"]["number"] == number and one["status"] == "running"
                for one in found
            )
            return found if there else None

        return wait_until(reached, timeout, f"incarnation {number} of {name} to run")

    def wait_for_attempt(self, name: str, status: str, number: int = 0) -> None:
        """The attempt of that number of a run of one job."""

        def reached() -> bool:
            found = self.attempts(name)
            return len(found) > number and found[number]["status"] == status

        wait_until(reached, PATIENCE, f"attempt {number} of {name} to be {status}")

    def environment(self, attempt: Any) -> dict[str, str]:
        """The job's variables. A job is RUNNING a moment before it has written that down."""
        written = "until [ -e /tmp/env ]; do sleep 0.05; done; cat /tmp/env"
        text = self.inside(attempt, "sh", "-c", written)
        return dict(line.partition("=")[::2] for line in text.splitlines())

    def inside(self, attempt: Any, *command: str) -> str:
        return self.machine(attempt["node"]).inside(attempt["id"], *command)

    def end(self, attempt: Any, status: int) -> None:
        self.inside(attempt, "sh", "-c", f"echo {status} > /tmp/.end; exec mv /tmp/.end /tmp/end")
