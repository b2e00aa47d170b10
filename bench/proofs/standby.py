"""The primary PostgreSQL is gone, and its standby is promoted: with all commits, without the last.

Two servers with streaming replication, three controllers that know both, and a node of plain
processes. A job runs from before. In the second round the standby is stopped, another run is
submitted and starts, and then the primary is lost: the promoted server knows nothing of that run.
Each time the leader leads no more, another one leads in a new epoch, and clients go on; the job
from before goes on too. The task of the lost run is left alone, and listed at its node.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.controllers import Controllers
from bench.proofs._table import conclude
from tests.support.postgresql_server import PostgresqlServer
from tests.support.processes import ShimProcess, run_cli
from tests.support.waiting import wait_until

_JOB = "type: task\ncommands: ['sleep 600']\nresources: {cpu: 0.1, memory: 64MB}\n"


class Lab:
    """Two servers, controllers, a node."""

    def __init__(self, folder: Path, closing: ExitStack) -> None:
        self._job = folder / "job.yaml"
        self._job.write_text(_JOB)
        self.primary = PostgresqlServer(folder / "a")
        self.primary.start()
        closing.callback(self.primary.daemon.kill9)
        own = self.primary.new_database()
        self.standby = PostgresqlServer(folder / "b")
        self.standby.begin_as_standby_of(self.primary)
        closing.callback(self.standby.daemon.kill9)
        both = f"{own},{self.standby.folder}&target_session_attrs=read-write"
        self.node = ShimProcess(folder / "n", "process", "--cpus", "8", "--memory", "8GiB")
        self.node.start()
        closing.callback(self.node.close)
        self.controllers = Controllers(folder, both)
        closing.callback(self.controllers.close)
        self.controllers.start()
        self.cli("node", "add", "here", "--local", self.node.socket)

    @property
    def env(self) -> dict[str, str]:
        urls = ",".join(one.url for one in self.controllers.all)
        return {"FAIRLEAD_URL": urls, "FAIRLEAD_TOKEN": self.controllers.token}

    def cli(self, *args: str | Path) -> str:
        return run_cli(*args, env=self.env).succeeded().output

    def run(self, name: str) -> None:
        self.cli("apply", "-d", "-f", self._job, "--name", name)
        wait_until(lambda: self.status(name) == "running", what=f"{name} to run")

    def status(self, name: str) -> str | None:
        shown = run_cli("inspect", name, "--json", env=self.env)
        return shown.json["status"] if shown.status == 0 else None

    def unknown_tasks(self) -> int:
        shown = run_cli("node", "show", "here", "--json", env=self.env).succeeded().json
        return int(shown["quarantined"])

    def is_level(self) -> bool:
        """Return whether the standby has all that the primary has."""
        at = self.primary.sql("postgres", "SELECT pg_current_wal_flush_lsn()")
        query = f"SELECT pg_last_wal_replay_lsn() >= '{at}'::pg_lsn"
        return self.standby.sql("postgres", query) == "t"


def _promoted(*, loses: bool) -> tuple[float, list[str]]:
    """Return the seconds until a run was submitted again, and what is wrong."""
    broken: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="fl-prove-", dir="/tmp"))
    folder.chmod(0o755)
    with ExitStack() as closing:
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        lab = Lab(folder, closing)
        lab.run("before")
        wait_until(lab.is_level, what="the standby to be level")
        leader = lab.controllers.leader()
        if loses:
            lab.standby.stop()
            lab.run("lost")
        lab.primary.stop()
        if loses:
            lab.standby.daemon.spawn()
            lab.standby.daemon.wait_ready(lambda: lab.standby.is_ready)
        began = time.monotonic()
        lab.standby.promote()
        submitted = ("apply", "-d", "-f", folder / "job.yaml", "--name", "after")
        wait_until(lambda: run_cli(*submitted, env=lab.env).status == 0, what="a submission")
        seconds = time.monotonic() - began
        wait_until(lambda: "was promoted" in leader.daemon.tail(100), what="it to lead no more")
        wait_until(lambda: lab.status("after") == "running", what="the next run")
        if lab.status("before") != "running":
            broken.append(f"the job from before is {lab.status('before')}")
        if not leader.daemon.is_alive():
            broken.append(f"the first leader ended with {leader.daemon.tail(1)!r}")
        if "Traceback" in (told := leader.daemon.tail(100)):
            broken.append(f"its log has a traceback: {told}")
        if loses:
            wait_until(lambda: lab.unknown_tasks() == 1, what="the task that nobody knows")
            if (status := lab.status("lost")) is not None:
                broken.append(f"the lost run is {status}")
        elif lab.unknown_tasks():
            broken.append("tasks are unknown though no commit is missing")
    return seconds, broken


def main() -> None:
    argparse.ArgumentParser(prog="./dev prove standby", description=__doc__).parse_args()
    kept, first = _promoted(loses=False)
    lost, second = _promoted(loses=True)
    figures: list[tuple[str, object]] = [
        ("seconds from the promotion to a submission, all commits there", f"{kept:.1f}"),
        ("the same, the last commits missing", f"{lost:.1f}"),
        ("load of the machine at the end", f"{os.getloadavg()[0]:.1f}"),
    ]
    conclude("the standby of PostgreSQL is promoted", figures, [*first, *second])
