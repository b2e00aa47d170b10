"""How long a client of three controllers waits when the leader is killed with -9, and when it is
stopped in order.

A client submits one run after the other, with a key each, and repeats what was not answered. The
gap is the longest time between two answers around the end of the leader; without an end, it is the
longest time of one submission. All are on one machine, whose load is a part of each figure.

Before that: the CPU time that a request costs the leader and a follower, when the leader is asked
and when the follower is; what watches and dashboards cost there; and what a turn of the leader
takes and costs, without and with 100 followed logs and 20 dashboards at its followers.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import tempfile
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec

from bench import followed_controllers, followed_submissions, history, leader_turns, report
from bench.runner_start import cpu_seconds
from fairlead.errors import ApiError, ConnectionLost
from fairlead.rest import ControllerClient
from tests.support.postgresql_server import PostgresqlServer
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.waiting import wait_until

RUN = {"type": "task", "image": "busybox", "commands": ["true"], "resources": {"cpu": 1}}
_LOCAL = ("logs", "outputs", "blobs", "metrics", "controller.lock")
_PAUSE = 0.02


class Controllers:
    """Three on one database."""

    def __init__(self, folder: Path, database: str) -> None:
        self.token = ""
        """That of the admin, once they have started."""
        self.all = []
        for name in ("one", "two", "three"):
            made = ControllerProcess(folder / name, "--database", database, "--log-level", "error")
            made.daemon.argv.extend(["--url", made.url])
            self.all.append(made)

    def start(self) -> None:
        first, *others = self.all
        first.start()
        self.token = first.token
        for other in others:
            self.give_keys(first, other)
            other.start()

    def give_keys(self, source: ControllerProcess, target: ControllerProcess) -> None:
        """Let a controller without a folder have the keys of another one."""
        shutil.copytree(source.data, target.data, ignore=lambda *_: list(_LOCAL))

    def close(self) -> None:
        for one in self.all:
            one.close()

    def client(self) -> ControllerClient:
        urls = ",".join(one.url for one in self.all)
        return ControllerClient(urls, self.token, tell=lambda _: None)

    def leader(self) -> ControllerProcess:
        client = self.client()

        def leading() -> list[ControllerProcess]:
            listed = msgspec.json.decode(client.get("/v1/controllers"))["controllers"]
            urls = {one["url"] for one in listed if one["status"] == "leads"}
            return [one for one in self.all if one.url in urls and one.daemon.is_alive()]

        (found,) = wait_until(leading, what="a controller to lead")
        return found


class InThread(ABC):
    """What goes on in a thread for as long as a block lasts."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()

    @abstractmethod
    def _go_on(self) -> None:
        """Return soon after `_ended` is set."""


class Submitting(InThread):
    """A client; `answers` has the time of each answer."""

    def __init__(self, client: ControllerClient) -> None:
        super().__init__()
        self.answers: list[float] = []
        self.repeated = 0
        self._client = client

    def _go_on(self) -> None:
        while not self._ended.is_set():
            self._submit(uuid.uuid4().hex)
            self.answers.append(time.monotonic())

    def _submit(self, key: str) -> None:
        body = {"configuration": RUN, "name": f"b-{key[:12]}", "client_key": key}
        while True:
            try:
                self._client.submit(body)
                return
            except (ConnectionLost, ApiError) as error:
                # 503: a leader that ends. Anything else is a fault of this bench.
                if isinstance(error, ApiError) and error.status != 503:
                    raise
                self.repeated += 1
                time.sleep(_PAUSE)

    def answers_after(self, moment: float, count: int) -> bool:
        return sum(answer > moment for answer in self.answers) >= count

    def gap(self, after: float) -> float:
        """Return the longest time between two answers since shortly before that moment."""
        last = max(answer for answer in self.answers if answer <= after)
        times = [answer for answer in self.answers if answer >= last]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


def main() -> None:
    given = _options().parse_args()
    machine = report.machine()
    with _three(given.apart) as (controllers, folder, postgres):
        if given.submissions:
            leader = controllers.leader()
            followers = [one for one in controllers.all if one is not leader]
            followed_submissions.tell(
                leader, followers, controllers.token, given.submissions, given.connections
            )
        if not given.only_turns and not given.only_submissions:
            _shares(controllers, given.requests)
            _followed(controllers)
        if given.only_submissions:
            return
        if given.rounds:
            _turns(controllers, folder, given.rounds, postgres if given.apart else None)
        if given.only_turns or given.tries == 0:
            return
        figures = _ends(controllers, given.tries)
    print(f"three controllers on one PostgreSQL, one machine: {machine}")
    history.conclude(figures, given.release, machine)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench controllers", description=__doc__)
    parser.add_argument(
        "--tries",
        type=int,
        default=10,
        metavar="N",
        help="of each end of a leader; 0: none, and nothing is recorded (default: %(default)s)",
    )
    parser.add_argument(
        "--requests", type=int, default=300, metavar="N", help="of each kind (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        metavar="N",
        help="slices of the leader's turns, without and with readers at followers each "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--submissions",
        type=int,
        default=3000,
        metavar="N",
        help="over kept connections, at the leader and at followers (default: %(default)s)",
    )
    parser.add_argument(
        "--connections", type=int, default=16, metavar="N", help="default: %(default)s"
    )
    parser.add_argument("--only-submissions", action="store_true", help="measure these alone")
    parser.add_argument("--only-turns", action="store_true", help="measure these turns alone")
    parser.add_argument(
        "--apart",
        action="store_true",
        help="as root: the leader has a core with its sessions of PostgreSQL, before all else that "
        "wants it, and the rest has the others, while its turns are measured",
    )
    history.add_option(parser)
    return parser


