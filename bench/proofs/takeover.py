"""Takeover: how long clients wait when the leader is killed with -9, when its cable is cut, when it
is stopped in order, and when it is paused for 1 to 60 s and then goes on.

Three controllers, each in a network namespace of its own, share a PostgreSQL that runs outside of
them, and each holds it over TCP. Clients outside submit runs all the time, with a key each, and
repeat what was not answered. A wait is the longest time between two answers of all clients. A
leader that was cut lives on in its namespace until it is measured, and clients go on until a leader
that was paused has seen that it leads no more.

One more client submits jobs, which a node of plain processes runs. At the end each accepted key has
exactly one run, and each job ran once. In the database and at the node's shim one controller acted
under each token, and none under an older one after a newer one.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

import msgspec

from bench.proofs._table import conclude
from bench.proofs._tokens import Fenced, Notes, fences_read
from controller.clock import iso
from fairlead.errors import ApiError, ConnectionLost, FairleadError
from fairlead.rest import ControllerClient
from tests.support.daemons import inside, run
from tests.support.postgresql_server import PostgresqlServer
from tests.support.processes import ControllerProcess, ShimProcess, run_cli
from tests.support.waiting import wait_until

_CPUS = 64
RUN = {"type": "task", "commands": ["true"], "resources": {"cpu": _CPUS}}
"""A run that never starts next to the one that goes on, so that the machine measures no starts."""
_GOES_ON = {"type": "task", "commands": ["sleep 1d"], "resources": {"cpu": 0.1, "memory": "64MiB"}}
_JOB_EVERY = 0.3
"""Seconds between two jobs: each start of one costs a quarter of a second of a core."""
_SMALL = {"cpu": 0.1, "memory": "64MiB"}
_MAX_PAUSE = 60.0
_LOCAL = ("logs", "outputs", "blobs", "metrics", "controller.lock", "installation")
NET = f"10.93.{os.getpid() % 256}"
"""Another proof may run at the same time."""
_CLIENTS = 3
_PAUSE = 0.02
_AIMS = {
    "killed": (1.0, 5.0),
    "cut": (5.0, 5.0),
    "stopped": (1.0, 5.0),
    # Its lease has run out 5 s after its last word. Clients have left it by then.
    "paused": (5.5, 6.0),
}
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

    @property
    def env(self) -> dict[str, str]:
        return self.all[0].controller.env

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

    def seen_at(self, machine: Machine) -> str:
        """Return when it has shown itself last, as a leader that knows that it leads or as one that
        knows that it does not; empty: nobody tells."""
        with suppress(FairleadError):
            listed = msgspec.json.decode(self.client().get("/v1/controllers"))["controllers"]
            times = [one["last_seen_at"] for one in listed if one["url"] == machine.controller.url]
            return max(times, default="")
        return ""

    def end(self, how: str, machine: Machine) -> None:
        match how:
            case "paused":
                machine.controller.daemon.signal(signal.SIGSTOP)
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


class Site(NamedTuple):
    """Three machines with the database that they share."""

    folder: Path
    server: PostgresqlServer
    database: str
    crew: Crew


@contextmanager
def site_of(letter: str, *options: str) -> Iterator[Site]:
    """Lay out a site, for this block. `letter`: of this proof, for the names of its namespaces."""
    folder = Path(tempfile.mkdtemp(prefix="fl-prove-", dir="/tmp"))
    # PostgreSQL runs as a user of its own, who has to reach its data.
    folder.chmod(0o755)
    with ExitStack() as closing:
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        machines = Machines(f"fl{os.getpid()}{letter}")
        closing.callback(machines.close)
        server = PostgresqlServer(folder / "pg", f"{NET}.1")
        server.start()
        closing.callback(server.stop)
        database = server.new_database()
        crew = Crew(folder, database, machines, *options)
        closing.callback(crew.close)
        yield Site(folder, server, database, crew)


class Clients:
    """Threads that submit runs, and stop each one that was accepted: the queue stays short. One of
    them submits jobs, each of which writes its key to the file `ran`."""

    def __init__(self, crew: Crew, ran: Path) -> None:
        self._crew = crew
        self._ran = ran
        self.answers: list[float] = []
        self.accepted: list[str] = []
        self.jobs: list[str] = []
        self.longest = 0.0
        """Seconds that one client waited for one answer."""
        self._ended = threading.Event()
        work = [self._submit_all] * _CLIENTS + [self._submit_jobs]
        self._threads = [threading.Thread(target=one) for one in work]

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
            run = self._submit(client, key, RUN)
            self.answers.append(time.monotonic())
            self.accepted.append(key)
            with suppress(FairleadError):
                # By its id: by its name, a follower would not send it to the next leader.
                client.post(f"/v1/runs/{run}/stop", {"abort": True})
            time.sleep(_PAUSE)

    def _submit_jobs(self) -> None:
        client = self._crew.client()
        while not self._ended.is_set():
            key = uuid.uuid4().hex
            command = f"echo {key} >> {self._ran}"
            self._submit(client, key, {"type": "task", "commands": [command], "resources": _SMALL})
            self.jobs.append(key)
            self._ended.wait(_JOB_EVERY)

    def _submit(self, client: ControllerClient, key: str, run: object) -> str:
        """Return the id of the run."""
        began = time.monotonic()
        made = self._submit_until_accepted(
            client, {"configuration": run, "name": _name(key), "client_key": key}
        )
        self.longest = max(self.longest, time.monotonic() - began)
        return made

    def _submit_until_accepted(self, client: ControllerClient, body: object) -> str:
        while True:
            try:
                return str(msgspec.json.decode(client.submit(body)[0])["id"])
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


def _name(key: str) -> str:
    return f"t-{key[:12]}"


class Lab:
    """The controllers with a node, and what clients were told."""

    def __init__(self, folder: Path, crew: Crew) -> None:
        self.crew = crew
        self.accepted: list[str] = []
        self.jobs: list[str] = []
        self.longest: dict[str, float] = {}
        self._ran = folder / "ran"
        crew.client().submit({"configuration": _GOES_ON, "name": "goes-on"})
        wait_until(lambda: self._run("goes-on")["status"] == "running", what="a job to run")

    def _run(self, name: str) -> Any:
        return msgspec.json.decode(self.crew.client().get(f"/v1/runs/{name}"))

    def measure(self, how: str, seconds: float = 0.0) -> float:
        """Return how long clients wait when the leader ends. `seconds`: of a pause."""
        leader = self.crew.leader()
        clients = Clients(self.crew, self._ran)
        with clients.going_on():
            wait_until(lambda: len(clients.answers) >= 20, what="answers", timeout=60)
            moment = time.monotonic()
            self.crew.end(how, leader)
            if how == "paused":
                self._go_on(clients, leader, moment + seconds)
            wait_until(
                lambda: clients.answered_after(moment + 0.05, 30),
                what="answers of the next leader",
                timeout=120,
            )
        self.crew.start_again(leader)
        self.accepted.extend(clients.accepted)
        self.jobs.extend(clients.jobs)
        self.longest[how] = max(self.longest.get(how, 0.0), clients.longest)
        return clients.wait(moment)

    def _go_on(self, clients: Clients, leader: Machine, at: float) -> None:
        time.sleep(max(0.0, at - time.monotonic()))
        # Rows have the time of the server, which is on this machine.
        awake, awake_at = time.monotonic(), iso(time.time())
        leader.controller.daemon.signal(signal.SIGCONT)
        wait_until(
            lambda: self.crew.seen_at(leader) > awake_at, what="the paused one to know", timeout=60
        )
        wait_until(
            lambda: clients.answered_after(awake, 30), what="answers after the pause", timeout=120
        )

    def violations(self, notes: Notes, fenced: Fenced) -> list[str]:
        runs = notes.runs_of([*self.accepted, *self.jobs])
        lost = [key for key in (*self.accepted, *self.jobs) if key not in runs]

        def unfinished() -> list[str]:
            names = [_name(key) for key in self.jobs if key in runs]
            return [name for name in names if self._run(name)["status"] != "done"]

        wait_until(lambda: not unfinished(), what="all jobs to be done", timeout=120)
        ran = Counter(self._ran.read_text().split())
        return [
            *(f"the accepted run {key} is lost" for key in lost),
            *(f"the job {key} ran {ran[key]} times" for key in self.jobs if ran[key] != 1),
            *notes.violations(),
            *fenced.violations,
        ]


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


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev prove takeover", description=__doc__)
    for how, count in (("kills", 20), ("cuts", 5), ("stops", 5), ("pauses", 8)):
        parser.add_argument(f"--{how}", type=int, default=count, help="default: %(default)s")
    given = parser.parse_args()
    with ExitStack() as closing:
        site = closing.enter_context(site_of("x"))
        node = ShimProcess(site.folder / "n", "process", "--cpus", str(_CPUS), "--memory", "64GiB")
        node.start()
        closing.callback(node.close)
        tap = site.folder / "tap.sock"
        fenced = closing.enter_context(fences_read(tap, node.socket))
        notes = Notes(site.server, site.database.rpartition("/")[2])
        run_cli("node", "add", "here", "--local", tap, env=site.crew.env).succeeded()
        rows, broken = _measured(Lab(site.folder, site.crew), given, notes, fenced)
    rows.append(("load of the machine at the end", f"{os.getloadavg()[0]:.1f}"))
    conclude("the leader ends: how long clients wait", rows, broken)


def _measured(
    lab: Lab, given: argparse.Namespace, notes: Notes, fenced: Fenced
) -> tuple[list[tuple[str, object]], list[str]]:
    rows: list[tuple[str, object]] = []
    broken: list[str] = []
    counts = (("killed", given.kills), ("cut", given.cuts), ("stopped", given.stops))
    for how, count in (*counts, ("paused", given.pauses)):
        # Pauses of 1 s to the longest one, each longer than the one before by the same factor.
        pauses = [_MAX_PAUSE ** (number / max(1, count - 1)) for number in range(count)]
        waits = [_noted(how, lab.measure(how, seconds), seconds) for seconds in pauses]
        if waits:
            more, late = _row(how, waits)
            rows.extend(more)
            rows.append((f"{how}: the longest wait of one client, s", f"{lab.longest[how]:.2f}"))
            broken.extend(late)
    lab.crew.leader()
    broken.extend(lab.violations(notes, fenced))
    changes, tokens = notes.count()
    rows.append(("accepted runs; jobs that ran", f"{len(lab.accepted)}; {len(lab.jobs)}"))
    rows.append(("changes in the database; tokens", f"{changes}; {tokens}"))
    rows.append(
        (
            "requests that the shim obeyed; refused as older; tokens",
            f"{fenced.obeyed}; {fenced.refused}; {len(fenced.fences)}",
        )
    )
    return rows, broken


def _noted(how: str, waited: float, pause: float) -> float:
    what = f"{how} for {pause:.1f} s" if how == "paused" else how
    print(f"{what}: {waited:.2f} s; load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return waited
