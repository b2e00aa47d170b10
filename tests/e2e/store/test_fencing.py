"""A controller that was paused, its successor and a live job on a real shim: the job goes on under
the successor, and the old one can neither write nor command.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fairlead.wire.shim import Fence, TerminateRequest
from shim.client import ShimClient, ShimError
from tests.e2e.store.process_lab import COUNTING, ProcessLab, let_the_lease_run_out
from tests.support.daemons import DaemonFailed
from tests.support.postgresql_server import PostgresqlServer
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.testbed import ShimFactory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


def told_by_the_old_one(shim: ShimProcess, run: Any, fence: Fence) -> tuple[str, int]:
    """The shim's answer to its command to end the job: code and status."""
    (attempt,) = run["jobs"][0]["attempts"]

    async def terminate() -> tuple[str, int]:
        connector = aiohttp.UnixConnector(str(shim.socket))
        async with aiohttp.ClientSession(connector=connector) as session:
            with pytest.raises(ShimError) as refused:
                await ShimClient(session).terminate(
                    attempt["id"],
                    TerminateRequest(reason="terminated_by_user", grace=0.0),
                    run_id=run["id"],
                    fence=fence,
                    incarnation=0,
                )
            return refused.value.code, refused.value.status

    return asyncio.run(terminate())


def test_a_paused_controller_can_not_command_the_job_that_goes_on_under_its_successor(
    shim_process: ShimFactory,
    postgresql: PostgresqlServer,
    database_url: str,
    tmp_path: Path,
) -> None:
    shim = shim_process("process")
    made = [ControllerProcess(tmp_path / name, "--database", database_url) for name in "ab"]
    old, new = (ProcessLab(controller, tmp_path) for controller in made)
    try:
        old.controller.start()
        old.cli("node", "add", "here", "--local", shim.socket).succeeded()
        old.start("job", commands=[COUNTING])
        old.goes_on("job")
        fence = Fence(*lease(postgresql, database_url))
        old.controller.daemon.signal(signal.SIGSTOP)
        let_the_lease_run_out(postgresql, database_url)
        new.controller.start()
        new.wait_for_node(lambda node: node["status"] == "connected", "here")
        new.goes_on("job")
        run = wait_until(lambda: found(new), what="the job to be found")
        assert told_by_the_old_one(shim, run, fence) == ("fenced", 409)
        old.controller.daemon.signal(signal.SIGCONT)
        assert old.controller.daemon.wait() == 1
        assert "another controller has taken over" in old.controller.daemon.tail()
        new.goes_on("job")
        # A link of a busy machine may break and be made again; what became of the job may not.
        again = wait_until(lambda: found(new), what="its node to be connected")
        assert again["jobs"] == run["jobs"]
        assert (run["status"], len(run["jobs"][0]["attempts"])) == ("running", 1)
        new.cli("stop", "--abort", "job").succeeded()
        assert new.wait_for("job")["status"] == "terminated"
    finally:
        for controller in made:
            controller.close()


def found(controller: ProcessLab) -> Any:
    """The run, if its node is connected: told in one answer, for a link may break between two."""
    run = controller.inspect("job")
    return None if run["jobs"][0]["attempts"][0]["disconnected"] else run


def lease(postgresql: PostgresqlServer, url: str) -> tuple[int, int]:
    """Epoch and token of who has it now."""
    name = url.rpartition("/")[0].rpartition("@/")[2].partition("?")[0]
    query = "SELECT epoch, token FROM installation, leases"
    epoch, token = postgresql.sql(name, query).strip().split("|")
    return int(epoch), int(token)


def test_on_sqlite_a_second_controller_is_refused_by_name_until_the_first_is_killed(
    shim_process: ShimFactory, tmp_path: Path
) -> None:
    shim = shim_process("process")
    first = ControllerProcess(tmp_path / "c")
    second = ControllerProcess(tmp_path / "d")
    second.daemon.argv[second.daemon.argv.index("--data") + 1] = str(first.data)
    second.data = first.data
    old, new = ProcessLab(first, tmp_path), ProcessLab(second, tmp_path)
    try:
        first.start()
        old.cli("node", "add", "here", "--local", shim.socket).succeeded()
        old.start("job", commands=[COUNTING])
        first.daemon.signal(signal.SIGSTOP)
        with pytest.raises(DaemonFailed, match=rf"another controller \(process {first.pid} on "):
            second.start()
        first.daemon.signal(signal.SIGCONT)
        old.goes_on("job")
        first.kill9()
        second.start()
        new.goes_on("job")
        assert len(new.attempts("job")) == 1
        new.cli("stop", "--abort", "job").succeeded()
        new.wait_for("job")
    finally:
        for controller in (first, second):
            controller.close()
