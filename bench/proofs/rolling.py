"""A rolling upgrade: three controllers become the next version one after the other, the leader
last, while jobs run, readers follow their logs, clients submit and a service is asked.

The three share a PostgreSQL and a bucket for everything; a node of plain processes has the jobs,
each of which numbers its lines. The port of each controller is held for it while it is replaced, as
by systemd's socket unit, unless `--refusing`. A client repeats a request once, at the next address.
At the end no request has failed twice, each accepted key has its run, each job has ended well, and
each reader and each stored log has every line once.
"""

from __future__ import annotations

import argparse
import itertools
import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from bench.controllers import InThread
from bench.proofs._peers import Parts, parts_of_peers
from bench.proofs._table import conclude
from common.sockets import BACKLOG
from controller.forwarding.forwarder import HELD_SECONDS_HEADER
from fairlead.client import Client
from fairlead.errors import FairleadError
from fairlead.rest import ControllerClient
from tests.support.daemons import Daemon
from tests.support.newer_version import newer_programs
from tests.support.processes import ControllerProcess, run_cli
from tests.support.ssh_daemon import free_port
from tests.support.waiting import wait_until

_COMMAND = "i=0; while [ ! -e {end} ]; do echo $i; i=$((i+1)); sleep 2; done; echo end $i"
_SMALL = {"cpu": 0.1, "memory": "64MiB"}
_RUN = {"type": "task", "commands": ["true"], "resources": {"cpu": 400}}
"""A run that never starts beside the others, so that the machine measures no starts."""
_SUBMIT_EVERY = 0.1
_ASK_EVERY = 0.02
_PATIENCE = 600.0


class Lab:
    """The controllers, their bucket and a node with jobs and a service."""

    def __init__(self, parts: Parts, *, holds_ports: bool) -> None:
        self._folder = parts.folder
        self._end = parts.folder / "end"
        self._node = parts.node
        self.controllers = parts.controllers()
        self.held: list[float] = []
        """Seconds for which requests to the service waited for a leader, at a follower."""
        self._ports = [_held(one) for one in self.controllers.all] if holds_ports else []

    def close(self) -> None:
        self.controllers.close()
        for port in self._ports:
            port.close()

    def start(self) -> None:
        self.controllers.start()
        env = {"FAIRLEAD_URL": self.urls[0], "FAIRLEAD_TOKEN": self.controllers.token}
        run_cli("node", "add", "here", "--local", self._node.socket, env=env).succeeded()

    @property
    def urls(self) -> list[str]:
        return [one.url for one in self.controllers.all]

    def client(self) -> Client:
        return Client(",".join(self.urls), self.controllers.token, tell=lambda _: None)

    def rest(self) -> ControllerClient:
        return self.controllers.client()

    def start_jobs(self, count: int) -> list[str]:
        """Return the names of so many jobs that run."""
        client, names = self.client(), [f"j{number}" for number in range(count)]
        for name in names:
            task = {"type": "task", "commands": [_COMMAND.format(end=self._end)]}
            client.submit({**task, "resources": _SMALL, "max_duration": "1h"}, name=name)
        wait_until(
            lambda: all(client.run(name).status == "running" for name in names),
            timeout=_PATIENCE,
            what="all jobs to run",
        )
        return names

    def start_service(self) -> None:
        port, pages = free_port(), self._folder / "pages"
        pages.mkdir()
        command = f"cd {pages} && exec {sys.executable} -m http.server {port} --bind 127.0.0.1"
        service = {"type": "service", "port": port, "commands": [command], "resources": _SMALL}
        self.client().submit(service, name="web")
        wait_until(lambda: not self.ask(self.urls[0]), timeout=_PATIENCE, what="the service")

    def ask(self, url: str) -> str:
        """Ask the service through this controller. Return why it did not answer well, or an empty
        text."""
        headers = {"Authorization": f"Bearer {self.controllers.token}"}
        request, where = urllib.request.Request(f"{url}/services/web/", headers=headers), ""
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                where = " after the head of the answer"
                if (held := answer.headers.get(HELD_SECONDS_HEADER)) is not None:
                    self.held.append(float(held))
                return "" if answer.read() else "an empty answer"
        except urllib.error.HTTPError as error:
            with error:
                return f"{error.code}: {error.read(200).decode(errors='replace')}"
        except OSError as error:
            return f"{error}{where}"

    def end_jobs(self) -> None:
        self._end.touch()

    def upgrade(self, one: ControllerProcess) -> None:
        """Stop it in order, and start the next version in its place; wait until it is up."""
        one.stop()
        argv, newer = one.daemon.argv, newer_programs(self._folder / f"newer-{one.port}")
        argv[argv.index("controller") - 1] = str(newer / "fairlead")
        one.start()
        self.controllers.leader()


def _held(one: ControllerProcess) -> socket.socket:
    """Return the socket at which this controller will listen, whichever process it is."""
    port = socket.create_server(("127.0.0.1", one.port), backlog=BACKLOG)
    one.daemon = Daemon(one.daemon.argv, one.daemon.log, listening=port)
    return port


