"""Takeover: how long clients wait when the leader is killed with -9, when its cable is cut, and
when it is stopped in order.

Three controllers, each in a network namespace of its own, share a PostgreSQL that runs outside of
them, and each holds it over TCP. Clients outside submit runs all the time, with a key each, and
repeat what was not answered. A wait is the longest time between two answers of all clients. A
leader that was cut lives on in its namespace until it is measured. At the end each accepted key has
exactly one run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import quantiles

import msgspec

from bench.proofs._table import conclude
from fairlead.errors import ApiError, ConnectionLost, FairleadError
from fairlead.rest import ControllerClient
from tests.support.daemons import inside, run
from tests.support.postgresql_server import PostgresqlServer
from tests.support.processes import ControllerProcess
from tests.support.waiting import wait_until

RUN = {"type": "task", "image": "busybox", "commands": ["true"], "resources": {"cpu": 1}}
_LOCAL = ("logs", "outputs", "blobs", "metrics", "controller.lock", "installation")
NET = f"10.93.{os.getpid() % 256}"
"""Another proof may run beside this one."""
_CLIENTS = 3
_PAUSE = 0.02
_AIMS = {"killed": (1.0, 5.0), "cut": (5.0, 5.0), "stopped": (1.0, 5.0)}
"""Seconds that clients wait at most: the median, and 99 of 100."""


class Machines:
    """A network of namespaces that each controller has to itself. What connects them is in another
    namespace: the rules of an engine on this machine (`iptables -P FORWARD DROP`) would cut them
    from each other."""

    def __init__(self, name: str) -> None:
        self._name, self._hub = name, f"{name}hub"
        self._count = 0
        run(["ip", "netns", "add", self._hub])
        run(["ip", "-n", self._hub, "link", "add", "br0", "type", "bridge"])
        run(["ip", "-n", self._hub, "link", "set", "br0", "up"])
        run(["ip", "link", "add", name, "type", "veth", "peer", "name", "here", "netns", self._hub])
        run(["ip", "address", "add", f"{NET}.1/24", "dev", name])
        run(["ip", "link", "set", name, "up"])
        self._plug_in("here")

    def _plug_in(self, link: str) -> None:
        run(["ip", "-n", self._hub, "link", "set", link, "master", "br0", "up"])

    def add(self) -> tuple[str, str]:
        """Return the namespace and the address of one more."""
        self._count += 1
        name, address = f"{self._name}{self._count}", f"{NET}.{10 + self._count}"
        run(["ip", "netns", "add", name])
        peer = ["type", "veth", "peer", "name", "up0", "netns", name]
        run(["ip", "-n", self._hub, "link", "add", name, *peer])
        self._plug_in(name)
        for link in ("lo", "up0"):
            run(["ip", "-n", name, "link", "set", link, "up"])
        run(["ip", "-n", name, "address", "add", f"{address}/24", "dev", "up0"])
        return name, address

    def connect(self, name: str, *, up: bool) -> None:
        run(["ip", "-n", self._hub, "link", "set", name, "up" if up else "down"])

    def close(self) -> None:
        for number in range(1, self._count + 1):
            run(["ip", "netns", "delete", f"{self._name}{number}"])
        run(["ip", "netns", "delete", self._hub])


class Machine:
    """A controller in its namespace."""

    def __init__(self, machines: Machines, folder: Path, database: str, *options: str) -> None:
        self.name, address = machines.add()
        made = ControllerProcess(folder / self.name, "--database", database)
        made.url = f"http://{address}:{made.port}"
        argv = made.daemon.argv
        argv[argv.index("--listen") + 1] = f"{address}:{made.port}"
        argv.extend(["--url", made.url, "--log-level", "error", *options])
        argv[:0] = map(str, inside(self.name))
        self.controller = made


class Crew:
    """Three machines on one database. `options`: more ones of each controller."""

    def __init__(self, folder: Path, database: str, machines: Machines, *options: str) -> None:
        self._machines = machines
        self.all = [Machine(machines, folder, database, *options) for _ in range(3)]
        first, *others = [machine.controller for machine in self.all]
        first.start()
        for other in others:
            shutil.copytree(first.data, other.data, ignore=lambda *_: list(_LOCAL))
            other.start()

    def close(self) -> None:
        for machine in self.all:
            machine.controller.close()

    def client(self) -> ControllerClient:
        urls = ",".join(machine.controller.url for machine in self.all)
        return ControllerClient(urls, self.all[0].controller.token, tell=lambda _: None)

    def leader(self) -> Machine:
        client = self.client()

        def leading() -> list[Machine]:
            with suppress(FairleadError):
                listed = msgspec.json.decode(client.get("/v1/controllers"))["controllers"]
                leads = {one["url"] for one in listed if one["status"] == "leads"}
                waits = {one["url"] for one in listed if one["status"] == "waits"}
                # Without others that wait, a leader's end would be measured with their starts.
                if len(waits) == len(self.all) - 1:
                    return [one for one in self.all if one.controller.url in leads]
            return []

        (found,) = wait_until(leading, what="a controller to lead", timeout=60)
        return found

    def end(self, how: str, machine: Machine) -> None:
        match how:
            case "killed":
                machine.controller.kill9()
            case "cut":
                self._machines.connect(machine.name, up=False)
            case _:
                machine.controller.daemon.stop()

    def start_again(self, machine: Machine) -> None:
        machine.controller.kill9()
        self._machines.connect(machine.name, up=True)
        machine.controller.start()


class Clients:
    """Threads that submit runs, and stop each one that was accepted: the queue stays short."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.answers: list[float] = []
        self.accepted: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._submit_all) for _ in range(_CLIENTS)]

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

    def _submit_all(self) -> None:
        client = self._crew.client()
        while not self._ended.is_set():
            key = uuid.uuid4().hex
            self._submit(client, key)
            self.answers.append(time.monotonic())
            self.accepted.append(key)
            with suppress(FairleadError):
                client.post(f"/v1/runs/t-{key[:12]}/stop", {"abort": True})
            time.sleep(_PAUSE)

    def _submit(self, client: ControllerClient, key: str) -> None:
        body = {"configuration": RUN, "name": f"t-{key[:12]}", "client_key": key}
        while True:
            try:
                client.submit(body)
                return
            except (ConnectionLost, ApiError) as error:
                # 503: a leader that ends. Anything else is a fault.
                if isinstance(error, ApiError) and error.status != 503:
                    raise
                time.sleep(_PAUSE)

    def answered_after(self, moment: float, count: int) -> bool:
        return sum(answer > moment for answer in list(self.answers)) >= count

    def wait(self, moment: float) -> float:
        """Return the longest time without an answer since then."""
        times = sorted(self.answers)
        last = max(answer for answer in times if answer <= moment)
        later = [answer for answer in times if answer >= last]
        return max(after - before for before, after in itertools.pairwise(later))


