"""A fleet rents machines of an operator's program, runs what waits on them, and gives them back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import end_processes_that_mention
from tests.support.processes import ControllerProcess, run_cli
from tests.support.ssh_daemon import CHECKOUT
from tests.support.testbed import ControllerFactory
from tests.support.waiting import wait_until

PROGRAM = CHECKOUT / "examples/machines/processes.py"
FLEET = """\
type: fleet
name: burst
machines:
  provider: here
  nodes: 0..2
  idle_duration: 2s
  boot_limit: 2m
budget: {per_hour: 1}
"""
JOB = """\
type: task
name: hello
fleets: [burst]
commands: [echo "hello from a rented machine"]
resources: {cpu: 1, memory: 256MB}
"""


@pytest.fixture
def rented(testbed_folder: Path) -> Iterator[Path]:
    folder = testbed_folder / "rented"
    yield folder
    end_processes_that_mention(f"{folder}/")


@pytest.fixture
def controller(
    rented: Path, tmp_path: Path, controller_process: ControllerFactory
) -> ControllerProcess:
    shim = Path(sys.executable).parent / "fairlead-shim"
    command = [sys.executable, str(PROGRAM), "--folder", str(rented), "--shim", str(shim)]
    providers = {"here": {"type": "exec", "command": command, "idempotent": True}}
    config = tmp_path / "controller.yaml"
    config.write_text(json.dumps({"providers": providers}))
    return controller_process("--config", config)


def machines(controller: ControllerProcess, *options: str) -> list[dict[str, Any]]:
    listed = controller.cli("machine", "list", "--json", *options).succeeded().json
    found: list[dict[str, Any]] = listed["machines"]
    return found


def test_a_job_gets_a_rented_machine_and_the_machine_ends(
    controller: ControllerProcess, rented: Path, tmp_path: Path
) -> None:
    fleet, job = tmp_path / "fleet.yaml", tmp_path / "hello.yaml"
    fleet.write_text(FLEET)
    job.write_text(JOB)
    controller.cli("apply", "-f", fleet).succeeded()
    assert machines(controller) == []
    done = controller.cli("apply", "-f", job).succeeded()
    assert "hello from a rented machine" in done.output
    (used,) = machines(controller, "--all")
    assert (used["instance_type"], used["fleet"]) == ("small", "burst")
    wait_until(lambda: machines(controller) == [], what="the idle machine to end")
    (ended,) = machines(controller, "--all")
    assert (ended["status"], ended["end"]) == ("terminated", "idle")
    assert ended["cost"] > 0
    assert list(rented.glob("*/machine.json")) == []
    assert controller.cli("node", "list", "--json").succeeded().json["nodes"] == []
    assert controller.cli("machine", "orphans", "--json").succeeded().json["orphans"] == []


def test_a_machine_that_a_restored_controller_does_not_know_ends_when_an_admin_says_so(
    controller: ControllerProcess, rented: Path, tmp_path: Path
) -> None:
    fleet, job, backup = (tmp_path / name for name in ("fleet.yaml", "long.yaml", "backup.tar"))
    fleet.write_text(FLEET)
    pid = tmp_path / "pid"
    job.write_text(JOB.replace('echo "hello from a rented machine"', f"echo $$ > {pid}; sleep 600"))
    controller.cli("apply", "-f", fleet).succeeded()
    data = ("--data", controller.data)
    run_cli("controller", "backup", backup, *data).succeeded()
    controller.cli("apply", "-d", "-f", job).succeeded()
    shell = int(wait_until(lambda: pid.exists() and pid.read_text(), what="the job to begin"))
    controller.kill9()
    run_cli("controller", "restore", backup, *data, "--force").succeeded()
    controller.start()

    def orphans() -> list[dict[str, Any]]:
        answer = controller.cli("machine", "orphans", "--json").succeeded().json
        found: list[dict[str, Any]] = answer["orphans"]
        return found

    def with_prices() -> list[dict[str, Any]]:
        return [one for one in orphans() if one["price"] is not None]

    # The provider's offers, which tell it, may come after its list.
    (kept,) = wait_until(with_prices, what="an orphan with a price")
    assert (kept["quarantined"], kept["ends_at"], kept["price"]) == (True, None, 0.1)
    refused = controller.cli("machine", "end-orphans", "here", "another")
    assert refused.status == 1
    assert "provider here has no orphan 'another'" in refused.errors
    ending = controller.cli("machine", "end-orphans", "here", kept["instance_id"]).succeeded()
    assert ending.output == f"{kept['instance_id']} at here is being ended\n"
    # The decision outlasts the controller that took it.
    controller.kill9()
    controller.start()
    wait_until(lambda: not list(rented.glob("*/machine.json")), what="the machine to end")
    assert not Path(f"/proc/{shell}").exists()
    wait_until(lambda: orphans() == [], what="a list that lacks it")