@contextmanager
def _three(apart: bool) -> Iterator[tuple[Controllers, Path, int]]:
    """Start three controllers; give them, a folder, and the pid of their PostgreSQL."""
    folder = Path(tempfile.mkdtemp(prefix="fl-bench-", dir="/tmp"))
    folder.chmod(0o755)
    # The ports of its sessions tell which are the leader's. Each server listens at one port.
    pid = os.getpid()
    address = f"127.{pid >> 16}.{pid >> 8 & 255}.{pid & 255}" if apart else ""
    server = PostgresqlServer(folder / "pg", address)
    server.start()
    controllers = Controllers(folder, server.new_database())
    try:
        controllers.start()
        yield controllers, folder, server.daemon.pid
    finally:
        controllers.close()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _ends(controllers: Controllers, tries: int) -> dict[str, float]:
    """Return the figures to record: the client's waits at the ends of leaders."""
    _tell("nothing ends", [_quiet(controllers) for _ in range(3)])
    stopped = [_ended(controllers, gently=True) for _ in range(tries)]
    stopped_wait = _tell("the leader is stopped (SIGTERM)", stopped)
    killed = [_ended(controllers, gently=False) for _ in range(tries)]
    killed_wait = _tell("the leader is killed (SIGKILL)", killed)
    return {"takeover.stopped": stopped_wait, "takeover.killed": killed_wait}


def _shares(controllers: Controllers, count: int) -> None:
    """Tell what requests cost each process, at the leader and at a follower."""
    leader = controllers.leader()
    follower = next(one for one in controllers.all if one is not leader)
    run = msgspec.json.decode(_submitted(ControllerClient(leader.url, controllers.token)))["id"]
    kinds: dict[str, Callable[[ControllerClient], object]] = {
        "submissions": _submitted,
        "reads of a run": lambda client: client.get(f"/v1/runs/{run}"),
        "lists of runs": lambda client: client.get("/v1/runs"),
        "lists of nodes": lambda client: client.get("/v1/nodes"),
        "explanations of a run": lambda client: client.get(f"/v1/runs/{run}/explain"),
    }
    for what, ask in kinds.items():
        for asked, where in ((leader, "the leader"), (follower, "a follower")):
            client = ControllerClient(asked.url, controllers.token)
            ask(client)
            before = [cpu_seconds(one.daemon.pid) for one in (leader, follower)]
            began = time.monotonic()
            for _ in range(count):
                ask(client)
            took = time.monotonic() - began
            after = [cpu_seconds(one.daemon.pid) for one in (leader, follower)]
            costs = [1000 * (end - start) / count for start, end in zip(before, after, strict=True)]
            print(
                f"{count} {what} at {where}: {costs[0]:.2f} ms of CPU each at the leader, "
                f"{costs[1]:.2f} ms at the follower; {1000 * took / count:.1f} ms each; "
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )


def _followed(controllers: Controllers) -> None:
    """Tell what watches and dashboards cost, at the leader and at a follower."""
    leader = controllers.leader()
    follower = next(one for one in controllers.all if one is not leader)
    followed_controllers.tell(leader, follower, controllers.token, RUN)


def _turns(controllers: Controllers, folder: Path, rounds: int, postgres: int | None) -> None:
    """Tell what readers at the followers cost the turns of the leader. `postgres`: the pid of the
    server, to let the leader have a core of its own; None: all share all cores."""
    leader = controllers.leader()
    followers = [one for one in controllers.all if one is not leader]
    node = ShimProcess(folder / "n", "process", "--cpus", "400", "--memory", "64GiB")
    node.start()
    apart: leader_turns.Apart | None = None
    if postgres is not None:
        apart = leader_turns.Apart(
            leader.pid, [*(one.pid for one in followers), node.pid], postgres
        )
    try:
        leader_turns.tell(leader, followers, node, rounds, apart)
    finally:
        node.close()


def _submitted(client: ControllerClient) -> bytes:
    key = uuid.uuid4().hex
    body = {"configuration": RUN, "name": f"b-{key[:12]}", "client_key": key}
    return client.post("/v1/runs", body, repeatable=True)


def _quiet(controllers: Controllers) -> float:
    client = Submitting(controllers.client())
    began = time.monotonic()
    with client.going_on():
        wait_until(lambda: client.answers_after(began, 50), what="answers")
    return client.gap(client.answers[0])


def _ended(controllers: Controllers, *, gently: bool) -> float:
    leader = controllers.leader()
    client = Submitting(controllers.client())
    with client.going_on():
        wait_until(lambda: len(client.answers) >= 20, what="answers")
        moment = time.monotonic()
        if gently:
            leader.stop()
        else:
            leader.kill9()
        wait_until(lambda: client.answers_after(moment, 20), what="answers of the next leader")
    leader.start()
    return client.gap(moment)


def _tell(what: str, gaps: list[float]) -> float:
    print(
        f"{what}: the client waits {median(gaps):.2f} s (median of {len(gaps)}), "
        f"{max(gaps):.2f} s at most; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return median(gaps)


if __name__ == "__main__":
    main()