def _measure(crew: Crew, how: str, accepted: list[str]) -> float:
    leader = crew.leader()
    clients = Clients(crew)
    with clients.going_on():
        wait_until(lambda: len(clients.answers) >= 20, what="answers", timeout=60)
        moment = time.monotonic()
        crew.end(how, leader)
        wait_until(
            lambda: clients.answered_after(moment + 0.05, 30),
            what="answers of the next leader",
            timeout=120,
        )
    crew.start_again(leader)
    accepted.extend(clients.accepted)
    return clients.wait(moment)


def _row(how: str, waits: Sequence[float]) -> tuple[list[tuple[str, object]], list[str]]:
    p50, p99 = _percentiles(waits)
    figures = f"{p50:.2f} s / {p99:.2f} s / {max(waits):.2f} s"
    rows: list[tuple[str, object]] = [(f"{how}, {len(waits)} times: p50 / p99 / most", figures)]
    aims = zip(("p50", "p99"), (p50, p99), _AIMS[how], strict=True)
    late = [f"{how}: {what} is {is_:.2f} s, not {aim} s" for what, is_, aim in aims if is_ > aim]
    return rows, late


def _percentiles(waits: Sequence[float]) -> tuple[float, float]:
    if len(waits) == 1:
        return waits[0], waits[0]
    cut = quantiles(waits, n=100, method="inclusive")
    return cut[49], cut[98]


def _runs_without_one(crew: Crew, accepted: Sequence[str]) -> list[str]:
    """Return a violation for each accepted key that has no run: one key makes one run, as its name
    is the key's."""
    client = crew.client()
    lost = []
    for key in accepted:
        try:
            client.get(f"/v1/runs/t-{key[:12]}")
        except ApiError as error:
            lost.append(f"the accepted run {key} is lost: {error}")
    return lost


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev prove takeover", description=__doc__)
    for how, count in (("kills", 20), ("cuts", 5), ("stops", 5)):
        parser.add_argument(f"--{how}", type=int, default=count, help="default: %(default)s")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fl-prove-", dir="/tmp"))
    folder.chmod(0o755)
    rows: list[tuple[str, object]] = []
    broken: list[str] = []
    accepted: list[str] = []
    with ExitStack() as closing:
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        machines = Machines(f"fl{os.getpid()}x")
        closing.callback(machines.close)
        server = PostgresqlServer(folder / "pg", f"{NET}.1")
        server.start()
        closing.callback(server.stop)
        crew = Crew(folder, server.new_database(), machines)
        closing.callback(crew.close)
        for how, count in (("killed", given.kills), ("cut", given.cuts), ("stopped", given.stops)):
            waits = [_noted(how, _measure(crew, how, accepted)) for _ in range(count)]
            if waits:
                more, late = _row(how, waits)
                rows.extend(more)
                broken.extend(late)
        crew.leader()
        broken.extend(_runs_without_one(crew, accepted))
    rows.append(("accepted runs", len(accepted)))
    rows.append(("load of the machine at the end", f"{os.getloadavg()[0]:.1f}"))
    conclude("the leader ends: how long clients wait", rows, broken)


def _noted(how: str, seconds: float) -> float:
    print(f"{how}: {seconds:.2f} s; load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return seconds