class Repeating(InThread):
    """A client that acts again and again, each time at another address. It repeats once what
    failed; `act` returns why, or an empty text."""

    def __init__(self, what: str, act: Callable[[int], str], every: float) -> None:
        super().__init__()
        self.what = what
        self.done = self.repeated = 0
        self.failed: list[str] = []
        self.whys: Counter[str] = Counter()
        """Why it was repeated."""
        self._act = act
        self._every = every

    def _go_on(self) -> None:
        for number in itertools.count():
            if self._ended.wait(self._every):
                return
            began = time.monotonic()
            if first := self._act(number):
                self.repeated += 1
                self.whys[_kind(first)] += 1
                if second := self._act(number + 1):
                    took = time.monotonic() - began
                    whys = f"{first}; {second}"
                    self.failed.append(f"{self.what} {number} failed twice in {took:.1f} s: {whys}")
                    continue
            self.done += 1


def _kind(why: str) -> str:
    """Return what kind of failure this is. Nobody listens at the address of a controller that is
    being replaced; all else was refused by one that works."""
    if "Connection refused" in why:
        return "nobody listened there"
    return " ".join(why.split())[:100]


class Reader:
    """Follows one log in a thread."""

    def __init__(self, client: Client, name: str) -> None:
        self._run = client.run(name)
        self._name = name
        self._text: list[str] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            self._text.extend(piece.text for piece in self._run.logs(follow=True))
        except FairleadError as error:
            self._error = error

    def violation(self) -> str | None:
        self._thread.join(_PATIENCE)
        if self._error is not None or not is_whole("".join(self._text)):
            return f"who followed {self._name} got {''.join(self._text)[-60:]!r}: {self._error}"
        return None


def is_whole(text: str) -> bool:
    """Return whether each numbered line is there once, in order, and the last one after them."""
    *lines, last = text.splitlines() or [""]
    return lines == [str(number) for number in range(len(lines))] and last == f"end {len(lines)}"


def _submitting(lab: Lab, accepted: list[str]) -> Callable[[int], str]:
    client = lab.rest()
    keys: dict[int, str] = {}

    def submit(number: int) -> str:
        # The second try of one number has the key of the first.
        key = keys.pop(number - 1, None) or keys.setdefault(number, uuid.uuid4().hex)
        name = f"r-{key[:12]}"
        try:
            client.submit({"configuration": _RUN, "name": name, "client_key": key})
        except FairleadError as error:
            return str(error)
        keys.clear()
        accepted.append(name)
        return ""

    return submit


def _violations(lab: Lab, names: Sequence[str], readers: Sequence[Reader]) -> list[str]:
    lab.end_jobs()
    client, broken = lab.client(), []
    for name in names:
        status = client.run(name).wait(check=False).status
        text = "".join(piece.text for piece in client.run(name).logs())
        if status != "done" or not is_whole(text):
            broken.append(f"{name} is {status}, its log ends with {text[-60:]!r}")
    broken.extend(one for reader in readers if (one := reader.violation()) is not None)
    return broken


def _lost(lab: Lab, accepted: Sequence[str]) -> list[str]:
    client, lost = lab.rest(), []
    for name in accepted:
        try:
            client.get(f"/v1/runs/{name}")
        except FairleadError as error:
            lost.append(f"the accepted run {name} is lost: {error}")
    return lost


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="./dev prove rolling", description=__doc__)
    for name, count in (("jobs", 200), ("readers", 50)):
        parser.add_argument(f"--{name}", type=int, default=count, help="default: %(default)s")
    parser.add_argument("--refusing", action="store_true", help="nobody holds a port")
    given = parser.parse_args(argv)
    with ExitStack() as closing:
        parts = closing.enter_context(parts_of_peers("--cpus", "400", "--memory", "64GiB"))
        lab = Lab(parts, holds_ports=not given.refusing)
        closing.callback(lab.close)
        lab.start()
        lab.start_service()
        names = lab.start_jobs(given.jobs)
        readers = [Reader(lab.client(), name) for name in names[: given.readers]]
        accepted: list[str] = []
        asking = Repeating("request to the service", lambda n: lab.ask(lab.urls[n % 3]), _ASK_EVERY)
        submitting = Repeating("submission", _submitting(lab, accepted), _SUBMIT_EVERY)
        with submitting.going_on(), asking.going_on():
            time.sleep(5)
            leader = lab.controllers.leader()
            for one in (*(one for one in lab.controllers.all if one is not leader), leader):
                lab.upgrade(one)
                time.sleep(5)
        broken = [*submitting.failed, *asking.failed, *_lost(lab, accepted)]
        broken.extend(_violations(lab, names, readers))
    figures: list[tuple[str, object]] = [
        ("jobs that ran all the time", len(names)),
        ("readers of their logs", len(readers)),
        *((f"times: {one.what}, done", one.done) for one in (submitting, asking)),
        *((f"times: {one.what}, repeated once", one.repeated) for one in (submitting, asking)),
        *(
            (f"times: {one.what}, repeated: {why}", count)
            for one in (submitting, asking)
            for why, count in one.whys.most_common(5)
        ),
        ("times: request to the service, held at a follower", len(lab.held)),
        ("longest hold, s", f"{max(lab.held, default=0.0):.1f}"),
        ("load of the machine at the end", f"{os.getloadavg()[0]:.1f}"),
    ]
    conclude("three controllers become the next version, one after the other", figures, broken)
